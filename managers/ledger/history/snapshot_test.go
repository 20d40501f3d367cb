package history_test

import (
	"fmt"
	"runtime"
	"testing"

	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/ledger/history"
	"github.com/berthd/berth/managers/ledger/ledgertest"
)

// allocated returns how many bytes a function allocates.
func allocated(f func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

// TestCostOfSnapshot: what a snapshot costs grows with its size and not with the square of it: a
// file from others may have tens of thousands of anything. It measures, so it is not parallel.
func TestCostOfSnapshot(t *testing.T) {
	const n = 1000
	for name, add := range map[string]func(s *history.Snapshot, i int){
		"resources": func(s *history.Snapshot, i int) { s.Resources = append(s.Resources, fmt.Sprint("example.com/", i)) },
		"providers": func(s *history.Snapshot, i int) {
			s.Providers = append(s.Providers, history.Provider{Name: fmt.Sprint("provider-", i)})
		},
		"containers": func(s *history.Snapshot, i int) {
			s.Bindings = append(s.Bindings, history.Binding{ID: fmt.Sprint(i),
				Binding: &ledger.Binding{Owner: ledger.Owner{Pod: "a", Container: "c"}, Sequence: uint64(i)}})
		},
	} {
		cost := func(size int) uint64 {
			s := history.Snapshot{Pods: []history.Pod{{Record: ledgertest.Pod("a", "c")}}}
			for i := range size {
				add(&s, i)
			}
			return allocated(func() {
				if _, err := s.View(rules().Machine); err != nil {
					t.Errorf("%s: %v", name, err)
				}
			})
		}
		cost(n) // what is made once
		if small, large := cost(n), cost(8*n); large > 16*small {
			t.Errorf("%s: %d cost %d bytes, and %d cost %d", name, n, small, 8*n, large)
		}
	}
}

// TestCostOfUndoing: the same of an entry that unbinds many containers of a pod.
func TestCostOfUndoing(t *testing.T) {
	const n = 1000
	cost := func(size int) uint64 {
		v, err := (&history.Snapshot{Recorded: 2, Revision: 2,
			Pods: []history.Pod{{Record: ledgertest.Pod("a", "c")}}}).View(rules().Machine)
		if err != nil {
			t.Fatal(err)
		}
		e := &history.Entry{Number: 2, Revision: 2, Before: &history.Before{}}
		for i := range size {
			b := ledger.Binding{ID: fmt.Sprint(i), Owner: ledger.Owner{Pod: "a", Container: "c"}, Sequence: uint64(i)}
			e.Before.Bindings = append(e.Before.Bindings, history.Binding{ID: b.ID, Binding: &b})
		}
		return allocated(func() {
			r := history.NewRewinder(v)
			if !r.Next(e, nil) || !r.Next(&history.Entry{Number: 1, Revision: 1}, nil) {
				t.Error(r.Why)
			}
		})
	}
	cost(n)
	if small, large := cost(n), cost(8*n); large > 16*small {
		t.Errorf("%d cost %d bytes, and %d cost %d", n, small, 8*n, large)
	}
}
