package admission_test

import (
	"context"
	"testing"

	"github.com/berthd/berth/managers/admission"
	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/hint"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/ledger/check"
)

// syncsIn is a mover in whose answer something happens.
type syncsIn struct {
	*mover
	then func()
}

func (m *syncsIn) Settled(ctx context.Context, v *ledger.View, uid string) error {
	if m.then != nil {
		m.then()
	}
	return m.mover.Settled(ctx, v, uid)
}

// TestSyncBesideAMove: a Sync takes back a step of a move that was not acknowledged, between two steps and while one is
// made. The move goes on from where it was, and ends as without the Sync.
func TestSyncBesideAMove(t *testing.T) {
	t.Parallel()
	const end = "8-13@1"
	begin := func(t *testing.T) *twoNodes {
		h := newTwoNodes(t, hint.ContainerScope)
		h.admit(t, podOf("a", [2]int64{2, 2}), podOf("b", [2]int64{4, 1}))
		got, err := h.Resize(t.Context(), resizeTo(podOf("a", [2]int64{6, 2}), false))
		must(t, err)
		if got.Outcome != admission.Admitted || got.Plan == nil {
			t.Fatalf("%s %s, plan %+v", got.Outcome, got.Message, got.Plan)
		}
		return h
	}
	all := len(begin(t).advance(t, "a"))
	if all < 2 {
		t.Fatalf("the move has %d steps", all)
	}
	for done := range all {
		for _, during := range []bool{false, true} {
			h := begin(t)
			for range done {
				_, err := h.Advance(t.Context(), "a", false)
				must(t, err)
			}
			acknowledged := h.has("a")
			_, err := h.ledger.Update(t.Context(), func(d *ledger.Draft) error {
				p, _ := d.View().Pod("a")
				union := *p
				union.Acknowledged, union.Claims = p.Claims, append([]ledger.Claim{}, p.Claims...)
				for i := range union.Claims {
					if c := union.Claims[i].CPUs; c != nil {
						union.Claims[i].CPUs = &ledger.CPUs{Set: c.Set.Union(cpuset.Of(15)), Use: c.Use}
					}
				}
				d.PutPod(&union)
				return nil
			})
			must(t, err)
			sync := func() {
				_, err := h.Sync(t.Context(), admission.SyncRequest{Living: []string{"a", "b"}, Known: h.ledger.View().Revision()})
				must(t, err)
			}
			if during {
				h.Mover = &syncsIn{h.mover, sync}
				if _, err := h.Advance(t.Context(), "a", false); errdefs.ClassOf(err) != errdefs.Conflict {
					t.Errorf("after %d steps, a step beside a Sync: %v", done, err)
				}
				h.Mover = h.mover
			} else {
				sync()
			}
			if got := h.has("a"); got != acknowledged {
				t.Errorf("after %d steps it had %s, and has %s", done, acknowledged, got)
			}
			h.advance(t, "a")
			if got := h.has("a"); got != end {
				t.Errorf("a Sync after %d steps, and it arrives at %s; want %s", done, got, end)
			}
			if found := check.View(h.ledger.View()); len(found) > 0 {
				t.Errorf("check of the ledger: %v", found)
			}
			h.admit(t, podOf("c", [2]int64{1, 1}))
		}
	}
}
