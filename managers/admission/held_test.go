package admission_test

import (
	"context"
	"fmt"
	"testing"

	"pgregory.net/rapid"

	"github.com/berthd/berth/managers/admission"
	"github.com/berthd/berth/managers/hint"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/ledger/ledgertest"
	"github.com/berthd/berth/managers/live"
	"github.com/berthd/berth/managers/machine/machinetest"
	"github.com/berthd/berth/managers/topology"
	"github.com/berthd/berth/managers/transition"
	"github.com/berthd/berth/managers/workload"
)

// advanceTo makes the steps of a pod's move up to one of a kind.
func (h *twoNodes) advanceTo(t *testing.T, uid string, kind transition.Kind) {
	t.Helper()
	for {
		m, err := h.Advance(t.Context(), uid, false)
		must(t, err)
		if m.Done {
			t.Fatalf("the move of pod %s has no step %q", uid, kind)
		}
		if m.Step != nil && m.Step.Kind == kind {
			return
		}
	}
}

// takeAll admits pods with one exclusive CPU until one is rejected.
func (h *twoNodes) takeAll(t *testing.T) {
	t.Helper()
	for i := 0; ; i++ {
		thief := podOf(fmt.Sprint("thief", i), [2]int64{1, 1})
		for _, amounts := range []workload.Quantities{thief.Containers[0].Requests, thief.Containers[0].Limits} {
			amounts[workload.Memory] = 1 << 20
		}
		v, err := h.Admit(t.Context(), admission.Request{Pod: thief})
		must(t, err)
		if v.Outcome != admission.Admitted {
			return
		}
	}
}

// hasRequests fails if a container has fewer CPUs than it requests.
func (h *twoNodes) hasRequests(t ledgertest.T, uid string) {
	t.Helper()
	view := h.ledger.View()
	p, _ := view.Pod(uid)
	for _, c := range p.Pod.Containers {
		set, _, _ := view.ContainerCPUs(ledger.Owner{Pod: uid, Container: c.Name})
		if want := int(c.Requests[workload.CPU] / 1000); set.Len() < want {
			t.Fatalf("container %s has CPUs %s and requests %d", c.Name, set, want)
		}
	}
}

// Other pods get nothing of what a moving pod had or will have, so a move that began ends, and so does one that is
// reversed at any step.
func TestMovesHoldBothSides(t *testing.T) {
	t.Parallel()
	movable := podOf("a", [2]int64{2, 2}, [2]int64{2, 2})
	movable.Annotations = map[string]string{workload.MovableAnnotation: "anywhere"}
	start := func(t *testing.T) *twoNodes {
		h := newTwoNodes(t, hint.PodScope)
		h.admit(t, movable, podOf("b", [2]int64{2, 1}), podOf("f", [2]int64{3, 3}))
		d, err := h.PlanDefragment(t.Context(), live.DefragmentRequest{Pod: podOf("big", [2]int64{5, 8}), MaxMoves: 4})
		must(t, err)
		must(t, h.Relocate(t.Context(), d.Moves[0], 0))
		return h
	}
	for _, kind := range []transition.Kind{"", transition.Migrate, transition.Narrow} {
		t.Run("to the end, after "+string(kind), func(t *testing.T) {
			t.Parallel()
			h := start(t)
			if kind != "" {
				h.advanceTo(t, "a", kind)
			}
			h.takeAll(t)
			h.advance(t, "a")
			if got := h.has("a"); got != "11-12@1 13-14@1" {
				t.Errorf("it has %s", got)
			}
		})
		t.Run("canceled after "+string(kind), func(t *testing.T) {
			t.Parallel()
			h := start(t)
			if kind != "" {
				h.advanceTo(t, "a", kind)
			}
			h.takeAll(t)
			must(t, h.CancelMove(t.Context(), "a"))
			h.advance(t, "a")
			if got := h.has("a"); got != "1-2@0 3-4@0" {
				t.Errorf("it has %s", got)
			}
		})
		t.Run("resized back after "+string(kind), func(t *testing.T) {
			t.Parallel()
			h := newTwoNodes(t, hint.PodScope)
			before := podOf("a", [2]int64{4, 2}, [2]int64{1, 2})
			h.admit(t, before, podOf("b", [2]int64{2, 1}))
			got, err := h.Resize(t.Context(), resizeTo(podOf("a", [2]int64{2, 2}, [2]int64{6, 2}), false))
			must(t, err)
			if got.Outcome != admission.Admitted || got.Plan == nil {
				t.Fatalf("%s %s", got.Outcome, got.Message)
			}
			if kind != "" {
				h.advanceTo(t, "a", kind)
			}
			had := h.has("b")
			back, err := h.Resize(t.Context(), resizeTo(before, false))
			must(t, err)
			h.takeAll(t)
			h.advance(t, "a")
			if back.Outcome != admission.Admitted || h.has("a") != "1-4@0 5@0" || h.has("b") != had {
				t.Errorf("%s %s; it has %s", back.Outcome, back.Message, h.has("a"))
			}
			h.hasRequests(t, "a")
		})
	}
}

// A turn of replacements begins the moves of two pods. The containers of the first one exchange CPUs.
func TestTwoPodsAreReplaced(t *testing.T) {
	t.Parallel()
	h := changing(t, topology.None, hint.ContainerScope)
	h.admit(t, podOf("a", [2]int64{3, 2}, [2]int64{2, 3}), podOf("b", [2]int64{1, 1}, [2]int64{1, 1}))
	h.become(t, twoNodesOf(machinetest.Offline("1-3,6"), machinetest.Memory(0, uint64(6*gi))))
	h.admit(t, podOf("d", [2]int64{3, 1}))
	for _, l := range live.Losses(h.ledger.View()) {
		plan, err := h.PlanReplacement(t.Context(), l)
		must(t, err)
		must(t, h.Relocate(t.Context(), plan, 0))
	}
	for _, uid := range []string{"a", "b"} {
		h.advance(t, uid)
		h.hasRequests(t, uid)
	}
}

// A container cannot grow onto CPUs that another container of its pod has to release first: it would be admitted
// with more than it has.
func TestResizeWaitsForItsPod(t *testing.T) {
	t.Parallel()
	h := changing(t, topology.BestEffort, hint.PodScope)
	h.admit(t, podOf("a", [2]int64{1, 1}, [2]int64{3, 1}))
	got, err := h.Resize(t.Context(), resizeTo(podOf("a", [2]int64{6, 1}, [2]int64{3, 1}), false))
	must(t, err)
	if got.Outcome != admission.Deferred || h.has("a") != "1@0 2-4@0" {
		t.Errorf("%s %s; it has %s", got.Outcome, got.Message, h.has("a"))
	}
}

// TestRandomMovesAmongOthers: on random histories in which pods come and go, are resized and resized back between the
// steps of the moves of others, each step of a move and each step back is possible, and no container has fewer CPUs than
// it requests.
func TestRandomMovesAmongOthers(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(r *rapid.T) {
		scope := rapid.SampledFrom([]hint.Scope{hint.ContainerScope, hint.PodScope}).Draw(r, "scope")
		policy := rapid.SampledFrom([]topology.Policy{topology.SingleNUMANode, topology.Restricted, topology.BestEffort}).Draw(r, "policy")
		h := changing(r, policy, scope)
		before := map[string]workload.Pod{} // of the resize that moves a pod
		step := func(uid string) bool {
			m, err := h.Advance(context.Background(), uid, false)
			must(r, err)
			return m.Done
		}
		for i := range rapid.IntRange(10, 30).Draw(r, "operations") {
			amounts := func() (out [][2]int64) {
				for range 2 {
					out = append(out, [2]int64{rapid.Int64Range(1, 5).Draw(r, "cpus"), rapid.Int64Range(1, 3).Draw(r, "gib")})
				}
				return out
			}
			var moving []string
			for p := range h.ledger.View().Pods() {
				if p.Move != nil {
					moving = append(moving, p.UID())
				}
			}
			switch op := rapid.IntRange(0, 9).Draw(r, "operation"); {
			case op <= 2:
				h.tryAdmit(r, movable(podOf(fmt.Sprint("p", i), amounts()[:rapid.IntRange(1, 2).Draw(r, "containers")]...),
					workload.MovableAnywhere))
			case op == 3:
				h.removeOne(r)
			case op == 4:
				if pod, ok := h.ledger.View().Pod(h.drawPod(r, "resized")); ok && pod.Move == nil {
					_, err := h.Resize(context.Background(), resizeTo(podOf(pod.UID(), amounts()[:len(pod.Pod.Containers)]...), false))
					must(r, err)
					before[pod.UID()] = pod.Pod
				}
			case op == 5:
				plan, err := h.PlanDefragment(context.Background(), live.DefragmentRequest{Pod: podOf(fmt.Sprint("p", i),
					amounts()[0]), MaxMoves: 3})
				must(r, err)
				if len(plan.Moves) > 0 {
					must(r, h.Relocate(context.Background(), plan.Moves[0], 0))
				}
			case len(moving) == 0:
			case op == 6:
				uid := rapid.SampledFrom(moving).Draw(r, "turns back")
				pod, _ := h.ledger.View().Pod(uid)
				switch {
				case pod.Move.SameAmounts:
					must(r, h.CancelMove(context.Background(), uid))
				case pod.Move.Before != "":
					got, err := h.Resize(context.Background(), resizeTo(before[uid], false))
					must(r, err)
					if got.Outcome != admission.Admitted {
						r.Fatalf("pod %s is not resized back: %s", uid, got.Message)
					}
				}
			default:
				step(rapid.SampledFrom(moving).Draw(r, "moves on"))
			}
			h.checkOwners(r)
			for p := range h.ledger.View().Pods() {
				h.hasRequests(r, p.UID())
			}
		}
		for p := range h.ledger.View().Pods() {
			for n := 0; !step(p.UID()); n++ {
				if n > 50 {
					r.Fatalf("pod %s does not arrive: it has %s", p.UID(), h.has(p.UID()))
				}
			}
			h.checkOwners(r)
		}
	})
}
