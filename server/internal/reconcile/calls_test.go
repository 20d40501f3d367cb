package reconcile

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/berthd/berth/managers/admission"
	"github.com/berthd/berth/managers/cgroup"
	"github.com/berthd/berth/managers/cgroup/memtree"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/workload"
	"github.com/berthd/berth/server/internal/runtime"
)

// slowRuntime is a fake runtime on the clock of synctest, in which pod a has containers that do
// not run, "stuck", and that do, a1 to a3. Updates of the stuck ones are never
// answered.
func slowRuntime(t *testing.T, stuck ...string) (*bench, *fakeRuntime) {
	t.Helper()
	b, d := newFakeRuntime(t, memtree.V1())
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

// A container of which the runtime does not answer costs the others one moment in a turn,
// and those their start who need its CPUs.
func TestStuckContainers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b, d := slowRuntime(t, "0", "1")
		for _, wait := range []time.Duration{turnWait + leastWait, 0, 0} {
			took(t, wait, func() {
				if err := b.Follow(t.Context()); !errors.Is(err, errPending) || errdefs.ClassOf(err) != errdefs.Deadline {
					t.Errorf("got %v", err)
				}
			})
		}
		for _, id := range []string{"a1", "a2", "a3"} {
			b.on("a", id, "0-1")
		}
		// A sharer starts all the same.
		b.admit("b", workload.Guaranteed, cpus(100))
		d.create("b1", "b", "0-1")
		took(t, 0, func() { b.must(b.prestart("b1", "b")) })
		d.start(t, "b1")
		// A container with CPUs of its own waits for those that may be on them for as long as it has time.
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		_, err := b.EnsureContainer(ctx, b.ledger.View(), admission.Start{Binding: box("own1", "own")})
		if !errors.Is(err, errBlocked) {
			t.Errorf("who knows where the stuck ones will run: %v", err)
		}
		d.set(func() { clear(d.hang) })
		time.Sleep(callTime)
		took(t, 0, func() { b.must(b.Follow(t.Context())) })
		for _, id := range []string{"0", "1"} {
			d.start(t, id)
		}
		b.must(b.prestart("own1", "own"))
		if len(b.tracker.writes) > 0 {
			t.Errorf("writes under way: %v", b.tracker.writes)
		}
	})
}

// A call that takes longer than a turn waits is not repeated: its answer is taken when it
// is there.
func TestSlowAnswersCount(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b, d := newFakeRuntime(t, memtree.V1())
		b.Now = time.Now
		d.create("a1", "a", "0-3")
		b.must(b.prestart("a1", "a"))
		d.set(func() { d.slow = 3 * turnWait })
		for _, wait := range []time.Duration{turnWait, 0} {
			took(t, wait, func() {
				if err := b.Follow(t.Context()); !errors.Is(err, errPending) {
					t.Errorf("got %v", err)
				}
			})
		}
		time.Sleep(2 * turnWait)
		synctest.Wait()
		took(t, 0, func() { b.must(b.Follow(t.Context())) })
		// A caller with less time than that does not count against the runtime.
		took(t, turnWait/2, func() {
			ctx, cancel := context.WithTimeout(t.Context(), turnWait/2)
			defer cancel()
			if err := b.Follow(ctx); errdefs.ClassOf(err) != errdefs.Deadline {
				t.Errorf("got %v", err)
			}
		})
	})
}

// A runtime that does not answer costs all turns of the outage together one wait.
func TestOneWaitInAnOutage(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b, d := slowRuntime(t)
		for range 2 {
			d.set(func() { d.slow = time.Hour })
			took(t, turnWait+30*time.Second, func() {
				for range 30 {
					if err := b.Pass(t.Context()); !errors.Is(err, errPending) && errdefs.ClassOf(err) != errdefs.Deadline {
						t.Errorf("got %v", err)
					}
					time.Sleep(time.Second)
				}
			})
			d.set(func() { d.slow = 0 })
			time.Sleep(callTime) // the last call that hangs
			_ = b.Pass(t.Context())
			synctest.Wait()
			b.must(b.Pass(t.Context()))
		}
	})
}

// A start whose write takes long waits for the answer, and is not held up for another
// call.
func TestSlowWritesOfAStart(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b, d := newFakeRuntime(t, memtree.V1())
		b.Now = time.Now
		d.create("a1", "a", "0-3")
		d.hang = map[string]bool{"a1": true}
		time.AfterFunc(3*turnWait, func() { d.release("a1") })
		took(t, 3*turnWait, func() { b.must(b.prestart("a1", "a")) })
		if got := d.boxes["a1"].sent; got != 1 {
			t.Errorf("it was sent %d times", got)
		}
		d.set(func() { d.hang["a1"] = true })
		ctx, cancel := context.WithTimeout(t.Context(), 5*turnWait)
		defer cancel()
		took(t, 5*turnWait, func() {
			_, err := b.EnsureContainer(ctx, b.ledger.View(), admission.Start{Binding: box("a1", "a"), Again: true})
			if !errors.Is(err, errPending) {
				t.Errorf("got %v", err)
			}
		})
	})
}

// A removal calls the runtime only for what it does not know yet. While
// a container may run that cannot be found, its pod is not removed, and the error names
// which.
func TestRemovalBesideASilentRuntime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b, d := slowRuntime(t)
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
		took(t, turnWait, func() {
			err := b.RemovePod(t.Context(), b.ledger.View(), "b")
			if errdefs.ClassOf(err) != errdefs.Unavailable || err == nil {
				t.Errorf("container new may run anywhere: %v", err)
			}
		})
	})
}

// A caller that needs the tree while the runtime hangs gives up when its own
// time is over.
func TestTurnsAreWaitedForNoLongerThanAskedFor(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b, _ := slowRuntime(t, "stuck")
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
				_, err := b.EnsureContainer(ctx, view, admission.Start{Binding: ledger.Binding{ID: "x",
					Owner: ledger.Owner{Pod: "a", Container: "c"}}})
				return err
			},
			"pass":   b.Pass,
			"begin":  b.Begin,
			"report": func(ctx context.Context) error { _, err := b.Report(ctx); return err },
			"tiers":  func(ctx context.Context) error { _, err := b.UpdateTiers(ctx); return err },
		} {
			ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
			took(t, time.Millisecond, func() {
				if err := do(ctx); errdefs.ClassOf(err) != errdefs.Deadline || !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("%s: %v", what, err)
				}
			})
			cancel()
		}
		if err := <-done; errdefs.ClassOf(err) != errdefs.Deadline {
			t.Error(err)
		}
		if len(b.wanted.leaving) > 0 {
			t.Errorf("leaving: %v", b.wanted.leaving)
		}
	})
}

// A runtime is called less and less often while a start is expected, and soon again after
// another start.
func TestRunAsksLessAndLessOften(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b, d := newFakeRuntime(t, memtree.V1())
		b.Now, b.Every = time.Now, time.Hour
		b.admit("b", workload.Guaranteed, cpus(100))
		d.create("a1", "a", "0-3")
		b.must(b.prestart("a1", "a"))
		b.must(b.Follow(t.Context()))
		away := errdefs.Unavailablef("nobody there")
		d.set(func() { d.fail = away })
		var looks []time.Duration
		start := time.Now()
		b.Config.Observe = func(o Outcome) {
			if errors.Is(o.Err, away) {
				looks = append(looks, time.Since(start))
			}
		}
		errorLines, infoLines := 0, 0
		b.Log = slog.New(slog.NewTextHandler(io.Discard, &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
			switch {
			case a.Key == slog.LevelKey && a.Value.Any() == slog.LevelError:
				errorLines++
			case a.Key == slog.LevelKey && a.Value.Any() == slog.LevelInfo:
				infoLines++
			}
			return a
		}}))
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		time.AfterFunc(55*time.Second, func() { d.set(func() { d.fail = nil }); b.Wake() })
		if err := b.Run(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
		if errorLines != 1 || infoLines != 1 {
			t.Errorf("one outage makes %d lines about an error, and %d others", errorLines, infoLines)
		}
		if got := fmt.Sprint(looks); got != "[50ms 150ms 350ms 750ms 1.55s 3.15s 6.35s 12.75s 25.55s 51.15s]" {
			t.Errorf("it was asked after %s", got)
		}
	})
}

// A container that ends while it is updated has left its CPUs, whatever the runtime's error is.
func TestEndsWhileUpdated(t *testing.T) {
	t.Parallel()
	b, d := asked(t)
	d.start(t, "a1")
	b.must(b.Follow(t.Context()))
	b.own()
	d.create("own1", "own", "2-3")
	d.set(func() { d.stopped = map[string]error{"a1": errdefs.Unavailablef("cannot update a stopped container")} })
	// Its process has gone, its cgroup is still there.
	path := "/kubepods/poda/a1"
	pids, err := b.tree.Procs(t.Context(), name(path))
	b.must(err)
	b.must(b.tree.Move(t.Context(), cgroup.Name{}, pids...))
	b.must(b.prestart("own1", "own"))
}
