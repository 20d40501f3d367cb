package reconcile

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/berthd/berth/managers/admission"
	"github.com/berthd/berth/managers/cgroup/memtree"
	"github.com/berthd/berth/managers/fault"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/workload"
	"github.com/berthd/berth/server/runtime"
)

// slowDock is a dock on the clock of a bubble, in which pod a has containers that do
// not run, "stuck", and that do, a1 to a3. Updates of the stuck ones are never
// answered.
func slowDock(t *testing.T, stuck ...string) (*bench, *dock) {
	t.Helper()
	b, d := newDock(t, memtree.V1())
	b.Now = time.Now
	for i, id := range append(stuck, "a1", "a2", "a3") {
		d.create(id, "a", "0-3")
		b.must(b.prestart(id, "a"))
		if i >= len(stuck) {
			d.start(t, id)
		}
	}
	b.must(b.Follow(t.Context()))
	d.hang = map[string]bool{}
	for _, id := range stuck {
		d.hang[id] = true
	}
	b.own()
	return b, d
}

// took expects how long something takes.
func took(t *testing.T, want time.Duration, what func()) {
	t.Helper()
	start := time.Now()
	what()
	if got := time.Since(start); got != want {
		t.Errorf("it took %s, want %s", got, want)
	}
}

// A container of which the runtime does not answer costs others their values only
// once, and never more than the patience of a pass.
func TestStuckContainers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b, d := slowDock(t, "0", "1")
		follow := func() {
			if err := b.Follow(t.Context()); fault.ClassOf(err) != fault.Deadline {
				t.Errorf("got %v", err)
			}
		}
		took(t, patience, follow) // all of it for 0
		b.on("a", "a1", "0-3")
		took(t, patience, follow) // and the rest for 1
		b.on("a", "a1", "0-3")
		took(t, 2*brief, follow)
		for _, id := range []string{"a1", "a2", "a3"} {
			b.on("a", id, "0-1")
		}
		if err := b.prestart("own1", "own"); fault.ClassOf(err) != fault.Deadline {
			t.Errorf("who knows where the stuck ones will run: %v", err)
		}
		d.set(func() { clear(d.hang) })
		took(t, 0, func() { b.must(b.Follow(t.Context())) })
		b.must(b.prestart("own1", "own"))
		if len(b.slow) > 0 {
			t.Errorf("still slow: %v", b.slow)
		}
	})
}

// A runtime that does not list its containers holds up the turn that finds this out for
// as long as a turn has patience, with whoever waits for the next one, and later turns
// for less; one that only takes its time is not cut off.
func TestSilentRuntime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b, d := slowDock(t)
		follow := func() {
			if err := b.Follow(t.Context()); fault.ClassOf(err) != fault.Deadline {
				t.Errorf("got %v", err)
			}
		}
		d.set(func() { d.slow = time.Hour })
		took(t, patience, func() {
			done := make(chan struct{})
			go func() { defer close(done); follow() }()
			synctest.Wait()
			_, _, err := b.EnsurePod(t.Context(), b.ledger.View(), "a")
			b.must(err)
			<-done
		})
		for range 2 {
			took(t, brief, func() {
				if err := b.prestart("own1", "own"); fault.ClassOf(err) != fault.Deadline {
					t.Errorf("nobody knows who runs: %v", err)
				}
			})
			for _, wait := range []time.Duration{2, 4, 8} {
				took(t, wait*brief, follow)
			}
		}
		d.set(func() { d.slow = 3 * brief })
		for _, wait := range []time.Duration{1, 2} {
			took(t, wait*brief, follow)
		}
		took(t, 3*brief, func() { b.must(b.Follow(t.Context())) })
		d.set(func() { d.slow = 9 * brief })
		took(t, 9*brief, func() { b.must(b.Follow(t.Context())) })
		// Who has less time than that says nothing about the runtime.
		took(t, brief, func() {
			ctx, cancel := context.WithTimeout(t.Context(), brief)
			defer cancel()
			if err := b.Follow(ctx); fault.ClassOf(err) != fault.Deadline {
				t.Errorf("got %v", err)
			}
		})
		took(t, 9*brief, func() { b.must(b.Follow(t.Context())) })
	})
}

// All that one turn asks a runtime has one bound.
func TestOneBoundForATurn(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b, d := slowDock(t)
		start := func() {
			if err := b.prestart("new", "a"); fault.ClassOf(err) != fault.Deadline {
				t.Errorf("got %v", err)
			}
		}
		// What is left after the list is for the write.
		d.set(func() { d.slow, d.hang["new"] = patience/2+brief, true })
		took(t, patience, start)
		took(t, brief, start)
		// That is less than what such a container gets.
		b.update(func(d *ledger.Draft) { d.RemovePod("own") })
		d.set(func() { d.slow = patience - brief/2 })
		took(t, patience, start)
	})
}

// A removal asks the runtime only where it has not said yet what the removal needs.
func TestRemovalOutlivesASilentRuntime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b, d := slowDock(t)
		b.admit("b", workload.Guaranteed, cpus(100))
		b.pass()
		for _, id := range []string{"b1", "b2", "b3"} {
			d.create(id, "b", "0-3")
			b.must(b.prestart(id, "b"))
		}
		d.start(t, "b1")
		d.set(func() { d.boxes["b2"].Phase = runtime.Exited })
		b.must(b.Follow(t.Context()))
		d.set(func() { d.slow = time.Hour })
		took(t, 0, func() {
			for _, uid := range []string{"a", "b"} {
				b.must(b.RemovePod(t.Context(), b.ledger.View(), uid))
			}
		})
		b.bind("new", "b")
		took(t, patience, func() { b.must(b.RemovePod(t.Context(), b.ledger.View(), "b")) })
	})
}

// Whoever needs the tree while the runtime lets everybody wait gives up when its own
// time is over.
func TestTurnsAreWaitedForNoLongerThanAskedFor(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b, _ := slowDock(t, "stuck")
		view := b.ledger.View()
		done := make(chan error)
		go func() { done <- b.Follow(t.Context()) }()
		synctest.Wait()
		for what, do := range map[string]func(context.Context) error{
			"pod":     func(ctx context.Context) error { _, _, err := b.EnsurePod(ctx, view, "a"); return err },
			"removal": func(ctx context.Context) error { return b.RemovePod(ctx, view, "a") },
			"resize":  func(ctx context.Context) error { return b.Resize(ctx, view, "a") },
			"check":   func(ctx context.Context) error { return b.CheckResize(ctx, view, "a") },
			"container": func(ctx context.Context) error {
				_, err := b.EnsureContainer(ctx, view, admission.Start{Binding: ledger.Binding{ID: "x", Owner: ledger.Owner{Pod: "a", Container: "c"}}})
				return err
			},
			"pass":   b.Pass,
			"begin":  b.Begin,
			"report": func(ctx context.Context) error { _, err := b.Report(ctx); return err },
			"tiers":  func(ctx context.Context) error { _, err := b.UpdateTiers(ctx); return err },
		} {
			ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
			took(t, time.Millisecond, func() {
				if err := do(ctx); fault.ClassOf(err) != fault.Deadline || !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("%s: %v", what, err)
				}
			})
			cancel()
		}
		if err := <-done; fault.ClassOf(err) != fault.Deadline {
			t.Error(err)
		}
		if len(b.leaving) > 0 {
			t.Errorf("leaving: %v", b.leaving)
		}
	})
}

// A runtime that is away is asked less and less often while a start is expected.
func TestRunHasPatienceWithARuntimeThatIsAway(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b, d := newDock(t, memtree.V1())
		b.Now, b.Every = time.Now, time.Hour
		b.admit("b", workload.Guaranteed, cpus(100))
		d.create("a1", "a", "0-3")
		b.must(b.prestart("a1", "a"))
		b.must(b.Follow(t.Context()))
		away := fault.Unavailablef("nobody there")
		d.set(func() { d.fail = away })
		var looks []time.Duration
		start := time.Now()
		b.Config.Observe = func(o Outcome) {
			if errors.Is(o.Err, away) {
				looks = append(looks, time.Since(start))
			}
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if err := b.Run(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
		if got := fmt.Sprint(looks); got != "[50ms 150ms 350ms 750ms 1.55s 3.15s 6.35s 12.75s]" {
			t.Errorf("it was asked after %s", got)
		}
	})
}
