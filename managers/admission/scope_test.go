package admission_test

import (
	"context"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/berthd/berth/managers/admission"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/topology"
)

// admitFor admits a pod of an agent.
func (h *fixture) admitFor(t *testing.T, owner, uid string) {
	t.Helper()
	v, err := h.Admit(t.Context(), admission.Request{Pod: guaranteed(uid, 1, 0), Owner: owner})
	if err != nil || v.Outcome != admission.Admitted {
		t.Fatalf("pod %s of %q: %v, %s", uid, owner, err, v.Message)
	}
}

// uids lists the pods of the ledger.
func (h *fixture) uids() string {
	var uids []string
	for p := range h.ledger.View().Pods() {
		uids = append(uids, p.UID())
	}
	return strings.Join(uids, ",")
}

// TestOwnersSideBySide: agents with names of their own do not touch each other's pods,
// whatever they request; an agent that acts for all does.
func TestOwnersSideBySide(t *testing.T) {
	t.Parallel()
	sync := func(scope admission.Scope) func(*fixture) error {
		return func(h *fixture) error {
			req := h.listed(nil)
			req.Scope = scope
			_, err := h.Sync(context.Background(), req)
			return err
		}
	}
	remove := func(uid string, scope admission.Scope) func(*fixture) error {
		return func(h *fixture) error {
			_, _, err := h.Remove(context.Background(), uid, scope)
			return err
		}
	}
	for name, row := range map[string]struct {
		do    func(*fixture) error
		fails bool
		left  string
	}{
		"sync of one":              {sync(admission.Scope{Owner: "a"}), false, "b1,d1"},
		"sync of the default":      {sync(admission.Scope{}), false, "a1,a2,b1"},
		"of the default by name":   {sync(admission.Scope{Owner: "default"}), false, "a1,a2,b1"},
		"sync of one without pods": {sync(admission.Scope{Owner: "c"}), false, "a1,a2,b1,d1"},
		"sync of all":              {sync(admission.Scope{All: true}), false, ""},
		"remove its own":           {remove("a1", admission.Scope{Owner: "a"}), false, "a2,b1,d1"},
		"remove another's":         {remove("b1", admission.Scope{Owner: "a"}), true, "a1,a2,b1,d1"},
		"remove without a name":    {remove("b1", admission.Scope{}), true, "a1,a2,b1,d1"},
		"remove the default's":     {remove("d1", admission.Scope{Owner: "a"}), true, "a1,a2,b1,d1"},
		"remove for all":           {remove("b1", admission.Scope{All: true}), false, "a1,a2,d1"},
		"remove nobody's":          {remove("x", admission.Scope{Owner: "a"}), false, "a1,a2,b1,d1"},
		"admit another's": {func(h *fixture) error {
			_, err := h.Admit(context.Background(), admission.Request{Pod: guaranteed("b1", 1, 0), Owner: "a"})
			return err
		}, true, "a1,a2,b1,d1"},
		"admit another's, dry": {func(h *fixture) error {
			_, err := h.Admit(context.Background(), admission.Request{Pod: guaranteed("b1", 1, 0), Owner: "a", DryRun: true})
			return err
		}, true, "a1,a2,b1,d1"},
		"resize its own": {func(h *fixture) error {
			_, err := h.Resize(context.Background(), ownedResize(guaranteed("b1", 1, 0), "b"))
			return err
		}, false, "a1,a2,b1,d1"},
		"resize another's": {func(h *fixture) error {
			_, err := h.Resize(context.Background(), ownedResize(guaranteed("b1", 1, 0), "a"))
			return err
		}, true, "a1,a2,b1,d1"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newFixture(t, topology.BestEffort)
			for uid, owner := range map[string]string{"a1": "a", "a2": "a", "b1": "b", "d1": ""} {
				h.admitFor(t, owner, uid)
			}
			err := row.do(h)
			if row.fails != (err != nil) || err != nil && class(t, err) != errdefs.Precondition || h.uids() != row.left {
				t.Errorf("%v; left are %s, want %s", err, h.uids(), row.left)
			}
			if got := strings.Join(slices.Sorted(maps.Keys(h.cgroups.pods)), ","); got != row.left {
				t.Errorf("cgroups of %s, want of %s", got, row.left)
			}
		})
	}
}

// TestOwnersOfUnknownPods: a list has no effect on pods that outlived the ledger and
// are another owner's, or may be.
func TestOwnersOfUnknownPods(t *testing.T) {
	t.Parallel()
	known := map[string]ledger.UnknownLivePod{
		"mine":   {UID: "mine", OwnedBy: "a", Source: ledger.FromClaimRecord},
		"theirs": {UID: "theirs", OwnedBy: "b", Source: ledger.FromClaimRecord},
		"old":    {UID: "old", Source: ledger.FromClaimRecord},
		"bare":   {UID: "bare", Source: ledger.FromKernel},
	}
	for name, row := range map[string]struct {
		here  []string
		scope admission.Scope
		left  string
	}{
		"one owner":          {[]string{"mine", "bare"}, admission.Scope{Owner: "a"}, ""},
		"others":             {[]string{"mine", "theirs", "old", "bare"}, admission.Scope{Owner: "a"}, "bare,old,theirs"},
		"the default":        {[]string{"mine", "theirs", "old"}, admission.Scope{}, "mine,theirs"},
		"all":                {[]string{"mine", "theirs", "old", "bare"}, admission.Scope{All: true}, ""},
		"nobody knows whose": {[]string{"bare"}, admission.Scope{Owner: "a"}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newFixture(t, topology.BestEffort)
			h.Lives = func(_ context.Context, uid string) ledger.UnknownLivePod { return known[uid] }
			_, err := h.ledger.Update(t.Context(), func(d *ledger.Draft) error {
				for _, uid := range row.here {
					h.cgroups.pods[uid] = true
					d.PutUnknownLive(known[uid])
				}
				return nil
			})
			must(t, err)
			h.makeUncertain(t)
			req := h.listed(nil)
			req.Scope = row.scope
			_, err = h.Sync(t.Context(), req)
			must(t, err)
			if got := strings.Join(slices.Sorted(maps.Keys(h.cgroups.pods)), ","); got != row.left {
				t.Errorf("left are %q, want %q", got, row.left)
			}
			if got := h.unknownLivePods(); got != row.left || h.ledger.View().Uncertain() != "" {
				t.Errorf("noted are %q, uncertain %q", got, h.ledger.View().Uncertain())
			}
		})
	}
}

// TestOwnerOfALivingPod: a pod that outlived the ledger is admitted again, or removed, by
// its owner alone.
func TestOwnerOfALivingPod(t *testing.T) {
	t.Parallel()
	h := newFixture(t, topology.BestEffort)
	h.cgroups.pods["u"] = true
	_, err := h.ledger.Update(t.Context(), func(d *ledger.Draft) error {
		d.PutUnknownLive(ledger.UnknownLivePod{UID: "u", OwnedBy: "a", Source: ledger.FromClaimRecord})
		return nil
	})
	must(t, err)
	if _, err := h.Admit(t.Context(), admission.Request{Pod: guaranteed("u", 0, 0), Owner: "b"}); class(t, err) != errdefs.Precondition {
		t.Errorf("admitted for another owner: %v", err)
	}
	if _, _, err := h.Remove(t.Context(), "u", admission.Scope{}); class(t, err) != errdefs.Precondition || !h.cgroups.pods["u"] {
		t.Errorf("removed for another owner: %v", err)
	}
	h.admitFor(t, "a", "u")
	if p, _ := h.ledger.View().Pod("u"); p.Agent() != "a" {
		t.Errorf("the pod is of %q", p.Agent())
	}
}
