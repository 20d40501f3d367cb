package reservations_test

import (
	"slices"
	"testing"

	"github.com/berthd/berth/managers/admission/reservations"
	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/workload"
)

func record(uid string, cpu int) *ledger.Pod {
	return &ledger.Pod{Pod: workload.Pod{UID: uid}, Claims: []ledger.Claim{{
		Owner: ledger.Owner{Pod: uid, Container: "c"}, Provider: "cpu", Resource: "cpu", CPUs: &ledger.CPUs{Set: cpuset.Of(cpu)},
	}}}
}

// TestSet follows two reservations and a removal: views have the reserved pods, without those that are excepted, and
// Ended is closed when the first of them ends.
func TestSet(t *testing.T) {
	t.Parallel()
	draft := ledger.NewDraft(ledger.Empty(ledger.Rules{}))
	draft.PutPod(record("old", 0))
	current := draft.View
	var s reservations.Set
	base := current()
	if c := s.Count(func() *ledger.View { return base }); c.View != base || c.Ended != nil || len(c.Reserved) > 0 {
		t.Fatalf("nothing is reserved, and the view is %+v", c)
	}
	mine := record("a", 1)
	s.Put(mine)
	mine.Claims[0] = ledger.Claim{}
	s.Put(record("b", 2))
	done := s.End("old")

	check := func(view *ledger.View, want ...string) {
		t.Helper()
		var got []string
		for p := range view.Pods() {
			got = append(got, p.UID())
			if len(p.Claims) != 1 || p.Claims[0].Provider != "cpu" {
				t.Errorf("%s has the claims %v", p.UID(), p.Claims)
			}
		}
		if slices.Sort(got); !slices.Equal(got, want) {
			t.Errorf("the view has %q, want %q", got, want)
		}
	}
	c := s.Count(current)
	check(c.View, "a", "b", "old")
	if len(c.Reserved) != 2 {
		t.Errorf("reserved: %v", c.Reserved)
	}
	view, _ := s.On(current, "a")
	check(view, "b", "old")
	view, _ = s.On(current, "a", "b", "old")
	check(view)
	reserved, ending := s.Others("a")
	if !slices.Equal(reserved, []string{"b"}) || !slices.Equal(ending, []string{"old"}) || !s.Has("a") || s.Has("old") {
		t.Errorf("others than a: %q, %q", reserved, ending)
	}
	ended := func(why string, on <-chan struct{}, want bool) {
		t.Helper()
		select {
		case <-on:
			if !want {
				t.Errorf("%s: something has ended", why)
			}
		default:
			if want {
				t.Errorf("%s: nothing has ended", why)
			}
		}
	}
	s.Drop("old") // has no reservation
	ended("no reservation", c.Ended, false)
	s.Drop("a")
	ended("a reservation", c.Ended, true)
	c = s.Count(current)
	done()
	ended("a removal", c.Ended, true)
	s.Drop("b")
	if reserved, ending := s.Others(""); len(reserved)+len(ending) > 0 {
		t.Errorf("left: %q, %q", reserved, ending)
	}
}

// TestSince: a pod counts that was reserved at the beginning or later, also after its reservation has ended, but not one
// whose reservation had ended before, or that comes after the end.
func TestSince(t *testing.T) {
	t.Parallel()
	var s reservations.Set
	s.Put(record("gone", 0))
	s.Drop("gone")
	s.Put(record("here", 1))
	since := s.Since()
	s.Drop("here")
	s.Put(record("short", 2))
	s.Drop("short")
	since.End()
	s.Put(record("late", 3))
	for uid, want := range map[string]bool{"gone": false, "here": true, "short": true, "late": false} {
		if since.Had(uid) != want {
			t.Errorf("%s: %t, want %t", uid, !want, want)
		}
	}
}
