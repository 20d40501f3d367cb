package reconcile

import (
	"context"

	"github.com/berthd/berth/managers/errdefs"
)

// gate is a lock for which nobody waits longer than a context lasts.
type gate chan struct{}

// enter waits for the lock. An error is of class Deadline, and the lock is not held.
func (g gate) enter(ctx context.Context) error {
	select {
	case g <- struct{}{}:
		return nil
	case <-ctx.Done():
		return errdefs.Deadlinef("wait for the cgroups that are being written: %w", context.Cause(ctx))
	}
}

// Lock is enter for those that cannot do without.
func (g gate) Lock() { g <- struct{}{} }

// Unlock lets the next one in.
func (g gate) Unlock() { <-g }

// enter takes a turn: until mu is unlocked nobody else gives orders to the kernel. An
// error is gate's.
func (l *Loop) enter(ctx context.Context) error {
	if err := l.mu.enter(ctx); err != nil {
		return err
	}
	l.calls.begin()
	l.settleWrites()
	return nil
}
