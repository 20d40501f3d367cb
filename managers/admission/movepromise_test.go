package admission_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/berthd/berth/managers/admission"
	"github.com/berthd/berth/managers/hint"
	"github.com/berthd/berth/managers/ledger/ledgertest"
	"github.com/berthd/berth/managers/live"
	"github.com/berthd/berth/managers/memory"
	"github.com/berthd/berth/managers/numa"
	"github.com/berthd/berth/managers/topology"
	"github.com/berthd/berth/managers/workload"
)

// TestMoveWithinNodesOfEachContainer: a pod whose containers are on different NUMA nodes may move within them. Without a
// topology policy, another allocation would give one container the NUMA node of the other, and move its memory there.
func TestMoveWithinNodesOfEachContainer(t *testing.T) {
	t.Parallel()
	for movable, why := range map[workload.Movable]string{
		workload.MovableAnywhere:    "",
		workload.MovableWithinNodes: "pod default/a (a) would have to move, and cannot: the memory of a/c0 would leave NUMA nodes 1 for 0",
	} {
		h := nodesUnder(t, topology.None, hint.ContainerScope, ledgertest.NewJournal(), ledgertest.Open)
		a := podOf("a", [2]int64{2, 2}, [2]int64{5, 1})
		a.Annotations = map[string]string{workload.MovableAnnotation: string(movable)}
		h.admit(t, podOf("x", [2]int64{3, 4}), podOf("first", [2]int64{2, 5}), a, podOf("b", [2]int64{1, 1}))
		_, _, err := h.Remove(t.Context(), "first", admission.Scope{})
		must(t, err)
		h.admit(t, podOf("c", [2]int64{1, 4}), podOf("e", [2]int64{1, 2}))
		if got := h.has("a"); got != "6-7@1 8-12@0" {
			t.Fatalf("it has %s", got)
		}
		plan, err := h.PlanDefragment(t.Context(), live.DefragmentRequest{Pod: podOf("new", [2]int64{1, 6}), MaxMoves: 1})
		must(t, err)
		if plan.Why != why || plan.Fits() != (why == "") || len(plan.Moves) > 0 != (why == "") {
			t.Errorf("%s: fits %v after %d moves: %q", movable, plan.Fits(), len(plan.Moves), plan.Why)
		}
	}
}

// TestMoveNearExternalDevices: a container stays near devices that another program has allocated, also without a topology
// policy.
func TestMoveNearExternalDevices(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		near numa.Mask
		why  string
	}{
		"no device": {0, ""},
		"on its node": {numa.Of(0),
			"pod default/a (a) would have to move, and cannot: the devices of a/c0 are near NUMA nodes 0, and its "},
		"on both":         {numa.Of(0, 1), ""},
		"on another node": {numa.Of(1), ""},
	} {
		h := nodesUnder(t, topology.None, hint.ContainerScope, ledgertest.NewJournal(), ledgertest.Open)
		a := movable(podOf("a", [2]int64{2, 2}), workload.MovableAnywhere)
		a.Containers[0].ExternalDevices = []workload.ExternalDevice{{Resource: "example.com/nic", ID: "0", Nodes: row.near}}
		h.admit(t, a, podOf("b", [2]int64{5, 3}), podOf("c", [2]int64{6, 6}))
		plan, err := h.PlanDefragment(t.Context(), live.DefragmentRequest{Pod: podOf("new", [2]int64{1, 6}), MaxMoves: 1})
		must(t, err)
		if !strings.HasPrefix(plan.Why, row.why) || plan.Fits() != (row.why == "") || len(plan.Moves) > 0 != (row.why == "") {
			t.Errorf("%s: fits %v after %d moves: %q", name, plan.Fits(), len(plan.Moves), plan.Why)
		}
	}
}

// TestArrivedAsPlanned: a container that has moved has the affinity of its new allocation, also on CPUs that it keeps, and on
// those to which it has only grown.
func TestArrivedAsPlanned(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		topology topology.Policy
		memory   string
		pods     []workload.Pod
		to       workload.Pod
		has      string
	}{
		"it keeps its CPUs": {topology.BestEffort, memory.PolicyStatic,
			[]workload.Pod{podOf("a", [2]int64{2, 1}), podOf("b", [2]int64{5, 6}), podOf("c", [2]int64{8, 1})},
			podOf("a", [2]int64{2, 8}), "1-2@1"},
		"it only grows": {topology.Restricted, memory.PolicyNone,
			[]workload.Pod{podOf("a", [2]int64{4, 1})}, podOf("a", [2]int64{12, 1}), "1-4,8-15@"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			config := nodesUnder(t, row.topology, hint.ContainerScope, ledgertest.NewJournal(), ledgertest.Open).config
			config.Memory.Policy = row.memory
			h := nodesOn(t, config, twoNodesOf(), ledgertest.NewJournal(), ledgertest.Open)
			h.admit(t, row.pods...)
			got, err := h.Resize(t.Context(), resizeTo(row.to, false))
			must(t, err)
			if got.Outcome != admission.Admitted || got.Plan == nil {
				t.Fatalf("%s %s, plan %+v", got.Outcome, got.Message, got.Plan)
			}
			h.advance(t, "a")
			if has := h.has("a"); has != row.has {
				t.Errorf("it has %s", has)
			}
			h.arrived(t, got.Plan)
		})
	}
}

// TestCancelWhileMemoryWaits: a move that waits for the limit of bytes per second can be canceled at once, as long as none of its
// memory has begun to move.
func TestCancelWhileMemoryWaits(t *testing.T) {
	t.Parallel()
	size := func(cpus int64) workload.Pod {
		return movable(podOf("a", [2]int64{cpus, 2}), workload.MovableAnywhere)
	}
	resize := func(t *testing.T, h *twoNodes, cpus int64) {
		got, err := h.Resize(t.Context(), resizeTo(size(cpus), false))
		must(t, err)
		if got.Outcome != admission.Admitted || got.Plan == nil {
			t.Fatalf("%s %s, plan %+v", got.Outcome, got.Message, got.Plan)
		}
	}
	for name, row := range map[string]struct {
		begin, cancel func(*testing.T, *twoNodes)
		migrates      bool
	}{
		"a resize": {func(t *testing.T, h *twoNodes) { resize(t, h, 6) },
			func(t *testing.T, h *twoNodes) { resize(t, h, 2) }, false},
		"a resize, its memory moves": {func(t *testing.T, h *twoNodes) { resize(t, h, 6) },
			func(t *testing.T, h *twoNodes) { resize(t, h, 2) }, true},
		"of its own":                   {relocateA, func(t *testing.T, h *twoNodes) { must(t, h.CancelMove(t.Context(), "a")) }, false},
		"of its own, its memory moves": {relocateA, func(t *testing.T, h *twoNodes) { must(t, h.CancelMove(t.Context(), "a")) }, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newTwoNodes(t, hint.ContainerScope)
			h.admit(t, size(2), podOf("b", [2]int64{4, 1}))
			row.begin(t, h)
			for _, err := h.Advance(t.Context(), "a", true); !errors.Is(err, live.ErrMemoryStays); _,
				err = h.Advance(t.Context(), "a", true) {
				must(t, err)
			}
			if row.migrates {
				_, err := h.Advance(t.Context(), "a", false)
				must(t, err)
			}
			row.cancel(t, h)
			for done := false; !done; {
				m, err := h.Advance(t.Context(), "a", true)
				if row.migrates && errors.Is(err, live.ErrMemoryStays) {
					return // what has moved counts on its way back, too
				}
				must(t, err)
				done = m.Done
			}
			if has := h.has("a"); row.migrates || has != "1-2@0" {
				t.Errorf("it has %s", has)
			}
		})
	}
}

// relocateA begins a move of pod a, which makes room for another pod.
func relocateA(t *testing.T, h *twoNodes) {
	t.Helper()
	h.admit(t, podOf("c", [2]int64{6, 1}))
	plan, err := h.PlanDefragment(t.Context(), live.DefragmentRequest{Pod: podOf("new", [2]int64{3, 1}), MaxMoves: 1})
	must(t, err)
	if len(plan.Moves) != 1 {
		t.Fatal(plan.Why)
	}
	must(t, h.Relocate(t.Context(), plan.Moves[0], 0))
}

// TestNoPodMayMove: the reason says whether a pod moves now, or has moved already.
func TestNoPodMayMove(t *testing.T) {
	t.Parallel()
	h := newTwoNodes(t, hint.ContainerScope)
	h.admit(t, movable(podOf("a", [2]int64{2, 2}), workload.MovableAnywhere), podOf("b", [2]int64{4, 1}))
	relocateA(t, h)
	why := func(stay ...string) string {
		plan, err := h.PlanDefragment(t.Context(), live.DefragmentRequest{Pod: podOf("large", [2]int64{7, 1}), MaxMoves: 1,
			Stay: stay})
		must(t, err)
		return plan.Why
	}
	if got := why(); got != "pod default/a (a) is moving now, and no other one may be moved: try again when it has arrived" {
		t.Errorf("while a moves: %s", got)
	}
	h.advance(t, "a")
	if got := why("a"); got != "each pod that may be moved has moved already" {
		t.Errorf("after a has moved: %s", got)
	}
}
