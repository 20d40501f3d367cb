package workload

import (
	"slices"
	"strings"
	"testing"
)

// sized is a pod with every kind of container, each with cpu and memory.
func sized() Pod {
	q := func() Quantities { return Quantities{CPU: 1000, Memory: 1 << 20, "example.com/gpu": 1} }
	return Pod{
		UID: "a", Name: "a", Namespace: "default", Labels: map[string]string{"x": "1"},
		Containers: []Container{
			{Name: "setup", Role: Init, Requests: q(), Limits: q()},
			{Name: "proxy", Role: Sidecar, Requests: q(), Limits: q()},
			{Name: "main", Requests: q(), Limits: q(), ResizePolicy: map[Resource]string{Memory: RestartContainer}},
		},
		Resources: &Resources{Requests: Quantities{CPU: 4000, Memory: 1 << 30}, Limits: Quantities{CPU: 4000, Memory: 1 << 30}},
	}
}

func TestCheckResize(t *testing.T) {
	t.Parallel()
	features := Features{PodLevelResources: true}
	set := func(c *Container, r Resource, n int64) { c.Requests[r], c.Limits[r] = n, n }
	tests := []struct {
		name   string
		change func(*Pod)
		want   string // empty: may be
	}{
		{"nothing", func(*Pod) {}, ""},
		{"app", func(p *Pod) { set(&p.Containers[2], CPU, 500); set(&p.Containers[2], Memory, 2<<20) }, ""},
		{"sidecar", func(p *Pod) { set(&p.Containers[1], CPU, 500) }, ""},
		{"pod", func(p *Pod) { p.Resources.Requests[CPU], p.Resources.Limits[CPU] = 5000, 5000 }, ""},
		{"labels", func(p *Pod) { p.Labels["x"] = "2" }, ""},
		{"added limit", func(p *Pod) { p.Containers[2].Limits[Memory] = 9 << 20 }, ""},
		{"init", func(p *Pod) { set(&p.Containers[0], CPU, 500); set(&p.Containers[0], Memory, 2<<20) }, ""},
		{"removed request of init", func(p *Pod) { delete(p.Containers[0].Requests, CPU) },
			`spec.initContainers[0].resources.requests["cpu"]: may be changed in place but not removed`},
		{"device", func(p *Pod) { set(&p.Containers[2], "example.com/gpu", 2) }, "differs from the admitted pod in more than"},
		{"overhead", func(p *Pod) { p.Overhead = Quantities{CPU: 1} }, "differs from the admitted pod in more than"},
		{"another container", func(p *Pod) { p.Containers = append(p.Containers, Container{Name: "more"}) },
			"differs from the admitted pod in more than"},
		{"policy", func(p *Pod) { p.Containers[2].ResizePolicy = nil }, "differs from the admitted pod in more than"},
		{"removed request", func(p *Pod) { delete(p.Containers[2].Requests, CPU) },
			`requests["cpu"]: may be changed in place but not removed`},
		{"removed limit", func(p *Pod) { delete(p.Containers[2].Limits, Memory) },
			`limits["memory"]: may be changed in place but not removed`},
		{"removed from the pod", func(p *Pod) { delete(p.Resources.Limits, Memory) },
			`limits["memory"]: may be changed in place but not removed`},
		{"class", func(p *Pod) { p.Resources.Requests[CPU] = 3500 }, "it was Guaranteed and would be Burstable"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			old, wanted := sized(), sized()
			tt.change(&wanted)
			got := CheckResize(&old, &wanted, features)
			if tt.want == "" && len(got) > 0 || tt.want != "" && (len(got) == 0 || !strings.Contains(got[0].String(), tt.want)) {
				t.Errorf("got %v, want %q", got, tt.want)
			}
			if again := sized(); tt.want == "" && len(CheckResize(&wanted, &again, features)) > 0 && tt.name != "added limit" {
				t.Errorf("the way back: %v", CheckResize(&wanted, &again, features))
			}
		})
	}
}

func TestWhatAResizeChanges(t *testing.T) {
	t.Parallel()
	old, wanted := sized(), sized()
	if RequestsChange(&old, &wanted, CPU) || len(Restarts(&old, &wanted)) > 0 {
		t.Error("nothing changed")
	}
	wanted.Containers[2].Limits[CPU] = 1500
	if RequestsChange(&old, &wanted, CPU) || len(Restarts(&old, &wanted)) > 0 {
		t.Error("a limit of cpu neither changes requests nor restarts")
	}
	wanted.Containers[2].Limits[Memory] = 2 << 20
	if got := Restarts(&old, &wanted); !slices.Equal(got, []string{"main"}) {
		t.Errorf("restarts %v", got)
	}
	wanted.Containers[1].Requests[CPU] = 999
	if !RequestsChange(&old, &wanted, CPU) || RequestsChange(&old, &wanted, Memory) {
		t.Error("cpu requests changed, memory requests did not")
	}
	pod := sized()
	pod.Resources.Requests[Memory] = 2 << 30
	if !RequestsChange(&old, &pod, Memory) {
		t.Error("the pod's own request changed")
	}
}

// TestResizeOfAnInitContainerThatWouldRestart: an ordinary init container cannot start again for a resize.
func TestResizeOfAnInitContainerThatWouldRestart(t *testing.T) {
	t.Parallel()
	pod := func(milli int64) *Pod {
		p := sized()
		p.Containers[0].ResizePolicy = map[Resource]string{Memory: RestartContainer}
		p.Containers[0].Requests[CPU], p.Containers[0].Limits[CPU] = milli, milli
		return &p
	}
	err := CheckResize(pod(1000), pod(500), Features{PodLevelResources: true}).Err("resize")
	if want := "spec.initContainers[0].resources: an ordinary init container whose resizePolicy is RestartContainer cannot be resized in place"; err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("got %v, want %q", err, want)
	}
	if vs := CheckResize(pod(500), pod(500), Features{PodLevelResources: true}); len(vs) > 0 {
		t.Error(vs)
	}
}
