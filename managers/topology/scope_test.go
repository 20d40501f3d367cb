package topology

import (
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
