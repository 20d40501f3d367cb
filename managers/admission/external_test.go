package admission_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/berthd/berth/managers/admission"
	"github.com/berthd/berth/managers/hint"
	"github.com/berthd/berth/managers/hint/hinttest"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/topology"
	"github.com/berthd/berth/managers/workload"
)

// lessor hands out slots that it holds reserved until a second of the engine's
// clock, and notes what it hears.
type lessor struct {
	hinttest.Slots
	until  int64
	during func()
	heard  []string
}

func (l *lessor) Prepare(ctx context.Context, id string, req hint.Request, claims []ledger.Claim) ([]ledger.Claim, error) {
	l.heard = append(l.heard, "prepare")
	if l.during != nil {
		l.during()
	}
	return l.Slots.Prepare(ctx, id, req, claims)
}

func (l *lessor) Lease(id string) (ledger.Lease, bool) {
	return ledger.Lease{ID: "slots/" + id, Provider: "slots", AdmissionID: id, Expires: time.Unix(l.until, 0)}, true
}

func (l *lessor) Abort(context.Context, string) { l.heard = append(l.heard, "abort") }

// with puts a provider behind those of the engine.
func (h *fixture) with(t *testing.T, p hint.Provider) {
	t.Helper()
	bus, err := hint.NewBus(nil, append(h.bus.Load().Entries(), hint.Entry{Provider: p, Mode: hint.Required}), nil)
	must(t, err)
	h.bus.Store(bus)
}

// wantingSlot is a pod that requests a slot.
func wantingSlot(uid string) workload.Pod {
	p := guaranteed(uid, 1, 0)
	p.Containers[0].Requests[hinttest.SlotResource] = 1
	return p
}

// The lease is in the commit that makes the claims.
func TestLeaseIsCommittedWithTheClaims(t *testing.T) {
	t.Parallel()
	h := newFixture(t, topology.BestEffort)
	l := &lessor{Slots: hinttest.Slots{At: map[string]int{"s": 1}}, until: 1060}
	h.with(t, l)
	commits := h.journal.Commits()
	if v := h.admit(t, wantingSlot("a")); v.Outcome != admission.Admitted {
		t.Fatalf("%s: %s", v.Reason, v.Message)
	}
	leases := slices.Collect(h.ledger.View().Leases())
	if len(leases) != 1 || leases[0].AdmissionID != "adm-1" || h.journal.Commits() != commits+1 {
		t.Errorf("leases %+v after %d commits", leases, h.journal.Commits()-commits)
	}
}

// An admission that took longer than what was reserved for it is deferred, or refused without deferrals, and
// what was reserved is given back.
func TestLeaseRunsOutBeforeTheCommit(t *testing.T) {
	t.Parallel()
	for outcome, defers := range map[admission.Outcome]bool{admission.Deferred: true, admission.Rejected: false} {
		h := newFixture(t, topology.BestEffort)
		h.DeferWaits = defers
		l := &lessor{Slots: hinttest.Slots{At: map[string]int{"s": 1}}, until: 1060}
		l.during = func() { h.now.Store(1060) }
		h.with(t, l)
		v := h.admit(t, wantingSlot("a"))
		if v.Outcome != outcome || !strings.Contains(v.Message, "provider slots") {
			t.Errorf("outcome %v, want %v: %s", v.Outcome, outcome, v.Message)
		}
		if c := v.Condition; defers && (c == nil || *c != admission.Condition{Type: hint.LeaseExpired, Provider: "slots"}) {
			t.Errorf("condition %+v", c)
		}
		if want := []string{"prepare", "abort"}; !slices.Equal(l.heard, want) {
			t.Errorf("heard %q, want %q", l.heard, want)
		}
		view := h.ledger.View()
		if view.NumPods() != 0 || len(slices.Collect(view.Leases())) != 0 || len(h.cgroups.pods) != 0 {
			t.Errorf("left: %d pods, cgroups of %v", view.NumPods(), h.cgroups.pods)
		}
	}
}

// An admission stays with the bus that it began with, also when it plans again.
func TestAdmissionKeepsItsBus(t *testing.T) {
	t.Parallel()
	h := newFixture(t, topology.BestEffort)
	before := h.bus.Load()
	l := &lessor{Slots: hinttest.Slots{At: map[string]int{"s": 1}}, until: 1060}
	l.during = func() {
		h.bus.Store(before) // the provider is taken off the bus
		if len(l.heard) == 1 {
			h.taken(t, "other", "1,9")
		}
	}
	h.with(t, l)
	v := h.admit(t, wantingSlot("a"))
	if v.Outcome != admission.Admitted || !v.Pod.Holds(string(hinttest.SlotResource)) || !has(ledger.StepReplanned, v.Trace) {
		t.Errorf("outcome %v (%s), claims %+v", v.Outcome, v.Message, v.Pod)
	}
	if want := []string{"prepare", "abort", "prepare"}; !slices.Equal(l.heard, want) {
		t.Errorf("heard %q, want %q", l.heard, want)
	}
	if v := h.admit(t, wantingSlot("b")); v.Outcome != admission.Admitted || v.Pod.Holds(string(hinttest.SlotResource)) {
		t.Errorf("the next admission still asks the provider that is gone: %v, %+v", v.Outcome, v.Pod)
	}
}

// listener is a lessor that reads the reservations when it gets an abort.
type listener struct {
	lessor
	look func()
}

func (l *listener) Abort(ctx context.Context, id string) { l.look(); l.lessor.Abort(ctx, id) }

// What a provider has reserved for an admission that cannot be committed is given back
// before the admission's own reservation ends: who waits for that would be refused.
func TestReservationOutlivesTheUndo(t *testing.T) {
	t.Parallel()
	h := newFixture(t, topology.BestEffort)
	var reserved []string
	l := &listener{lessor: lessor{Slots: hinttest.Slots{At: map[string]int{"s": 1}}, until: 1060}}
	l.look = func() { reserved = h.Reserved() }
	h.with(t, l)
	h.journal.FailNext(1, errors.New("disk full"))
	if _, err := h.Admit(t.Context(), admission.Request{Pod: wantingSlot("a")}); err == nil {
		t.Fatal("admitted")
	}
	if !slices.Equal(reserved, []string{"a"}) {
		t.Errorf("reserved when the provider was told: %v", reserved)
	}
	h.nothingReserved(t)
}

// TestOvertakenPlanIsGivenBack: a plan that is not valid any more is aborted at the
// providers before its reservation ends: who comes then is offered what they hold.
func TestOvertakenPlanIsGivenBack(t *testing.T) {
	t.Parallel()
	h := newFixture(t, topology.BestEffort)
	var reserved []string
	l := &listener{lessor: lessor{Slots: hinttest.Slots{At: map[string]int{"s": 1}}, until: 1060}}
	l.look = func() { reserved = append(reserved, h.Reserved()...) }
	l.during = func() {
		if len(l.heard) == 1 {
			h.taken(t, "other", "1,9")
		}
	}
	h.with(t, l)
	if v := h.admit(t, wantingSlot("a")); v.Outcome != admission.Admitted || !has(ledger.StepReplanned, v.Trace) {
		t.Fatalf("outcome %v (%s)", v.Outcome, v.Message)
	}
	if want := []string{"prepare", "abort", "prepare"}; !slices.Equal(l.heard, want) {
		t.Errorf("heard %q, want %q", l.heard, want)
	}
	if !slices.Equal(reserved, []string{"a"}) {
		t.Errorf("reserved when the provider was told: %v", reserved)
	}
	h.nothingReserved(t)
}
