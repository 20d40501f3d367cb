package workload

import (
	"encoding/json"
	"reflect"
	"slices"
	"testing"
)

func TestDefaultedContainers(t *testing.T) {
	t.Parallel()
	given := podOf(
		reqLim(Init, nil, q("memory", 7)),
		reqLim(App, q("cpu", 500), q("cpu", 1000, "memory", 9, "example.com/gpu", 2)),
		reqLim(App, q("cpu", 0), q("cpu", 1000)),
		reqLim(App, q("cpu", 100), nil),
		nothing,
	)
	before, _ := json.Marshal(given)
	got, notes := Defaulted(*given, on)
	want := []Quantities{q("memory", 7), q("cpu", 500, "memory", 9, "example.com/gpu", 2), q("cpu", 0), q("cpu", 100), nil}
	for i, c := range got.Walk() {
		if !reflect.DeepEqual(c.Requests, want[i]) {
			t.Errorf("container %s: requests %v, want %v", c.Name, c.Requests, want[i])
		}
	}
	if want := []string{
		"requests that container a leaves out are taken from its limits: memory 7",
		"requests that container b leaves out are taken from its limits: example.com/gpu 2, memory 9",
	}; !slices.Equal(notes, want) {
		t.Errorf("notes %q, want %q", notes, want)
	}
	if after, _ := json.Marshal(given); string(after) != string(before) {
		t.Errorf("the given pod was changed:\n%s\n%s", before, after)
	}
	if again, notes := Defaulted(got, on); len(notes) > 0 || !reflect.DeepEqual(again, got) {
		t.Errorf("a second run changes the pod: %q", notes)
	}
}

func TestDefaultedPodLevel(t *testing.T) {
	t.Parallel()
	one := both(App, q("cpu", 500, "memory", gi, "hugepages-2Mi", 4*mi))
	for _, row := range []struct {
		name             string
		pod              *Pod
		requests, limits Quantities
		notes            int
	}{
		{"nothing given", podOf(one).withResources(nil, nil), nil, nil, 0},
		{"requests from containers, huge pages from their limits", podOf(one, one).withResources(nil, q("cpu", 4000)),
			q("cpu", 1000, "memory", 2*gi, "hugepages-2Mi", 8*mi), q("cpu", 4000, "hugepages-2Mi", 8*mi), 3},
		{"requests from the limit where no container asks", podOf(nothing).withResources(nil, q("cpu", 4000, "memory", gi)),
			q("cpu", 4000, "memory", gi), q("cpu", 4000, "memory", gi), 1},
		{"given requests stay", podOf(one).withResources(q("cpu", 900), q("cpu", 4000)),
			q("cpu", 900, "memory", gi, "hugepages-2Mi", 4*mi), q("cpu", 4000, "hugepages-2Mi", 4*mi), 3},
		{"requests alone bring no requests", podOf(both(App, q("cpu", 500, "memory", gi))).withResources(q("cpu", 900), nil),
			q("cpu", 900), nil, 0},
		{"requests alone bring huge page limits, and those the other requests", podOf(one).withResources(q("cpu", 900), nil),
			q("cpu", 900, "memory", gi, "hugepages-2Mi", 4*mi), q("hugepages-2Mi", 4*mi), 3},
		{"a huge page request without limit stays alone", podOf(one).withResources(q("hugepages-2Mi", 6*mi), q("memory", 2*gi)),
			q("cpu", 500, "memory", gi, "hugepages-2Mi", 6*mi), q("memory", 2*gi), 1},
	} {
		got, notes := Defaulted(*row.pod, on)
		if !reflect.DeepEqual(got.Resources.Requests, row.requests) || !reflect.DeepEqual(got.Resources.Limits, row.limits) {
			t.Errorf("%s: requests %v, limits %v; want %v, %v", row.name, got.Resources.Requests, got.Resources.Limits, row.requests,
				row.limits)
		}
		if len(notes) != row.notes {
			t.Errorf("%s: notes %q, want %d", row.name, notes, row.notes)
		}
		if untouched, notes := Defaulted(*row.pod, off); len(notes) > 0 || !reflect.DeepEqual(untouched.Resources, row.pod.Resources) {
			t.Errorf("%s: changed with the feature off: %q", row.name, notes)
		}
	}
}

// What was rounded in a limit is rounded in the request that takes it over.
func TestDefaultedKeepsExcess(t *testing.T) {
	t.Parallel()
	p := podOf(reqLim(App, nil, q("memory", 2)), reqLim(App, nil, q("memory", 2))).withResources(nil, q("cpu", 1))
	for i := range p.Containers {
		p.Containers[i].Excess = &Excess{Limits: q("memory", billion/2)}
	}
	got, _ := Defaulted(*p, on)
	if want := (&Excess{Requests: q("memory", billion/2), Limits: q("memory", billion/2)}); !reflect.DeepEqual(got.Containers[0].Excess,
		want) {
		t.Errorf("excess %+v, want %+v", got.Containers[0].Excess, want)
	}
	if got.Resources.Requests[Memory] != 3 || got.Excess != nil {
		t.Errorf("pod-level request %v with excess %+v, want 3 without", got.Resources.Requests, got.Excess)
	}
	if p.Containers[0].Excess.Requests != nil {
		t.Error("the given pod was changed")
	}
}
