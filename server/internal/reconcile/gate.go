package reconcile

import (
	"context"
	"fmt"
)

// gate is a lock with a wait that ends with a context.
type gate chan struct{}

// enter waits for the lock. After an error, which is that of ctx, the lock is not held.
func (g gate) enter(ctx context.Context) error {
	select {
	case g <- struct{}{}:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("wait for the cgroups that are being written: %w", context.Cause(ctx))
	}
}

// Lock is enter without a context.
func (g gate) Lock() { g <- struct{}{} }

// Unlock releases the lock.
func (g gate) Unlock() { <-g }

// enter begins a turn: until mu is unlocked, no other operation writes cgroups. Errors are
// those of gate.
func (l *Loop) enter(ctx context.Context) error {
	if err := l.mu.enter(ctx); err != nil {
		return err
	}
	l.calls.begin()
	l.calls.applyAnswers()
	return nil
}
