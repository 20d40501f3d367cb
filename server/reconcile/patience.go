package reconcile

import (
	"context"
	"time"

	"github.com/berthd/berth/managers/cgroup"
	"github.com/berthd/berth/managers/fault"
)

const (
	// patience is how long the writes of one pass wait for the runtime in all: while
	// they do, nobody else gives orders to the kernel.
	patience = 10 * time.Second
	// brief is how long one waits for a container that let the last write wait too
	// long, so that it keeps no other from its values.
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

// tell has the runtime write values of a container, as long as this pass has patience.
// The caller holds mu.
func (l *Loop) tell(ctx context.Context, id string, v cgroup.Values) error {
	left := patience - l.waited
	if left <= 0 {
		return fault.Unavailablef("update container %s: the container runtime needed %s for others", id, l.waited)
	}
	if l.slow[id] {
		left = min(left, brief)
	}
	begun := l.Now()
	within, cancel := context.WithTimeout(ctx, left)
	defer cancel()
	err := l.Runtime.Update(within, id, v)
	l.waited += l.Now().Sub(begun)
	switch {
	case err == nil:
		delete(l.slow, id)
	case within.Err() != nil && ctx.Err() == nil:
		if l.slow == nil {
			l.slow = map[string]bool{}
		}
		l.slow[id] = true
	}
	return err
}
