package admission_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/berthd/berth/managers/admission"
	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/hint"
	"github.com/berthd/berth/managers/hint/hinttest"
	"github.com/berthd/berth/managers/importer"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/topology"
)

// attentive is a lessor that does nothing for a caller that has left.
type attentive struct {
	lessor
	aborted []string
}

func (a *attentive) Abort(ctx context.Context, id string) {
	if ctx.Err() == nil {
		a.aborted = append(a.aborted, id)
	}
}

// TestCallerLeaves ends the caller's context between the effects of a call and its commit.
// The commit is not made, the call fails with the caller's reason, and everything that it
// has done is undone.
func TestCallerLeaves(t *testing.T) {
	t.Parallel()
	leaving := func(h *fixture, leave func()) { h.cgroups.recording = leave }
	for name, c := range map[string]struct {
		// arrange lets the caller leave inside the call.
		arrange func(h *fixture, leave func())
		call    func(ctx context.Context, h *fixture) error
		undone  func(h *fixture) bool
	}{
		"Admit": {
			leaving,
			func(ctx context.Context, h *fixture) error {
				_, err := h.Admit(ctx, admission.Request{Pod: guaranteed("new", 1, 1)})
				return err
			},
			func(h *fixture) bool { return !h.cgroups.pods["new"] },
		},
		"Admit, taking over a living pod": {
			leaving,
			func(ctx context.Context, h *fixture) error {
				_, err := h.Admit(ctx, admission.Request{
					Pod: guaranteed("new", 1, 0), RunningAllocations: []admission.RunningAllocation{{Container: "main",
						CPUs: cpuset.Of(5)}},
				})
				return err
			},
			func(h *fixture) bool { return !h.cgroups.pods["new"] },
		},
		"Resize": {
			func(h *fixture, leave func()) { h.cgroups.resizing = func() { h.cgroups.resizing = nil; leave() } },
			func(ctx context.Context, h *fixture) error {
				_, err := h.Resize(ctx, resizeTo(burstable("old", 700, 2<<20), false))
				return err
			},
			func(h *fixture) bool { return slices.Equal(h.cgroups.sizes, []int64{700, 500}) },
		},
		"Remove": {
			func(h *fixture, leave func()) { h.cgroups.removing = leave },
			func(ctx context.Context, h *fixture) error {
				_, _, err := h.Remove(ctx, "old", admission.Scope{})
				return err
			},
			func(h *fixture) bool { return h.cgroups.pods["old"] },
		},
		"Import": {
			leaving,
			func(ctx context.Context, h *fixture) error {
				req := importer.Request{Data: file("0,2-15", "new/main=1"), Pods: nil}
				req.Pods = append(req.Pods, guaranteed("new", 1, 0))
				_, err := h.takeWith(ctx, req)
				return err
			},
			func(h *fixture) bool { return !h.cgroups.pods["new"] },
		},
	} {
		for left, want := range map[error]errdefs.Class{context.Canceled: errdefs.Canceled, context.DeadlineExceeded: errdefs.Deadline} {
			t.Run(name+", "+left.Error(), func(t *testing.T) {
				t.Parallel()
				h := newFixture(t, topology.BestEffort)
				h.admit(t, burstable("old", 500, 2<<20))
				before := h.ledger.View()
				ctx, leave := ending(t, left)
				c.arrange(h, leave)
				err := c.call(ctx, h)
				if ctx.Err() == nil {
					t.Fatal("the caller has not left")
				}
				if class(t, err) != want {
					t.Errorf("%v of class %v, want %v", err, errdefs.ClassOf(err), want)
				}
				code := map[errdefs.Class]errdefs.Code{errdefs.Canceled: "CALL_CANCELED", errdefs.Deadline: "TIMED_OUT"}[want]
				if got, _ := errdefs.CodeOf(err, errdefs.ClassOf(err)); got != code {
					t.Errorf("%v has the code %s, want %s", err, got, code)
				}
				if !strings.Contains(err.Error(), "nothing was committed") {
					t.Errorf("%q does not tell that nothing was committed", err)
				}
				if h.ledger.View() != before {
					t.Error("something was committed")
				}
				if !c.undone(h) {
					t.Errorf("not undone: cgroups %v, sizes %v", h.cgroups.pods, h.cgroups.sizes)
				}
				h.nothingReserved(t)
				if err := c.call(t.Context(), h); err != nil {
					t.Errorf("repeated: %v", err)
				}
			})
		}
	}
}

// ending returns a context that ends with an error when its function is called.
func ending(t *testing.T, with error) (ctx context.Context, end func()) {
	t.Helper()
	ctx, cancel := context.WithCancelCause(t.Context())
	end = func() { cancel(with) }
	if errors.Is(with, context.DeadlineExceeded) {
		ctx = late{ctx}
	}
	return ctx, end
}

// late is a context that ends as by its deadline.
type late struct{ context.Context }

func (l late) Err() error {
	if l.Context.Err() == nil {
		return nil
	}
	return context.DeadlineExceeded
}

// TestProvidersHearOfLeavers: what a provider has reserved for a caller that has left is released at once.
func TestProvidersHearOfLeavers(t *testing.T) {
	t.Parallel()
	attending := func(h *fixture) *attentive {
		a := &attentive{lessor: lessor{Slots: hinttest.Slots{At: map[string]int{"s": 1}}, until: 1060}}
		h.with(t, a)
		return a
	}
	t.Run("admission", func(t *testing.T) {
		t.Parallel()
		h := newFixture(t, topology.BestEffort)
		a := attending(h)
		ctx, leave := context.WithCancel(t.Context())
		a.during = leave
		if _, err := h.Admit(ctx, admission.Request{Pod: wantingSlot("a"), AdmissionID: "x"}); class(t, err) != errdefs.Canceled {
			t.Error(err)
		}
		if !slices.Equal(a.aborted, []string{"x"}) {
			t.Errorf("aborted %q", a.aborted)
		}
	})
	t.Run("overtaken admission", func(t *testing.T) {
		t.Parallel()
		h := newFixture(t, topology.BestEffort)
		a := attending(h)
		ctx, leave := context.WithCancel(t.Context())
		h.cgroups.recording = func() {
			leave()
			h.taken(t, "other", "1,9")
		}
		_, err := h.Admit(ctx, admission.Request{Pod: wantingSlot("a"), AdmissionID: "x"})
		if err == nil {
			t.Fatal("no error")
		}
		// Before the plan is repeated, and at the end.
		if !slices.Equal(a.aborted, []string{"x", "x"}) {
			t.Errorf("aborted %q, %v", a.aborted, err)
		}
	})
	t.Run("late answers", func(t *testing.T) {
		t.Parallel()
		h, r := takenOverWithSlots(t, hint.Required)
		a := &attentive{lessor: r.lessor}
		entries := h.bus.Load().Entries()
		entries[len(entries)-1].Provider = a
		bus, err := hint.NewBus(nil, entries, nil)
		must(t, err)
		h.bus.Store(bus)
		ctx, leave := context.WithCancel(t.Context())
		a.during = leave
		if err := h.Complete(ctx, "u"); class(t, err) != errdefs.Canceled {
			t.Error(err)
		}
		if !slices.Equal(a.aborted, []string{"adm-u"}) {
			t.Errorf("aborted %q", a.aborted)
		}
	})
}

// TestOnlyBlockersAreNamed: at its deadline a pod's message names the admission in flight that it waits for, and not all of them.
func TestOnlyBlockersAreNamed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := newFixture(t, topology.BestEffort)
		for uid, cpus := range map[string]int64{"large": 8, "small": 1} {
			hold := make(chan struct{})
			done := make(chan struct{})
			h.cgroups.recording = func() { <-hold }
			go func() { defer close(done); h.admit(t, guaranteed(uid, cpus, 0)) }()
			synctest.Wait()
			defer func() { close(hold); <-done }()
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		v, err := h.Admit(ctx, admission.Request{Pod: guaranteed("waits", 7, 0)})
		if err != nil || v.Outcome != admission.Deferred || !strings.HasSuffix(v.Message, "resized: large") {
			t.Errorf("%v %q, %v", v.Outcome, v.Message, err)
		}
	})
}

// TestLeaversWhoWait: who leaves while waiting for another operation gets an error of its
// own reason: the deadline passed, or the caller cancelled.
func TestLeaversWhoWait(t *testing.T) {
	t.Parallel()
	for left, want := range map[error]errdefs.Class{context.Canceled: errdefs.Canceled, context.DeadlineExceeded: errdefs.Deadline} {
		for what, uid := range map[string]string{"the pod": "slow", "the admission lock": "other"} {
			t.Run(what+", "+left.Error(), func(t *testing.T) {
				t.Parallel()
				h := newFixture(t, topology.BestEffort)
				inside, hold, done := make(chan struct{}), make(chan struct{}), make(chan struct{})
				h.ledger.Follow(func(_, _ *ledger.View) { close(inside); <-hold })
				go func() { defer close(done); h.admit(t, guaranteed("slow", 1, 0)) }()
				<-inside // slow holds its own lock and the admission lock
				ctx, leave := ending(t, left)
				leave()
				_, err := h.Admit(ctx, admission.Request{Pod: guaranteed(uid, 1, 0)})
				if class(t, err) != want || !strings.Contains(err.Error(), "wait for") {
					t.Errorf("%v of class %v, want %v", err, errdefs.ClassOf(err), want)
				}
				close(hold)
				<-done
			})
		}
	}
}
