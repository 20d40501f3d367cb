package topology

import (
	"strconv"
	"strings"
	"testing"

	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/hint"
	"github.com/berthd/berth/managers/numa"
	"github.com/berthd/berth/managers/workload"
)

func TestRounds(t *testing.T) {
	t.Parallel()
	amount := workload.Quantities{workload.CPU: 2000}
	plain := &workload.Pod{UID: "plain", Containers: []workload.Container{{Name: "a"}, {Name: "b"}}}
	whole := &workload.Pod{UID: "whole", Containers: plain.Containers, Resources: &workload.Resources{Requests: amount}}
	on := workload.Features{PodLevelResources: true, PodLevelResourceManagers: true}
	const (
		message   = "Resources cannot be allocated with Topology locality"
		container = "Pod Scope pod with pod-level resources failed admission with a container-level topology manager"
		pod       = "Pod Scope pod with pod-level resources failed admission under pod-scope topology manager"
	)
	type round struct {
		merge bool
		ask   int
		plan  []int
	}
	for _, row := range []struct {
		name     string
		config   Config
		pod      *workload.Pod
		features workload.Features
		want     []round
		refusal  string
	}{
		{"none", Config{Policy: None, Scope: hint.PodScope}, whole, on, []round{{false, 0, []int{0, 1}}}, container},
		{"container", Config{Policy: BestEffort, Scope: hint.ContainerScope}, plain, on,
			[]round{{true, 0, []int{0}}, {true, 1, []int{1}}}, message},
		{"container, pod-level", Config{Policy: BestEffort, Scope: hint.ContainerScope}, whole, on,
			[]round{{true, 0, []int{0}}, {true, 1, []int{1}}}, container},
		{"pod", Config{Policy: BestEffort, Scope: hint.PodScope}, plain, on, []round{{true, -1, []int{0, 1}}}, message},
		{"pod, pod-level", Config{Policy: BestEffort, Scope: hint.PodScope}, whole, on, []round{{true, -1, []int{-1}}}, pod},
		{"pod, pod-level, not managed", Config{Policy: BestEffort, Scope: hint.PodScope}, whole,
			workload.Features{PodLevelResources: true}, []round{{true, -1, []int{0, 1}}}, message},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			m, err := New(row.config, 1, numa.Distances{})
			if err != nil {
				t.Fatal(err)
			}
			got := m.Rounds(row.pod, row.features)
			if len(got) != len(row.want) {
				t.Fatalf("got %d rounds, want %d", len(got), len(row.want))
			}
			for i, want := range row.want {
				r := got[i]
				if r.Merge != want.merge || r.Merge && (r.Hints != hint.Request{Pod: row.pod, Container: want.ask}) ||
					len(r.Plan) != len(want.plan) {
					t.Fatalf("round %d: got %+v, want %+v", i, r, want)
				}
				for j, c := range want.plan {
					if (r.Plan[j] != hint.Request{Pod: row.pod, Container: c}) {
						t.Errorf("round %d, plan %d: got %+v, want container %d", i, j, r.Plan[j], c)
					}
				}
			}
			refusal := m.Refusal(row.pod, row.features)
			if refusal.Class != errdefs.Refused || refusal.Reason != errdefs.TopologyAffinityError || refusal.Message != row.refusal {
				t.Errorf("refusal %+v, want %q", refusal, row.refusal)
			}
		})
	}
}

// TestRoundsOfWholePods: with planning by pod, init containers that end come last, and borrow.
func TestRoundsOfWholePods(t *testing.T) {
	t.Parallel()
	p := &workload.Pod{Containers: []workload.Container{
		{Name: "warm", Role: workload.Init}, {Name: "proxy", Role: workload.Sidecar}, {Name: "load", Role: workload.Init}, {Name: "main"},
	}}
	for _, row := range []struct {
		policy   Policy
		scope    hint.Scope
		planning Planning
		want     string
	}{
		{BestEffort, hint.ContainerScope, ByPod, "merge 1; merge 3; merge borrow 0; merge borrow 2"},
		{BestEffort, hint.PodScope, ByPod, "merge 1 3; borrow 0; borrow 2"},
		{None, hint.ContainerScope, ByPod, "1 3; borrow 0; borrow 2"},
		{BestEffort, hint.ContainerScope, ByContainer, "merge 0; merge 1; merge 2; merge 3"},
		{BestEffort, hint.PodScope, "", "merge 0 1 2 3"},
	} {
		m, err := New(Config{Policy: row.policy, Scope: row.scope, Planning: row.planning}, 1, numa.Distances{})
		if err != nil {
			t.Fatal(err)
		}
		var rounds []string
		for _, r := range m.Rounds(p, workload.Features{}) {
			var words []string
			if r.Merge {
				words = append(words, "merge")
			}
			if r.Borrows {
				words = append(words, "borrow")
			}
			for _, req := range r.Plan {
				if req.Borrows != r.Borrows {
					t.Errorf("%+v: container %d borrows: %t", row, req.Container, req.Borrows)
				}
				words = append(words, strconv.Itoa(req.Container))
			}
			rounds = append(rounds, strings.Join(words, " "))
		}
		if got := strings.Join(rounds, "; "); got != row.want {
			t.Errorf("%s, %s scope, %s: %q, want %q", row.policy, row.scope, row.planning, got, row.want)
		}
	}
	if _, err := New(Config{Policy: None, Planning: "whole"}, 1, numa.Distances{}); errdefs.ClassOf(err) != errdefs.Invalid {
		t.Errorf("an unknown planning: %v", err)
	}
}
