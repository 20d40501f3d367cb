package ledger_test

import (
	"slices"
	"testing"

	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/ledger/journal"
	"github.com/berthd/berth/managers/ledger/ledgertest"
	"github.com/berthd/berth/managers/machine/machinetest"
)

func TestUncertainOutlivesRestarts(t *testing.T) {
	t.Parallel()
	j := ledgertest.NewJournal()
	open := func() *ledger.Ledger {
		j = j.Reopen()
		l, _ := ledgertest.Open(t, journal.Options{Journal: j, Rules: ledger.Rules{Machine: machinetest.Build("1s1n4c1t")}})
		return l
	}
	set := func(l *ledger.Ledger, reason string) {
		if _, err := l.Update(t.Context(), func(d *ledger.Draft) error { d.SetUncertain(reason); return nil }); err != nil {
			t.Fatal(err)
		}
	}
	first := open()
	set(first, "who knows")
	generation := first.View().Generation()
	set(first, "who knows") // nothing new, nothing written
	if got := first.View(); got.Uncertain() != "who knows" || got.Generation() != generation {
		t.Fatalf("uncertain: %q at generation %d", got.Uncertain(), got.Generation())
	}
	second := open()
	if got := second.View().Uncertain(); got != "who knows" {
		t.Fatalf("uncertain: %q after a restart", got)
	}
	set(second, "")
	if got := open().View().Uncertain(); got != "" {
		t.Errorf("uncertain: %q after it ended", got)
	}
}

// TestMemoryOutlivesRestarts: a start gets the nodes' memory at the last commit,
// and commits of other rules change that.
func TestMemoryOutlivesRestarts(t *testing.T) {
	t.Parallel()
	j := ledgertest.NewJournal()
	rules := func(bytes ...uint64) ledger.Rules {
		r := ledger.Rules{Machine: machinetest.Build("1s1n4c1t")}
		for node, n := range bytes {
			r.Memory = append(r.Memory, ledger.NodeMemory{Node: node, Resource: "memory", Total: n, Allocatable: n - 1})
		}
		return r
	}
	open := func(want, now ledger.Rules) *ledger.Ledger {
		t.Helper()
		j = j.Reopen()
		l, report := ledgertest.Open(t, journal.Options{Journal: j, Rules: now})
		if !slices.Equal(report.Memory, want.Memory) {
			t.Errorf("the last commit was made with %v, want %v", report.Memory, want.Memory)
		}
		return l
	}
	commit := func(l *ledger.Ledger) {
		t.Helper()
		if _, err := l.Update(t.Context(), func(d *ledger.Draft) error { d.PutTrace(&ledger.Trace{}); return nil }); err != nil {
			t.Fatal(err)
		}
	}
	setRules := func(l *ledger.Ledger, r ledger.Rules) {
		t.Helper()
		if _, err := l.SetRules(t.Context(), r); err != nil {
			t.Fatal(err)
		}
	}
	open(rules(), rules(5, 6))
	l := open(rules(), rules(5, 6)) // nothing was committed
	commit(l)
	commit(l)
	commit(open(rules(5, 6), rules(5, 7)))
	setRules(open(rules(5, 7), rules(5, 7)), rules(8))
	setRules(open(rules(8), rules(8)), rules())
	setRules(open(rules(), rules(9)), rules())
	commit(open(rules(), rules(10)))
	commit(open(rules(10), rules()))
	open(rules(), rules())
}
