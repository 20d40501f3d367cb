package ledger_test

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/ledger/journal"
	"github.com/berthd/berth/managers/ledger/ledgertest"
	"github.com/berthd/berth/managers/machine/machinetest"
)

// TestOverrideOutlivesRestarts: rules and what they follow from are one commit, and
// a start decides whether they still hold.
func TestOverrideOutlivesRestarts(t *testing.T) {
	t.Parallel()
	m := machinetest.Build("1s1n4c1t")
	files := ledger.Rules{Machine: m, ConfigDigest: "files"}
	set := ledger.Rules{Machine: m, ConfigDigest: "set", ReservedCPUs: m.CPUs().Lowest(2)}
	j := ledgertest.NewJournal()
	open := func(restore func(ledger.Override) (ledger.Rules, bool)) (*ledger.Ledger, journal.Report) {
		j = j.Reopen()
		return ledgertest.Open(t, journal.Options{Journal: j, Rules: files, Restore: restore})
	}
	holds := func(o ledger.Override) (ledger.Rules, bool) { return set, o.Over == "files" }
	first, _ := open(nil)
	want := ledger.Override{Settings: json.RawMessage(`{"a":1}`), Over: "files", SetAt: time.Unix(1000, 0).UTC()}
	view, err := first.SetOverride(t.Context(), set, &want)
	if err != nil || view.Rules().ConfigDigest != "set" || first.View() != view || view.Generation() != 1 {
		t.Fatalf("%+v, %v", view.Rules(), err)
	}
	if view, err = first.SetRules(t.Context(), set); err != nil || view.Override() == nil {
		t.Fatalf("rules alone dropped the override: %v", err)
	}

	second, report := open(holds)
	got := second.View().Override()
	if got == nil || string(got.Settings) != `{"a":1}` || !got.SetAt.Equal(want.SetAt) || second.View().Rules().ConfigDigest != "set" {
		t.Fatalf("after a restart %+v under %q", got, second.View().Rules().ConfigDigest)
	}
	if report.ConfigChanged || report.Dropped != nil {
		t.Errorf("report %+v", report)
	}
	if _, err := second.Update(t.Context(), func(d *ledger.Draft) error { d.PutPod(ledgertest.Pod("a", "main")); return nil }); err != nil {
		t.Fatal(err)
	}
	if second.View().Override() != got {
		t.Error("a commit lost the override")
	}

	third, report := open(func(ledger.Override) (ledger.Rules, bool) { return ledger.Rules{}, false })
	if third.View().Override() != nil || third.View().Rules().ConfigDigest != "files" || report.Dropped == nil || !report.ConfigChanged {
		t.Fatalf("dropped: %+v, report %+v", third.View().Override(), report)
	}
	if _, err := third.SetRules(t.Context(), files); err != nil {
		t.Fatal(err)
	}
	if fourth, report := open(holds); fourth.View().Override() != nil || report.Dropped != nil {
		t.Errorf("came back: %+v", fourth.View().Override())
	}
}

func TestOverrideEnds(t *testing.T) {
	t.Parallel()
	rules := ledger.Rules{Machine: machinetest.Build("1s1n4c1t")}
	l := ledgertest.New(t, rules)
	if _, err := l.SetOverride(t.Context(), rules, &ledger.Override{Settings: json.RawMessage(`1`)}); err != nil {
		t.Fatal(err)
	}
	if v, err := l.SetOverride(t.Context(), rules, nil); err != nil || v.Override() != nil {
		t.Errorf("%v, %v", v.Override(), err)
	}
	if _, err := l.SetOverride(t.Context(), ledger.Rules{}, nil); errdefs.ClassOf(err) != errdefs.Invalid {
		t.Errorf("without a machine: %v", err)
	}
}
