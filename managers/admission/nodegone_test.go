package admission_test

import (
	"testing"

	"github.com/berthd/berth/managers/admission"
	"github.com/berthd/berth/managers/hint"
	"github.com/berthd/berth/managers/live"
	"github.com/berthd/berth/managers/machine"
	"github.com/berthd/berth/managers/machine/machinetest"
	"github.com/berthd/berth/managers/topology"
	"github.com/berthd/berth/managers/workload"
)

// threeNodes are NUMA nodes of 8 CPUs and 10 GiB each, of which some are gone.
func threeNodes(gone ...int) *machine.Topology {
	var options []machinetest.Option
	for id := range 3 {
		options = append(options, machinetest.Memory(id, uint64(10*gi)))
	}
	return machinetest.Build("3s1n8c1t", append(options, machinetest.WithoutNodes(gone...))...)
}

// TestHalfOfAGroupIsGone: a container has memory of two NUMA nodes, and one of them is gone. What it has is on the other node
// then. Others get what is left there, and none gets memory of the node that is gone.
func TestHalfOfAGroupIsGone(t *testing.T) {
	t.Parallel()
	for _, policy := range []topology.Policy{topology.None, topology.BestEffort, topology.Restricted} {
		t.Run(string(policy), func(t *testing.T) {
			t.Parallel()
			for name, row := range map[string]struct {
				gone int
				left string // the memory nodes of what fits then
			}{
				"the higher one": {1, "0"},
				"the lower one":  {0, "1"},
			} {
				h := changing(t, policy, hint.ContainerScope)
				h.config.CPU.ReservedCPUs = threeNodes().CPUsInNode(2).Lowest(1)
				h.become(t, threeNodes())
				h.admit(t, podOf("a", [2]int64{10, 12}), podOf("full", [2]int64{1, 10}))
				h.become(t, threeNodes(row.gone))
				pod := func(uid string, gib int64) workload.Pod {
					p := podOf(uid, [2]int64{1, gib})
					p.Containers[0].Requests[workload.CPU] = 500 // of the shared ones
					return p
				}
				refused := func(uid string, gib int64) {
					t.Helper()
					v, err := h.Admit(t.Context(), admission.Request{Pod: pod(uid, gib)})
					must(t, err)
					if v.Outcome == admission.Admitted {
						t.Errorf("%s: pod %s has %s", name, uid, h.has(uid))
					}
				}
				refused("b", 1) // pod a has 12 GiB, and 10 are left
				p := podOf("a", [2]int64{10, 9})
				got, err := h.Resize(t.Context(), live.ResizeRequest{UID: "a", Changes: []workload.Change{
					{Container: "c0", Requests: p.Containers[0].Requests, Limits: p.Containers[0].Limits},
				}})
				must(t, err)
				if got.Outcome != admission.Admitted {
					t.Fatalf("%s: %s", name, got.Message)
				}
				h.admit(t, pod("c", 1))
				if c, _ := h.ledger.View().Pod("c"); c.MemoryNodes("c0").String() != row.left {
					t.Errorf("%s: pod c has %s", name, h.has("c"))
				}
				refused("d", 1)
			}
		})
	}
}
