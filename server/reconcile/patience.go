package reconcile

import (
	"context"
	"time"

	"github.com/berthd/berth/managers/cgroup"
	"github.com/berthd/berth/managers/fault"
	"github.com/berthd/berth/server/runtime"
)

const (
	// patience is how long one turn waits for the runtime, in all that it asks it: while
	// it does, nobody else gives orders to the kernel.
	patience = 10 * time.Second
	// brief is how long one waits for a container that let the last write wait too
	// long, so that it keeps no other from its values, and for the list of containers
	// where that did: turns that follow one another should not all take so long.
	brief = time.Second
)

// gate is a lock for which nobody waits longer than a context lasts.
type gate chan struct{}

// enter waits for the lock. An error is of class Deadline, and the lock is not held.
func (g gate) enter(ctx context.Context) error {
	select {
	case g <- struct{}{}:
		return nil
	case <-ctx.Done():
		return fault.Deadlinef("wait for the cgroups that are being written: %w", context.Cause(ctx))
	}
}

// Lock is enter for those that cannot do without.
func (g gate) Lock() { g <- struct{}{} }

// Unlock lets the next one in.
func (g gate) Unlock() { <-g }

// enter takes a turn: until mu is unlocked nobody else gives orders to the kernel, and
// the runtime has the patience of this turn. An error is gate's.
func (l *Loop) enter(ctx context.Context) error {
	if err := l.mu.enter(ctx); err != nil {
		return err
	}
	l.waited = 0
	return nil
}

// list asks the runtime for its containers, as long as this turn has patience. The
// caller holds mu.
func (l *Loop) list(ctx context.Context) (out []runtime.Container, err error) {
	if l.hurry == 0 {
		l.hurry = patience
	}
	late, err := l.ask(ctx, "list the containers", l.hurry, func(ctx context.Context) (err error) {
		out, err = l.Runtime.List(ctx)
		return err
	})
	switch {
	case err == nil:
		l.hurry = patience
	case late && 2*l.hurry > patience:
		l.hurry = brief
	case late:
		// One that needs more than a moment for its list is not cut off for good.
		l.hurry *= 2
	}
	return out, err
}

// tell has the runtime write values of a container, as long as this turn has patience.
// The caller holds mu.
func (l *Loop) tell(ctx context.Context, id string, v cgroup.Values) error {
	atMost := patience
	if l.slow[id] {
		atMost = brief
	}
	late, err := l.ask(ctx, "update container "+id, atMost, func(ctx context.Context) error {
		return l.Runtime.Update(ctx, id, v)
	})
	switch {
	case err == nil:
		delete(l.slow, id)
	case late && l.slow == nil:
		l.slow = map[string]bool{id: true}
	case late:
		l.slow[id] = true
	}
	return err
}

// ask calls the runtime, for no longer than the patience of this turn lasts, and tells
// whether that was too short. The caller holds mu.
func (l *Loop) ask(ctx context.Context, what string, atMost time.Duration, call func(context.Context) error) (late bool, err error) {
	left := patience - l.waited
	if left <= 0 {
		return false, fault.Unavailablef("%s: the container runtime needed %s for other things", what, l.waited)
	}
	begun := l.Now()
	within, cancel := context.WithTimeout(ctx, min(left, atMost))
	defer cancel()
	err = call(within)
	l.waited += l.Now().Sub(begun)
	return err != nil && within.Err() != nil && ctx.Err() == nil, err
}
