package admission_test

import (
	"testing"

	"github.com/berthd/berth/managers/admission"
	"github.com/berthd/berth/managers/hint"
	"github.com/berthd/berth/managers/workload"
)

// TestPodScopeWithInitMemory: with pod scope, an ordinary init container with pinned memory and the containers after it are on
// one node, and what the init container had goes on to them. So the pod takes the larger of the two sums from its node. Each
// node has 10 GiB; node 0 has CPUs 1-7 for pods.
func TestPodScopeWithInitMemory(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		init   [2]int64 // CPUs and GiB
		apps   [][2]int64
		has    string
		gib    uint64 // that the pod takes from node 0 when it is admitted
		fits   [2]int64
		second string // where a pod of this size gets its CPUs and memory
	}{
		"the others have more": {[2]int64{2, 6}, [][2]int64{{1, 3}, {2, 4}}, "1-2@0 1@0 2-3@0", 7, [2]int64{1, 3},
			"4@0"},
		"and the rest is too small": {[2]int64{2, 6}, [][2]int64{{1, 3}, {2, 4}}, "1-2@0 1@0 2-3@0", 7, [2]int64{1, 4},
			"8@1"},
		"it has more": {[2]int64{3, 8}, [][2]int64{{1, 2}, {1, 1}}, "1-3@0 1@0 2@0", 8, [2]int64{1, 2},
			"4@0"},
		"more than a node has in sum, never at once": {[2]int64{4, 9}, [][2]int64{{3, 5}, {3, 5}}, "1-4@0 1-3@0 4-6@0", 10,
			[2]int64{1, 1}, "8@1"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newTwoNodes(t, hint.PodScope)
			p := podOf("a", append([][2]int64{row.init}, row.apps...)...)
			p.Containers[0].Role = workload.Init
			h.admit(t, p)
			if got := h.has("a"); got != row.has {
				t.Errorf("the pod has %s, want %s", got, row.has)
			}
			if got := h.ledger.View().MemoryUse().Held("memory"); got[0] != row.gib<<30 || got[1] != 0 {
				t.Errorf("it holds %d and %d bytes, want %d GiB of node 0", got[0], got[1], row.gib)
			}
			h.admit(t, podOf("b", row.fits))
			if got := h.has("b"); got != row.second {
				t.Errorf("another pod has %s, want %s", got, row.second)
			}
		})
	}
	// No node has what its largest moment needs.
	h := newTwoNodes(t, hint.PodScope)
	p := podOf("a", [2]int64{1, 11}, [2]int64{1, 1})
	p.Containers[0].Role = workload.Init
	v, err := h.Admit(t.Context(), admission.Request{Pod: p})
	must(t, err)
	if v.Outcome != admission.Rejected {
		t.Errorf("%v: it has %s", v.Outcome, h.has("a"))
	}
}
