package ledger_test

import (
	"slices"
	"testing"
	"time"

	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/ledger/ledgertest"
)

// TestSpared: who is spared outlives restarts, until the next list or until the pod
// is known again.
func TestSpared(t *testing.T) {
	t.Parallel()
	j := ledgertest.NewJournal()
	open := func() *ledger.Ledger {
		j = j.Reopen()
		l, _ := ledgertest.Open(t, ledger.Options{Journal: j, Rules: rules()})
		return l
	}
	early, late := time.Unix(100, 0).UTC(), time.Unix(200, 0).UTC()
	change := func(do func(d *ledger.Draft)) {
		t.Helper()
		if _, err := open().Update(t.Context(), func(d *ledger.Draft) error { do(d); return nil }); err != nil {
			t.Fatal(err)
		}
	}
	want := func(want ...ledger.Spared) {
		t.Helper()
		view := open().View()
		if got := slices.Collect(view.SparedPods()); !slices.Equal(got, want) {
			t.Errorf("spared are %v, want %v", got, want)
		}
		for _, s := range want {
			if !view.Spared(s.UID) {
				t.Errorf("pod %s is not spared", s.UID)
			}
		}
	}
	change(func(d *ledger.Draft) { d.PutPod(ledgertest.Pod("known", "c")) })
	change(func(d *ledger.Draft) {
		d.Spare(ledger.Spared{UID: "b", Since: early}, ledger.Spared{UID: "known", Since: early}, ledger.Spared{UID: "a", Since: early})
	})
	want(ledger.Spared{UID: "a", Since: early}, ledger.Spared{UID: "b", Since: early})
	change(func(d *ledger.Draft) {
		d.Spare(ledger.Spared{UID: "b", Since: late}, ledger.Spared{UID: "c", Since: late})
	})
	want(ledger.Spared{UID: "b", Since: early}, ledger.Spared{UID: "c", Since: late})
	change(func(d *ledger.Draft) { d.PutPod(ledgertest.Pod("b", "c")) })
	want(ledger.Spared{UID: "c", Since: late})
	change(func(d *ledger.Draft) { d.Spare() })
	want()

	// In one draft the last word counts.
	change(func(d *ledger.Draft) {
		d.Spare(ledger.Spared{UID: "x"}, ledger.Spared{UID: "y"})
		d.PutPod(ledgertest.Pod("x", "c"))
	})
	want(ledger.Spared{UID: "y"})
}

// TestSparedMakesStale: who planned before a pod was spared plans again.
func TestSparedMakesStale(t *testing.T) {
	t.Parallel()
	l := ledgertest.New(t, rules())
	d := ledger.NewDraft(l.View())
	d.PutPod(ledgertest.Pod("a", "c"))
	d.RestsOnPods()
	if _, err := l.Update(t.Context(), func(d *ledger.Draft) error { d.Spare(ledger.Spared{UID: "b"}); return nil }); err != nil {
		t.Fatal(err)
	}
	if _, err := l.Commit(t.Context(), d); err == nil {
		t.Error("a plan from before was committed")
	}
}

// TestSparedAndKnown: damage that no checksum shows.
func TestSparedAndKnown(t *testing.T) {
	t.Parallel()
	v := ledger.Empty(rules())
	d := ledger.NewDraft(v)
	d.PutPod(ledgertest.Pod("a", "c"))
	d.Spare(ledger.Spared{UID: "b/c"}, ledger.Spared{UID: "a"})
	found := ledger.Check(d.View())
	if len(found) != 1 || found[0].Rule != ledger.RuleSpared || found[0].Kind != ledger.Structural || found[0].Owner.Pod != "b/c" {
		t.Errorf("findings %v", found)
	}
}

// TestAdmittedGeneration: a record says which commit brought its pod here, whatever
// is changed about it later.
func TestAdmittedGeneration(t *testing.T) {
	t.Parallel()
	j := ledgertest.NewJournal()
	l, _ := ledgertest.Open(t, ledger.Options{Journal: j, Rules: rules()})
	put := func(uids ...string) {
		t.Helper()
		if _, err := l.Update(t.Context(), func(d *ledger.Draft) error {
			for _, uid := range uids {
				d.PutPod(ledgertest.Pod(uid, "c"))
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
	}
	put("a")
	put("a", "b")
	put("b")
	if _, err := l.Update(t.Context(), func(d *ledger.Draft) error { d.RemovePod("a"); return nil }); err != nil {
		t.Fatal(err)
	}
	put("a")
	l, _ = ledgertest.Open(t, ledger.Options{Journal: j.Reopen(), Rules: rules()})
	for uid, want := range map[string]uint64{"a": 5, "b": 2} {
		if p, ok := l.View().Pod(uid); !ok || p.AdmittedGeneration != want {
			t.Errorf("pod %s came with generation %d, want %d", uid, p.AdmittedGeneration, want)
		}
	}
}
