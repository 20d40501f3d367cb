package reconcile

import (
	"context"
	"fmt"
)

// gate is a lock with a wait that ends with a context.
type gate chan struct{}

// Lock waits without a context.
func (g gate) Lock() { g <- struct{}{} }

// Unlock releases the lock.
func (g gate) Unlock() { <-g }

// turns is the lock of a Loop: until it is unlocked, no other operation writes cgroups.
type turns struct {
	gate
	// begin is called with the lock at the begin of each turn with a context.
	begin func()
}

// enter begins a turn. After an error, which is that of ctx, the lock is not held.
func (t turns) enter(ctx context.Context) error {
	select {
	case t.gate <- struct{}{}:
		t.begin()
		return nil
	case <-ctx.Done():
		return fmt.Errorf("wait for the cgroups that are being written: %w", context.Cause(ctx))
	}
}
