package history_test

import (
	"context"
	"strings"
	"testing"

	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/ledger/history"
	"github.com/berthd/berth/managers/ledger/ledgertest"
	"github.com/berthd/berth/managers/workload"
)

// TestBasis: the entry of a verdict has the state that it was decided on last, though the ledger has moved on, and what
// others had reserved then, without the answers of plugins. What is too large is counted, and a deferral has nothing.
func TestBasis(t *testing.T) {
	l := recording(t, ledgertest.NewJournal(), newClock(), history.Limits{Entries: 100, Bytes: 1 << 20})
	put(t, l, "a") // entry 2, after the start
	decidedOn := l.View()
	put(t, l, "b")
	reserved := &ledger.Pod{Pod: workload.Pod{UID: "c", Name: "c"}, Claims: []ledger.Claim{
		{Owner: ledger.Owner{Pod: "c", Container: "main"}, Resource: "example.com/gpu", Provider: "device", Opaque: []byte("secret")},
	}}
	large := &ledger.Pod{Pod: workload.Pod{UID: "d", Labels: map[string]string{"l": strings.Repeat("x", 70_000)}}}
	refuse := func(verdict string, others ...*ledger.Pod) {
		call := &history.Call{Name: "Admit", Request: &history.Request{Pod: &workload.Pod{UID: "e"}}}
		call.DecidedOn(l.View(), nil)
		call.DecidedOn(decidedOn, others)
		l.Refused(history.WithCall(context.Background(), call), history.Refusal{Verdict: verdict, View: decidedOn})
	}
	refuse("rejected", reserved)
	refuse("rejected", reserved, large)
	refuse("deferred", reserved)
	put(t, l, "f")
	var got []*history.Basis
	for _, e := range entries(t, l) {
		if e.Verdict != "" {
			got = append(got, e.Basis)
		}
	}
	if len(got) != 3 || got[0] == nil || got[1] == nil || got[2] != nil {
		t.Fatalf("%+v", got)
	}
	for i, want := range []struct{ pods, omitted int }{{1, 0}, {0, 2}} {
		pods, err := got[i].Pods()
		if err != nil || len(pods) != want.pods || got[i].Omitted != want.omitted || got[i].Revision != decidedOn.Revision() ||
			got[i].Entry != 2 {
			t.Errorf("%d: %+v, %d pods, %v", i, got[i], len(pods), err)
		}
	}
	view, err := got[0].On(decidedOn)
	if err != nil {
		t.Fatal(err)
	}
	if p, ok := view.Pod("c"); !ok || len(p.Claims) != 1 || p.Claims[0].Opaque != nil {
		t.Errorf("%+v", p)
	}
	for _, text := range []string{`3`, `[{"uid":"c"}]`, `[{"uid":"c","record":{"pod":{"uid":"d"}}}]`} {
		if _, err := (&history.Basis{Reserved: []byte(text)}).On(decidedOn); err == nil {
			t.Errorf("%s has no error", text)
		}
	}
}
