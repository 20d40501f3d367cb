package history_test

import (
	"reflect"
	"testing"
	"time"

	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/ledger/history"
	"github.com/berthd/berth/managers/ledger/journal"
	"github.com/berthd/berth/managers/ledger/ledgertest"
	"github.com/berthd/berth/managers/machine"
	"github.com/berthd/berth/managers/machine/machinetest"
)

// TestPastHasWholeRules: a state from before a change of one of the rules has all of them as they were, whether berthd
// ran meanwhile or was started again. A new field of Rules needs a row here.
func TestPastHasWholeRules(t *testing.T) {
	t.Parallel()
	m := machinetest.Build("1s2n4c1t")
	less, err := m.Without(cpuset.Of(3))
	if err != nil {
		t.Fatal(err)
	}
	first := ledger.Rules{
		Machine: m, ReservedCPUs: cpuset.Of(0), StrictReservation: true,
		Memory:    []ledger.NodeMemory{{Node: 0, Resource: "memory", Allocatable: 1 << 30}},
		ClaimCPUs: cpuset.Of(0), ClaimMemory: []ledger.NodeMemory{{Node: 1, Resource: "memory", Allocatable: 1 << 20}}, OnePool: true,
		ConfigDigest: "a",
	}
	others := map[string]any{
		"Machine": less, "ReservedCPUs": cpuset.Of(0, 1), "StrictReservation": false, "Memory": []ledger.NodeMemory(nil),
		"ClaimCPUs":   cpuset.Set{},
		"ClaimMemory": []ledger.NodeMemory(nil), "OnePool": false, "ConfigDigest": "b",
	}
	for _, field := range reflect.VisibleFields(reflect.TypeFor[ledger.Rules]()) {
		if field.Name == "TakenPages" {
			continue // a start keeps them: TestPastHasTakenPages
		}
		if field.Name == "Settings" {
			continue // they explain another digest to people, and decide nothing
		}
		if reflect.ValueOf(first).FieldByIndex(field.Index).IsZero() || others[field.Name] == nil {
			t.Fatalf("the test does not change %s", field.Name)
		}
		changed := first
		reflect.ValueOf(&changed).Elem().FieldByIndex(field.Index).Set(reflect.ValueOf(others[field.Name]))
		for _, restart := range []bool{false, true} {
			for _, rules := range [][2]ledger.Rules{{first, changed}, {changed, first}} {
				j := ledgertest.NewJournal()
				open := func(r ledger.Rules) history.Ledger {
					h := history.New(enough, time.Now)
					l, _ := ledgertest.OpenChanging(t, journal.Options{
						History: h, Journal: j, Rules: r, EpochID: 1 << 60, BootID: "boot",
					})
					return history.Ledger{Ledger: l, History: h}
				}
				put := func(l history.Ledger, uid string) *ledger.View {
					v, err := l.Update(t.Context(), func(d *ledger.Draft) error { d.PutPod(ledgertest.Pod(uid, "c")); return nil })
					if err != nil {
						t.Fatal(err)
					}
					return v
				}
				l := open(rules[0])
				then := put(l, "a")
				put(l, "b") // a start has the revision of the commit before
				if restart {
					j = j.Reopen()
					l = open(rules[1])
				} else if _, err := l.SetRules(t.Context(), rules[1]); err != nil {
					t.Fatal(err)
				}
				put(l, "c")
				past, err := l.At(t.Context(), history.Moment{Revision: then.Revision()})
				if err != nil {
					t.Fatal(err)
				}
				want, got := then.Rules(), past.Rules()
				if !machine.Compare(want.Machine, got.Machine).Empty() {
					t.Errorf("%s, restart %v: the machine had %s, and has %s", field.Name, restart, want.Machine.CPUs(), got.Machine.CPUs())
				}
				want.Machine, got.Machine = nil, nil
				if !reflect.DeepEqual(want, got) {
					t.Errorf("%s, restart %v: the rules were %+v, and are %+v", field.Name, restart, want, got)
				}
			}
		}
	}
}

// TestPastHasTakenPages: huge pages that pods cannot have stay so after a start, and after a change of the other rules. A state from
// before they were taken has none.
func TestPastHasTakenPages(t *testing.T) {
	t.Parallel()
	rules := ledger.Rules{Machine: machinetest.Build("1s2n4c1t"), ConfigDigest: "a"}
	taken := []ledger.TakenPages{{Node: 1, Resource: "hugepages-2Mi", Bytes: 4 << 20, Outside: 2 << 20}}
	j := ledgertest.NewJournal()
	open := func() history.Ledger {
		h := history.New(enough, time.Now)
		l, _ := ledgertest.OpenChanging(t, journal.Options{History: h, Journal: j, Rules: rules, EpochID: 1 << 60, BootID: "boot"})
		return history.Ledger{Ledger: l, History: h}
	}
	l := open()
	revisions := map[uint64][]ledger.TakenPages{}
	put := func(uid string, want []ledger.TakenPages) {
		t.Helper()
		v, err := l.Update(t.Context(), func(d *ledger.Draft) error { d.PutPod(ledgertest.Pod(uid, "c")); return nil })
		if err != nil {
			t.Fatal(err)
		}
		if got := v.Rules().TakenPages; !reflect.DeepEqual(got, want) {
			t.Errorf("before pod %s is put: %+v, want %+v", uid, got, want)
		}
		revisions[v.Revision()] = want
	}
	put("a", nil)
	if err := l.SetTakenPages(t.Context(), taken); err != nil {
		t.Fatal(err)
	}
	put("b", taken)
	rules.ConfigDigest = "b"
	if _, err := l.SetRules(t.Context(), rules); err != nil {
		t.Fatal(err)
	}
	put("c", taken)
	j = j.Reopen()
	l = open()
	put("d", taken)
	if err := l.SetTakenPages(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	put("e", nil)
	j = j.Reopen()
	l = open()
	put("f", nil)
	for revision, want := range revisions {
		past, err := l.At(t.Context(), history.Moment{Revision: revision})
		if err != nil {
			t.Fatal(err)
		}
		if got := past.Rules().TakenPages; !reflect.DeepEqual(got, want) {
			t.Errorf("at revision %d: %+v, want %+v", revision, got, want)
		}
	}
}
