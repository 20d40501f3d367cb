package ledgertest

import (
	"bytes"
	"context"
	"time"

	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/ledger/check"
	"github.com/berthd/berth/managers/ledger/history"
	"github.com/berthd/berth/managers/ledger/journal"
)

// T has what this package needs of *testing.T, *testing.B and *rapid.T.
type T interface {
	Helper()
	Cleanup(func())
	Errorf(format string, args ...any)
	Fatalf(format string, args ...any)
}

// New opens a ledger on a journal of its own. When the test ends it is checked
// as Check does.
func New(t T, rules ledger.Rules) *ledger.Ledger {
	t.Helper()
	l, _ := Open(t, journal.Options{Journal: NewJournal(), Rules: rules})
	return l
}

// Open opens a ledger that must open. When the test ends it is checked as Check
// does, except for policy findings that the start reported, and, if its journal
// is a *Journal that still works, compared with what the journal holds.
func Open(t T, o journal.Options) (*ledger.Ledger, journal.Report) {
	t.Helper()
	l, report, err := journal.Open(context.Background(), o)
	if err != nil {
		t.Fatalf("open ledger: %v", err)
	}
	old := append(report.Grandfathered, report.Broken...)
	closing(t, o, l, func() { verify(t, l.View(), old) })
	return l, report
}

// OpenRecording is Open of a ledger with a history.
func OpenRecording(t T, o journal.Options, limits history.Limits, now func() time.Time) history.Ledger {
	t.Helper()
	h := history.New(limits, now)
	o.History = h
	l, _ := Open(t, o)
	return history.Ledger{Ledger: l, History: h}
}

// OpenChanging is Open of a ledger whose machine changes: in the end, only structural findings fail
// the test.
func OpenChanging(t T, o journal.Options) (*ledger.Ledger, journal.Report) {
	t.Helper()
	l, report, err := journal.Open(context.Background(), o)
	if err != nil {
		t.Fatalf("open ledger: %v", err)
	}
	closing(t, o, l, func() {
		for _, f := range check.View(l.View()) {
			if f.Kind == check.Structural {
				t.Errorf("generation %d: %s", l.View().Generation(), f)
			}
		}
	})
	return l, report
}

// closing makes a check of a ledger when the test ends, and compares it with its journal.
func closing(t T, o journal.Options, l *ledger.Ledger, check func()) {
	t.Cleanup(func() {
		t.Helper()
		check()
		if j, ok := o.Journal.(*Journal); ok {
			compare(t, l, j, o.Traces)
		}
	})
}

// Check fails the test for every finding about the ledger's view.
func Check(t T, l *ledger.Ledger) {
	t.Helper()
	verify(t, l.View(), nil)
}

func verify(t T, v *ledger.View, old []check.Finding) {
	t.Helper()
	known := make(map[check.Finding]bool, len(old))
	for _, f := range old {
		known[f] = true
	}
	for _, f := range check.View(v) {
		// Tests may assign every CPU, which managers refuse.
		if !known[f] && f.Rule != check.RuleShared {
			t.Errorf("generation %d: %s", v.Generation(), f)
		}
	}
}

// compare opens the journal's content once more and fails the test if that is
// not the ledger's view.
func compare(t T, l *ledger.Ledger, j *Journal, traces int) {
	t.Helper()
	j.mu.Lock()
	skip := j.closed || j.broken != nil
	other := &Journal{content: j.content}
	j.mu.Unlock()
	if skip || l.View().Generation() == 0 {
		return
	}
	rules := l.View().Rules()
	again, _, err := journal.Open(context.Background(), journal.Options{
		Journal: other, Rules: rules, Traces: traces,
		Restore: func(ledger.Override) (ledger.Rules, bool) { return rules, true },
	})
	if err != nil {
		t.Errorf("open the ledger's journal again: %v", err)
		return
	}
	SameView(t, again.View(), l.View())
}

// SameView fails the test if two views hold different facts.
func SameView(t T, got, want *ledger.View) {
	t.Helper()
	g, w := dump(t, got), dump(t, want)
	for key, value := range w {
		if !bytes.Equal(g[key], value) {
			t.Errorf("%s/%s is\n\t%s, want\n\t%s", key[0], key[1], g[key], value)
		}
		delete(g, key)
	}
	for key, value := range g {
		t.Errorf("%s/%s should not be there: %s", key[0], key[1], value)
	}
}

func dump(t T, v *ledger.View) map[[2]string][]byte {
	t.Helper()
	entries, err := journal.Dump(v)
	if err != nil {
		t.Fatalf("%v", err)
	}
	m := make(map[[2]string][]byte, len(entries))
	for _, e := range entries {
		m[[2]string{e.Bucket, e.Key}] = e.Value
	}
	return m
}
