package admission_test

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/berthd/berth/managers/admission"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/hint"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/ledger/check"
	"github.com/berthd/berth/managers/ledger/ledgertest"
	"github.com/berthd/berth/managers/live"
	"github.com/berthd/berth/managers/memory"
	"github.com/berthd/berth/managers/topology"
	"github.com/berthd/berth/managers/transition"
	"github.com/berthd/berth/managers/workload"
)

// movable is a pod that may be moved.
func movable(p workload.Pod, to workload.Movable) workload.Pod {
	p.Annotations = map[string]string{workload.MovableAnnotation: string(to)}
	return p
}

// onGPU requests a GPU for the first container.
func onGPU(p workload.Pod) workload.Pod {
	p.Containers[0].Limits[gpu], p.Containers[0].Requests[gpu] = 1, 1
	return p
}

// carryOut makes the moves of a plan, and each of their steps.
func (h *twoNodes) carryOut(t ledgertest.T, moves []live.Relocation) (steps []string) {
	t.Helper()
	for _, m := range moves {
		must(t, h.Relocate(context.Background(), m, 0))
		h.checkMove(t, m.UID)
		for range 50 {
			moved, err := h.Advance(context.Background(), m.UID, false)
			must(t, err)
			h.checkMove(t, m.UID)
			if moved.Step != nil {
				steps = append(steps, moved.Step.String())
			}
			if moved.Done {
				break
			}
		}
		h.arrived(t, m.Plan)
	}
	return steps
}

// arrived compares what pods have after a plan with what the plan has promised, also the affinity.
func (h *twoNodes) arrived(t ledgertest.T, plan *transition.Plan) {
	t.Helper()
	for _, change := range plan.Changes {
		pod, _ := h.ledger.View().Pod(change.Pod)
		for _, want := range change.To {
			if got, ok := pod.Claim(want.Owner.Container, want.Resource); !ok || !reflect.DeepEqual(got, want) {
				t.Fatalf("pod %s has arrived: %s has %+v of %s, want %+v", change.Pod, want.Owner, got, want.Resource, want)
			}
		}
	}
}

// checkMove compares a step of a move with the invariants on a machine that does not change: there is no finding at all.
func (h *twoNodes) checkMove(t ledgertest.T, uid string) {
	t.Helper()
	view := h.ledger.View()
	for _, f := range check.View(view) {
		t.Fatalf("pod %s moves: %s", uid, f.Text)
	}
	h.checkOwners(t)
}

func TestDefragment(t *testing.T) {
	t.Parallel()
	anywhere := func(uid string, cpus, gib int64) workload.Pod {
		return movable(podOf(uid, [2]int64{cpus, gib}), workload.MovableAnywhere)
	}
	for name, row := range map[string]struct {
		pods  []workload.Pod // the first ones are on node 0, with CPUs 1-7
		most  int
		wants workload.Pod
		moves string // the pods that move
		why   string
	}{
		"it fits": {[]workload.Pod{anywhere("a", 3, 1)}, 1, podOf("new", [2]int64{4, 1}), "", ""},
		"the cheaper one moves": {[]workload.Pod{anywhere("a", 3, 2), anywhere("b", 3, 1), anywhere("c", 5, 1)}, 1,
			podOf("new", [2]int64{4, 1}), "b", ""},
		"one may not move": {[]workload.Pod{anywhere("a", 3, 2), podOf("b", [2]int64{3, 1}), anywhere("c", 5, 1)}, 1,
			podOf("new", [2]int64{4, 1}), "a", ""},
		"none may move": {[]workload.Pod{podOf("a", [2]int64{3, 2}), podOf("c", [2]int64{5, 1}), podOf("b", [2]int64{3, 1})}, 1,
			podOf("new", [2]int64{4, 1}), "", "no pod with exclusive CPUs or pinned memory may be moved"},
		"only on its node": {[]workload.Pod{movable(podOf("a", [2]int64{3, 2}), workload.MovableWithinNodes), podOf("b", [2]int64{3, 1}),
			podOf("c", [2]int64{5, 1})},
			1, podOf("new", [2]int64{4, 1}), "", "pod default/a (a) would have to move, and cannot: "},
		"two have to": {[]workload.Pod{anywhere("a", 2, 1), anywhere("b", 2, 1), anywhere("c", 2, 1), podOf("d", [2]int64{4, 1})},
			2, podOf("new", [2]int64{5, 1}), "a b", ""},
		"more than allowed": {[]workload.Pod{anywhere("a", 2, 1), anywhere("b", 2, 1), anywhere("c", 2, 1), podOf("d", [2]int64{4, 1})},
			1, podOf("new", [2]int64{5, 1}), "", "more pods would have to move"},
		"for memory": {[]workload.Pod{anywhere("a", 1, 4), podOf("b", [2]int64{1, 4}), podOf("c", [2]int64{7, 5})}, 1,
			podOf("new", [2]int64{1, 6}), "a", ""},
		"near a device": {[]workload.Pod{onGPU(anywhere("a", 3, 2)), podOf("b", [2]int64{3, 1}), podOf("c", [2]int64{5, 1})}, 1,
			podOf("new", [2]int64{4, 1}), "", "pod default/a (a) would have to move, and cannot: "},
		"never": {[]workload.Pod{anywhere("a", 3, 2)}, 1, podOf("new", [2]int64{9, 1}), "",
			"it would not fit either without all that can move"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newTwoNodes(t, hint.ContainerScope)
			h.admit(t, row.pods...)
			before := h.ledger.View()
			plan, err := h.PlanDefragment(t.Context(), live.DefragmentRequest{Pod: row.wants, MaxMoves: row.most})
			must(t, err)
			if h.ledger.View() != before {
				t.Error("a plan has changed the ledger")
			}
			var moves []string
			for _, m := range plan.Moves {
				moves = append(moves, m.UID)
			}
			if got := strings.Join(moves, " "); got != row.moves || !strings.HasPrefix(plan.Why, row.why) ||
				plan.Fits() != (row.why == "") {
				t.Fatalf("moves %q, why %q, fits %v", got, plan.Why, plan.Fits())
			}
			h.carryOut(t, plan.Moves)
			if plan.Fits() {
				h.admit(t, row.wants)
			}
			ledgertest.Check(t, h.ledger)
		})
	}
}

func TestBadDefragments(t *testing.T) {
	t.Parallel()
	h := newTwoNodes(t, hint.ContainerScope)
	for _, bad := range []int{0, live.MaxMoves + 1} {
		if _, err := h.PlanDefragment(t.Context(), live.DefragmentRequest{Pod: podOf("n", [2]int64{1, 1}),
			MaxMoves: bad}); class(t, err) != errdefs.Invalid {
			t.Errorf("%d moves: %v", bad, err)
		}
	}
	bad := movable(podOf("n", [2]int64{1, 1}), "Sometimes")
	if _, err := h.PlanDefragment(t.Context(), live.DefragmentRequest{Pod: bad, MaxMoves: 1}); class(t, err) != errdefs.Invalid ||
		!strings.Contains(err.Error(), workload.MovableAnnotation) {
		t.Errorf("a wrong annotation: %v", err)
	}
}

// TestRelocateMeanwhile: a move that was planned is not begun if the pod, or what it would get, has changed.
func TestRelocateMeanwhile(t *testing.T) {
	t.Parallel()
	plan := func(t *testing.T) (*twoNodes, live.Relocation) {
		h := newTwoNodes(t, hint.ContainerScope)
		h.admit(t, movable(podOf("a", [2]int64{3, 2}), workload.MovableAnywhere), podOf("b", [2]int64{3, 1}), podOf("c", [2]int64{5, 1}))
		p, err := h.PlanDefragment(t.Context(), live.DefragmentRequest{Pod: podOf("new", [2]int64{4, 1}), MaxMoves: 1})
		must(t, err)
		if len(p.Moves) != 1 {
			t.Fatal(p.Why)
		}
		return h, p.Moves[0]
	}
	for name, row := range map[string]struct {
		do    func(t *testing.T, h *twoNodes, m live.Relocation)
		class errdefs.Class
	}{
		"it has left": {func(t *testing.T, h *twoNodes, _ live.Relocation) {
			_, _, err := h.Remove(t.Context(), "a", admission.Scope{})
			must(t, err)
		}, errdefs.NotFound},
		"it moves": {func(t *testing.T, h *twoNodes, m live.Relocation) { must(t, h.Relocate(t.Context(), m, 0)) }, errdefs.Refused},
		"it was resized": {func(t *testing.T, h *twoNodes, _ live.Relocation) {
			_, err := h.Resize(t.Context(), resizeTo(podOf("a", [2]int64{2, 2}), false))
			must(t, err)
		}, errdefs.Conflict},
		"the room is taken": {func(t *testing.T, h *twoNodes, _ live.Relocation) { h.admit(t, podOf("d", [2]int64{3, 1})) },
			errdefs.Refused},
		"a pod is not known": {func(t *testing.T, h *twoNodes, _ live.Relocation) {
			_, err := h.ledger.Update(t.Context(), func(d *ledger.Draft) error { d.SetUncertain("the ledger was lost"); return nil })
			must(t, err)
		}, errdefs.Refused},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h, m := plan(t)
			row.do(t, h, m)
			before := h.ledger.View()
			if err := h.Relocate(t.Context(), m, 0); class(t, err) != row.class || h.ledger.View() != before {
				t.Errorf("%v", err)
			}
		})
	}
}

// A move is reversed at each of its steps, and ends where it began.
func TestCancelMove(t *testing.T) {
	t.Parallel()
	for steps := range 3 {
		t.Run(fmt.Sprint(steps, " steps"), func(t *testing.T) {
			t.Parallel()
			h := newTwoNodes(t, hint.ContainerScope)
			h.admit(t, movable(podOf("a", [2]int64{3, 2}), workload.MovableAnywhere), podOf("b", [2]int64{3, 1}),
				podOf("c", [2]int64{5, 1}))
			p, err := h.PlanDefragment(t.Context(), live.DefragmentRequest{Pod: podOf("new", [2]int64{4, 1}), MaxMoves: 1})
			must(t, err)
			was := h.has("a")
			must(t, h.Relocate(t.Context(), p.Moves[0], 5))
			pod, _ := h.ledger.View().Pod("a")
			if pod.Move == nil || pod.Move.BytesPerSecond != 5 {
				t.Fatalf("%+v", pod.Move)
			}
			for range steps {
				_, err := h.Advance(t.Context(), "a", false)
				must(t, err)
			}
			arrived := h.has("a")
			for range 2 {
				must(t, h.CancelMove(t.Context(), "a"))
			}
			h.checkMove(t, "a")
			h.advance(t, "a")
			want := was
			if steps == 2 {
				want = arrived // it had ended
			}
			if h.has("a") != want {
				t.Errorf("has %s, had %s", h.has("a"), was)
			}
			must(t, h.CancelMove(t.Context(), "none"))
			ledgertest.Check(t, h.ledger)
		})
	}
	h := newTwoNodes(t, hint.ContainerScope)
	h.admit(t, podOf("a", [2]int64{2, 2}), podOf("b", [2]int64{4, 1}))
	_, err := h.Resize(t.Context(), resizeTo(podOf("a", [2]int64{6, 2}), false))
	must(t, err)
	if err := h.CancelMove(t.Context(), "a"); class(t, err) != errdefs.Refused {
		t.Errorf("a resize: %v", err)
	}
}

// TestDefragmentAfterCrashes fails each commit of a move, before or after it was written. A new engine on
// what was written ends the move, or plans it again.
func TestDefragmentAfterCrashes(t *testing.T) {
	t.Parallel()
	for commit := range 3 {
		for _, lost := range []bool{false, true} {
			t.Run(fmt.Sprintf("commit %d, written %v", commit+1, lost), func(t *testing.T) {
				t.Parallel()
				h := newTwoNodes(t, hint.ContainerScope)
				h.admit(t, movable(podOf("a", [2]int64{3, 2}), workload.MovableAnywhere), podOf("b", [2]int64{3, 1}),
					podOf("c", [2]int64{5, 1}))
				room := live.DefragmentRequest{Pod: podOf("new", [2]int64{4, 1}), MaxMoves: 1}
				fail := h.journal.FailNext
				if lost {
					fail = h.journal.LoseNext
				}
				fail(commit+1, errors.New("crash"))
				run := func(h *twoNodes) error {
					p, err := h.PlanDefragment(t.Context(), room)
					for i := 0; err == nil && i < len(p.Moves); i++ {
						err = h.Relocate(t.Context(), p.Moves[i], 0)
						for done := false; err == nil && !done; {
							var m live.Moved
							m, err = h.Advance(t.Context(), p.Moves[i].UID, false)
							done = m.Done
						}
					}
					return err
				}
				if err := run(h); err == nil {
					t.Fatal("nothing failed")
				}
				again := openTwoNodes(t, hint.ContainerScope, h.journal.Reopen())
				again.advance(t, "a")
				must(t, run(again))
				again.admit(t, room.Pod)
				ledgertest.Check(t, again.ledger)
			})
		}
	}
}

// TestRandomDefragments: on random histories of admissions, removals, resizes and moves, each step of each move keeps
// the invariants, and after the moves of a plan the pod is admitted.
func TestRandomDefragments(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(r *rapid.T) {
		scope := rapid.SampledFrom([]hint.Scope{hint.ContainerScope, hint.PodScope}).Draw(r, "scope")
		h := newTwoNodes(r, scope)
		sized := func(uid string, most int64) workload.Pod {
			var containers [][2]int64
			for range rapid.SampledFrom([]int{1, 1, 1, 2}).Draw(r, "containers") {
				containers = append(containers, [2]int64{rapid.Int64Range(1, most).Draw(r, "cpus"), rapid.Int64Range(1, 3).Draw(r, "gib")})
			}
			p := podOf(uid, containers...)
			if rapid.IntRange(0, 4).Draw(r, "gpu") == 0 {
				p = onGPU(p)
			}
			return p
		}
		for i := range rapid.IntRange(8, 24).Draw(r, "operations") {
			uid := fmt.Sprint("p", i)
			switch rapid.IntRange(0, 5).Draw(r, "operation") {
			case 0, 1, 2:
				p := movable(sized(uid, 3), rapid.SampledFrom([]workload.Movable{workload.MovableAnywhere, workload.MovableAnywhere,
					workload.MovableWithinNodes, workload.NeverMovable}).Draw(r, "movable"))
				h.tryAdmit(r, p)
			case 3:
				h.removeOne(r)
			case 4:
				if uid := h.resizeOne(r); uid != "" {
					h.advance(r, uid)
				}
			case 5:
				p := podOf(uid, [2]int64{rapid.Int64Range(3, 7).Draw(r, "wanted"), 1})
				plan, err := h.PlanDefragment(context.Background(), live.DefragmentRequest{Pod: p,
					MaxMoves: rapid.IntRange(1, 4).Draw(r, "moves")})
				must(r, err)
				if !plan.Fits() {
					continue
				}
				if len(plan.Moves) == 0 && plan.Outcome != admission.Admitted {
					r.Fatalf("it fits without moves, and is refused: %s", plan.Message)
				}
				h.carryOut(r, plan.Moves)
				h.admit(r, p)
			}
			h.checkOwners(r)
		}
		ledgertest.Check(r, h.ledger)
	})
}

// TestDefragmentWithinNodes: a pod with CPUs of both nodes moves to other CPUs of them, so that a pod fits that needs a
// node.
func TestDefragmentWithinNodes(t *testing.T) {
	t.Parallel()
	for allowed, fits := range map[workload.Movable]bool{workload.MovableWithinNodes: true, workload.NeverMovable: false} {
		h := nodesUnder(t, topology.Restricted, hint.ContainerScope, ledgertest.NewJournal(), ledgertest.Open)
		h.config.Memory = memory.Config{Policy: memory.PolicyNone} // memory of two nodes would keep others away from both
		h.become(t, twoNodesOf())
		// Of node 0, CPUs 1-2 are free in the end, and of node 1 CPUs 8-11.
		h.admit(t, podOf("first", [2]int64{2, 1}), podOf("fills", [2]int64{5, 1}), podOf("second", [2]int64{4, 1}))
		_, _, err := h.Remove(t.Context(), "fills", admission.Scope{})
		must(t, err)
		h.admit(t, movable(podOf("a", [2]int64{9, 1}), allowed))
		was := h.has("a")
		for _, uid := range []string{"first", "second"} {
			_, _, err := h.Remove(t.Context(), uid, admission.Scope{})
			must(t, err)
		}
		wants := podOf("new", [2]int64{5, 1})
		if v, err := h.Admit(t.Context(), admission.Request{Pod: wants, DryRun: true}); err != nil || v.Outcome == admission.Admitted {
			t.Fatalf("it fits without a move: %v; a has %s", err, was)
		}
		plan, err := h.PlanDefragment(t.Context(), live.DefragmentRequest{Pod: wants, MaxMoves: 1})
		must(t, err)
		if plan.Fits() != fits {
			t.Fatalf("movable %s: %s; a has %s", allowed, plan.Why, was)
		}
		if !fits {
			continue
		}
		steps := h.carryOut(t, plan.Moves)
		if got, want := was+" to "+h.has("a"), "3-7,12-15@ to 6,8-15@"; got != want || plan.Moves[0].Plan.Cost.Bytes != 0 {
			t.Errorf("%s, want %s; steps %q", got, want, steps)
		}
		h.admit(t, wants)
		ledgertest.Check(t, h.ledger)
	}
}

// TestMoveOffOneOfTwoNodes: a container with memory of two NUMA nodes leaves one of them. Its pages may be on either, whatever
// the ledger counts by node: so all of them count as moving, and it is compared whether they can.
func TestMoveOffOneOfTwoNodes(t *testing.T) {
	t.Parallel()
	for name, gib := range map[string]int64{"the ledger counts it on the node that stays": 2, "the ledger counts it on both": 9} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := changing(t, topology.Restricted, hint.ContainerScope)
			h.admit(t, movable(podOf("a", [2]int64{10, 12}), workload.MovableAnywhere))
			got, err := h.Resize(t.Context(), resizeTo(movable(podOf("a", [2]int64{3, gib}), workload.MovableAnywhere), false))
			must(t, err)
			if got.Outcome != admission.Admitted {
				t.Fatalf("%v %s", got.Outcome, got.Message)
			}
			plan, err := h.PlanDefragment(t.Context(), live.DefragmentRequest{Pod: podOf("new", [2]int64{8, 9}), MaxMoves: 1})
			must(t, err)
			if len(plan.Moves) != 1 || plan.Moves[0].Plan.Cost.Bytes != uint64(gib)<<30 || len(h.mover.checked) == 0 {
				t.Fatalf("moves %+v, compared %d times", plan.Moves, len(h.mover.checked))
			}
			for _, s := range plan.Moves[0].Plan.Steps {
				if s.Kind == transition.Migrate && s.Bytes != uint64(gib)<<30 {
					t.Errorf("%s", s.String())
				}
			}
		})
	}
}
