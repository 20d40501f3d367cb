package ledger_test

import (
	"errors"
	"testing"

	"github.com/berthd/berth/managers/fault"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/ledger/ledgertest"
	"github.com/berthd/berth/managers/machine/machinetest"
)

func rules() ledger.Rules {
	return ledger.Rules{Machine: machinetest.Build("2s1n4c2t"), ConfigDigest: "one"}
}

func TestCommit(t *testing.T) {
	t.Parallel()
	var told []uint64
	j := ledgertest.NewJournal()
	l, _ := ledgertest.Open(t, ledger.Options{Journal: j, Rules: rules(), OnCommit: func(old, next *ledger.View) {
		told = append(told, old.Generation(), next.Generation())
	}})
	first := ledger.NewDraft(l.View())
	first.PutPod(ledgertest.With(ledgertest.Pod("a", "c"), ledgertest.Exclusive("c", "1-2")))
	if l.View().NumPods() != 0 || first.View().NumPods() != 1 {
		t.Fatal("a draft shows in the ledger, or not in its own view")
	}
	v, err := l.Commit(t.Context(), first)
	if err != nil || v.Generation() != 1 || v != l.View() {
		t.Fatalf("commit: generation %d, %v", v.Generation(), err)
	}
	if got := v.SharedCPUs().String(); got != "0,3-15" {
		t.Errorf("shared CPUs %s", got)
	}
	if v, err := l.Commit(t.Context(), first); v != nil || !errors.Is(err, ledger.ErrStale) || fault.ClassOf(err) != fault.Conflict {
		t.Errorf("second commit of one draft: %v, %v", v, err)
	}
	if v, err := l.Commit(t.Context(), ledger.NewDraft(v)); err != nil || v.Generation() != 1 || j.Commits() != 1 {
		t.Errorf("empty draft: generation %d after %d commits, %v", v.Generation(), j.Commits(), err)
	}
	if len(told) != 2 || told[0] != 0 || told[1] != 1 {
		t.Errorf("OnCommit was told %v", told)
	}
}
