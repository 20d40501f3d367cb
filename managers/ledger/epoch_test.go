package ledger_test

import (
	"encoding/json"
	"errors"
	"testing"

	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/ledger/journal"
	"github.com/berthd/berth/managers/ledger/ledgertest"
)

// TestEpochID: a ledger keeps the epoch in which it began, whatever a later start
// offers, until the epoch is renewed; revisions continue all the while.
func TestEpochID(t *testing.T) {
	t.Parallel()
	j := ledgertest.NewJournal()
	open := func(id ledger.EpochID) *ledger.Ledger {
		j = j.Reopen()
		l, _ := ledgertest.Open(t, journal.Options{Journal: j, Rules: rules(), Epoch: 7, EpochID: id})
		return l
	}
	put := func(l *ledger.Ledger, uid string) {
		if _, err := l.Update(t.Context(), func(d *ledger.Draft) error { d.PutPod(ledgertest.Pod(uid, "c")); return nil }); err != nil {
			t.Fatal(err)
		}
	}
	if l := open(1); l.View().EpochID() != 1 {
		t.Errorf("a new ledger has epoch %s", l.View().EpochID())
	}
	l := open(2) // nothing was committed
	put(l, "a")
	if l.View().EpochID() != 2 {
		t.Errorf("after a commit the epoch is %s", l.View().EpochID())
	}
	l = open(3)
	if l.View().EpochID() != 2 {
		t.Errorf("after a restart the epoch is %s", l.View().EpochID())
	}
	stale := ledger.NewDraft(l.View())
	stale.PutPod(ledgertest.Pod("b", "c"))
	v, err := l.RenewEpoch(t.Context(), 4)
	if err != nil || v != l.View() || v.EpochID() != 4 || v.Revision() != 7<<10+2 || v.NumPods() != 1 {
		t.Fatalf("renewed: epoch %s, revision %d, %v", v.EpochID(), v.Revision(), err)
	}
	if _, err := l.Commit(t.Context(), stale); !errors.Is(err, ledger.ErrStale) {
		t.Errorf("commit of a draft of the epoch before: %v", err)
	}
	if v, err = l.Update(t.Context(), func(d *ledger.Draft) error { d.RenewEpoch(8, 9); return nil }); err != nil || v.EpochID() != 8 ||
		v.Revision() != 9<<10+3 || v.NumPods() != 1 {
		t.Fatalf("renewed by a draft: epoch %s, %v", v.EpochID(), err)
	}
	if l = open(5); l.View().EpochID() != 8 || l.View().Revision() != 9<<10+3 {
		t.Errorf("after a restart the epoch that a draft began is %s, at revision %d", l.View().EpochID(), l.View().Revision())
	}
	if _, err := l.RenewEpoch(t.Context(), 4); err != nil {
		t.Fatal(err)
	}
	put(l, "b")
	if draft := ledger.NewDraft(l.View()).View(); draft.EpochID() != 4 {
		t.Errorf("a draft has epoch %s", draft.EpochID())
	}
	if l = open(5); l.View().EpochID() != 4 || l.View().Revision() != 9<<10+5 {
		t.Errorf("after another restart: epoch %s, revision %d", l.View().EpochID(), l.View().Revision())
	}
	if _, err := l.RenewEpoch(t.Context(), 0); errdefs.ClassOf(err) != errdefs.Invalid {
		t.Errorf("no id: %v", err)
	}
	before := l.View()
	j.FailNext(1, errors.New("no space"))
	if _, err := l.RenewEpoch(t.Context(), 6); errdefs.ClassOf(err) != errdefs.Unavailable || l.View() != before {
		t.Errorf("a journal that cannot write: %v", err)
	}
}

// TestBootID: the boot of the last commit is known at the next start.
func TestBootID(t *testing.T) {
	t.Parallel()
	j := ledgertest.NewJournal()
	for i, row := range []struct {
		boot   string
		commit bool
		last   string // as the start finds it
	}{{"one", false, ""}, {"one", true, ""}, {"one", true, "one"}, {"two", false, "one"}, {"two", true, "one"}, {"", true, "two"},
		{"two", false, "two"}} {
		j = j.Reopen()
		l, report := ledgertest.Open(t, journal.Options{Journal: j, Rules: rules(), BootID: row.boot})
		if report.LastBootID != row.last || row.boot != "" && l.View().BootID() != row.boot {
			t.Errorf("start %d: last boot %q, boot %q", i, report.LastBootID, l.View().BootID())
		}
		if !row.commit {
			continue
		}
		if _, err := l.SetRules(t.Context(), rules()); err != nil {
			t.Fatal(err)
		}
	}
}

func TestEpochIDText(t *testing.T) {
	t.Parallel()
	for _, id := range []ledger.EpochID{0, 1, 0x0123456789abcdef, 1<<64 - 1} {
		text, err := json.Marshal(id)
		var back ledger.EpochID
		if err == nil {
			err = json.Unmarshal(text, &back)
		}
		if err != nil || back != id || len(text) != 18 {
			t.Errorf("%s: %s, %v", id, text, err)
		}
	}
	for _, bad := range []string{``, `1`, `"1"`, `"0123456789abcdeg"`, `"+123456789abcdef"`, `"00123456789abcdef"`} {
		var id ledger.EpochID
		if err := json.Unmarshal([]byte(bad), &id); err == nil {
			t.Errorf("%s is taken for %s", bad, id)
		}
	}
}
