package task

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"sync"
	"time"
)

// Task runs until ctx ends. A nil error before that also ends all other tasks.
type Task struct {
	Name string
	Run  func(ctx context.Context) error
}

// Group is a list of tasks and stops. It is filled first and run once.
type Group struct {
	tasks []Task
	stops []Task
}

// New makes an empty group.
func New() *Group { return &Group{} }

// Go adds a task.
func (g *Group) Go(name string, run func(ctx context.Context) error) {
	g.tasks = append(g.tasks, Task{name, run})
}

// OnStop adds a stop. Its context ends when the time for stopping is up.
func (g *Group) OnStop(name string, stop func(ctx context.Context) error) {
	g.stops = append(g.stops, Task{name, stop})
}

// Run starts every task, waits until ctx ends or a task returns, then runs the
// stops, newest first, and only then ends the tasks' own context: what a stop
// waits for may still need a task that knows no stop. It returns what went wrong,
// nil for an orderly end. The stops take at most grace, and so do the tasks.
func (g *Group) Run(ctx context.Context, grace time.Duration) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	running, end := context.WithCancel(context.WithoutCancel(ctx))
	defer end()
	var (
		wg   sync.WaitGroup
		mu   sync.Mutex
		errs []error
	)
	for _, t := range g.tasks {
		wg.Go(func() {
			err := guard(running, t)
			if err != nil && running.Err() != nil && errors.Is(err, context.Canceled) {
				err = nil
			}
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				errs = append(errs, err)
			}
			cancel(fmt.Errorf("task %s has ended", t.Name))
		})
	}
	<-ctx.Done()

	// The outer context has ended already; stops get a fresh one.
	stopping, done := context.WithTimeout(context.WithoutCancel(ctx), grace)
	defer done()
	for i := len(g.stops) - 1; i >= 0; i-- {
		if err := guard(stopping, g.stops[i]); err != nil {
			mu.Lock()
			errs = append(errs, err)
			mu.Unlock()
		}
	}
	end()
	late := time.NewTimer(grace)
	defer late.Stop()
	finished := make(chan struct{})
	go func() { wg.Wait(); close(finished) }()
	select {
	case <-finished:
	case <-late.C:
		mu.Lock()
		errs = append(errs, fmt.Errorf("some tasks still ran %s after they were stopped", grace))
		mu.Unlock()
	}
	mu.Lock()
	defer mu.Unlock()
	return errors.Join(errs...)
}

// guard runs a task and turns a panic into an error.
func guard(ctx context.Context, t Task) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("%s: panic: %v\n%s", t.Name, p, debug.Stack())
		}
	}()
	if err := t.Run(ctx); err != nil {
		return fmt.Errorf("%s: %w", t.Name, err)
	}
	return nil
}
