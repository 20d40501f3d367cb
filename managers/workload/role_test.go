package workload

import (
	"encoding/json"
	"reflect"
	"slices"
	"testing"
)

func TestPodTotal(t *testing.T) {
	t.Parallel()
	cpus := func(role Role, n int) Container { return Container{Role: role, Requests: q("cpu", n)} }
	i := func(n int) Container { return cpus(Init, n) }
	s := func(n int) Container { return cpus(Sidecar, n) }
	a := func(n int) Container { return cpus(App, n) }
	for _, row := range []struct {
		name       string
		containers []Container
		want       int64
	}{
		{"none", nil, 0},
		{"apps add up", []Container{a(2), a(4)}, 6},
		{"largest init", []Container{i(5), a(2)}, 5},
		{"init is not added", []Container{i(4), i(3), a(2), a(1)}, 4},
		{"sidecar is", []Container{s(1), a(1)}, 2},
		{"init before sidecars", []Container{i(5), s(1), s(2), s(3), a(1)}, 7},
		{"init between sidecars", []Container{i(5), s(1), s(2), i(5), s(3), a(1)}, 8},
		{"sidecar with large init", []Container{s(10), i(200), a(100)}, 210},
		{"i 1 s 2 i 3 a 4", []Container{i(1), s(2), i(3), a(4)}, 6},
		{"s 2 i 6 a 1", []Container{s(2), i(6), a(1)}, 8},
		{"sidecars alone", []Container{s(1), s(2), s(3)}, 6},
	} {
		if got := PodTotal(podOf(row.containers...), func(c *Container) int64 { return c.Requests[CPU] }); got != row.want {
			t.Errorf("%s: %d, want %d", row.name, got, row.want)
		}
	}
}

func union(a, b []string) []string {
	all := slices.Concat(a, b)
	slices.Sort(all)
	return slices.Compact(all)
}

func minus(a, b []string) []string {
	return slices.DeleteFunc(slices.Clone(a), func(s string) bool { return slices.Contains(b, s) })
}

// TestBorrowable: an init container may use what runs after it, and what other init containers have, but nothing of a sidecar that runs
// beside it, even if an earlier init container used that.
func TestBorrowable(t *testing.T) {
	t.Parallel()
	p := podOf(Container{Role: Init}, Container{Role: Sidecar}, Container{Role: Init}, nothing, nothing)
	held := map[string][]string{"a": {"d1", "d2", "d6"}, "b": {"d6", "d7"}, "c": {"d8"}, "d": {"d2", "d3"}, "e": {"d4"}}
	for name, want := range map[string][]string{
		"a": {"d2", "d3", "d4", "d6", "d7", "d8"},
		"c": {"d1", "d2", "d3", "d4"},
	} {
		got := Borrowable(p, name, func(at int) []string { return held[p.Containers[at].Name] }, union, union, minus)
		if !slices.Equal(got, want) {
			t.Errorf("init container %s may borrow %v, want %v", name, got, want)
		}
	}
}

func TestReusable(t *testing.T) {
	t.Parallel()
	// The example of the device manager: i gets d1 d5 d6, the sidecar takes d6 over, the second init container d1 and d5.
	p := podOf(Container{Role: Init}, Container{Role: Sidecar}, Container{Role: Init}, nothing, nothing)
	held := map[string][]string{"a": {"d1", "d5", "d6"}, "b": {"d6"}, "c": {"d1", "d5"}, "d": {"d1", "d4"}}
	for name, want := range map[string][]string{
		"a": nil,
		"b": {"d6"}, // c and d have the others
		"c": {"d1", "d5"},
		"d": {"d1", "d5"},
		"e": {"d5"},
	} {
		got := Reusable(p, name, func(at int) []string { return held[p.Containers[at].Name] }, union, minus)
		if !slices.Equal(got, want) {
			t.Errorf("container %s may reuse %v, want %v", name, got, want)
		}
	}
}

func TestWalk(t *testing.T) {
	t.Parallel()
	p := podOf(Container{Role: Init}, Container{Role: Sidecar}, nothing)
	var seen []string
	for i, c := range p.Walk() {
		if c != &p.Containers[i] {
			t.Errorf("container %d is a copy", i)
		}
		seen = append(seen, c.Name+" "+c.Role.String())
		if i == 1 {
			break
		}
	}
	if want := []string{"a init", "b sidecar"}; !reflect.DeepEqual(seen, want) {
		t.Errorf("walk gave %v, want %v", seen, want)
	}
	if got, want := p.ContainerPaths(), []string{"pod.spec.initContainers[0]", "pod.spec.initContainers[1]",
		"pod.spec.containers[0]"}; !reflect.DeepEqual(got, want) {
		t.Errorf("paths %v, want %v", got, want)
	}
	if c := p.Container("b"); c == nil || c.Role != Sidecar {
		t.Errorf("container b is %v", c)
	}
	if c := p.Container("x"); c != nil {
		t.Errorf("unknown container is %v", c)
	}
}

func TestRoleText(t *testing.T) {
	t.Parallel()
	for _, r := range []Role{App, Init, Sidecar} {
		text, err := r.MarshalText()
		if err != nil {
			t.Fatal(err)
		}
		var back Role
		if err := back.UnmarshalText(text); err != nil || back != r {
			t.Errorf("%s came back as %v, %v", text, back, err)
		}
		if r.Feeds() != (r == Init) {
			t.Errorf("%s feeds: %v", r, r.Feeds())
		}
	}
	if _, err := json.Marshal(Role(7)); err == nil {
		t.Error("role 7 was written")
	}
	var r Role
	if err := json.Unmarshal([]byte(`"ephemeral"`), &r); err == nil {
		t.Error("role ephemeral was read")
	}
	if got := Role(7).String(); got != "role(7)" {
		t.Errorf("role 7 prints as %q", got)
	}
}
