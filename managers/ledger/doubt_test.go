package ledger_test

import (
	"testing"

	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/ledger/ledgertest"
	"github.com/berthd/berth/managers/machine/machinetest"
)

func TestDoubtOutlivesRestarts(t *testing.T) {
	t.Parallel()
	j := ledgertest.NewJournal()
	open := func() *ledger.Ledger {
		j = j.Reopen()
		l, _ := ledgertest.Open(t, ledger.Options{Journal: j, Rules: ledger.Rules{Machine: machinetest.Build("1s1n4c1t")}})
		return l
	}
	set := func(l *ledger.Ledger, reason string) {
		if _, err := l.Update(t.Context(), func(d *ledger.Draft) error { d.SetDoubt(reason); return nil }); err != nil {
			t.Fatal(err)
		}
	}
	first := open()
	set(first, "who knows")
	generation := first.View().Generation()
	set(first, "who knows") // nothing new, nothing written
	if got := first.View(); got.Doubt() != "who knows" || got.Generation() != generation {
		t.Fatalf("doubt %q at generation %d", got.Doubt(), got.Generation())
	}
	second := open()
	if got := second.View().Doubt(); got != "who knows" {
		t.Fatalf("doubt %q after a restart", got)
	}
	set(second, "")
	if got := open().View().Doubt(); got != "" {
		t.Errorf("doubt %q after it ended", got)
	}
}
