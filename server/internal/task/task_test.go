package task_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/berthd/berth/server/internal/task"
)

func untilDone(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }

func TestOrderlyEnd(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	g := task.New()
	var started sync.WaitGroup
	for _, name := range []string{"a", "b"} {
		started.Add(1)
		g.Go(name, func(ctx context.Context) error { started.Done(); return untilDone(ctx) })
	}
	var mu sync.Mutex
	var order []string
	for _, name := range []string{"first", "second"} {
		g.OnStop(name, func(ctx context.Context) error {
			mu.Lock()
			defer mu.Unlock()
			order = append(order, name)
			return ctx.Err()
		})
	}
	go func() { started.Wait(); cancel() }()
	if err := g.Run(ctx, time.Minute); err != nil {
		t.Fatal(err)
	}
	if want := []string{"second", "first"}; !slices.Equal(order, want) {
		t.Errorf("stops ran as %v, want %v", order, want)
	}
}

// TestTasksOutliveStops: a stop that waits for calls under way must not find the
// tasks gone which those calls need.
func TestTasksOutliveStops(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	g := task.New()
	asked, answered := make(chan struct{}), make(chan struct{})
	g.Go("answers", func(ctx context.Context) error {
		select {
		case <-asked:
			close(answered)
		case <-ctx.Done():
		}
		<-ctx.Done()
		return ctx.Err()
	})
	g.OnStop("asks", func(ctx context.Context) error {
		close(asked)
		select {
		case <-answered:
			return nil
		case <-ctx.Done():
			return errors.New("nobody answers")
		}
	})
	cancel()
	if err := g.Run(ctx, time.Minute); err != nil {
		t.Fatal(err)
	}
}

// TestLateStopLeavesTasksTheirTime: a stop that uses up the grace is cut, and the
// tasks still get to end in order.
func TestLateStopLeavesTasksTheirTime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		g := task.New()
		g.Go("orderly", untilDone)
		g.OnStop("slow", func(ctx context.Context) error { <-ctx.Done(); return nil })
		cancel()
		if err := g.Run(ctx, time.Second); err != nil {
			t.Fatal(err)
		}
	})
}

func TestFirstFailureEndsAll(t *testing.T) {
	t.Parallel()
	boom := errors.New("boom")
	g := task.New()
	g.Go("waits", untilDone)
	g.Go("fails", func(context.Context) error { return boom })
	if err := g.Run(t.Context(), time.Minute); !errors.Is(err, boom) {
		t.Fatalf("got %v, want the failing task's error", err)
	}
}

func TestPanicIsAnError(t *testing.T) {
	t.Parallel()
	g := task.New()
	g.Go("bad", func(context.Context) error { panic("no") })
	g.OnStop("worse", func(context.Context) error { panic("never") })
	err := g.Run(t.Context(), time.Minute)
	if err == nil || !strings.Contains(err.Error(), "bad: panic: no") || !strings.Contains(err.Error(), "worse: panic: never") {
		t.Fatalf("got %v, want both panics", err)
	}
}

func TestStubbornTaskIsReported(t *testing.T) {
	t.Parallel()
	release := make(chan struct{})
	defer close(release)
	ctx, cancel := context.WithCancel(t.Context())
	g := task.New()
	g.Go("deaf", func(context.Context) error { <-release; return nil })
	cancel()
	err := g.Run(ctx, time.Millisecond)
	if err == nil || !strings.Contains(err.Error(), "still ran") {
		t.Fatalf("got %v, want a report of the task that did not stop", err)
	}
}
