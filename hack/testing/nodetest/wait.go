package nodetest

import (
	"context"
	"testing"
	"time"
)

// pause is how often a condition is looked at.
const pause = 5 * time.Millisecond

// Await waits for a condition as long as the context allows.
func Await(ctx context.Context, done func() bool) error {
	tick := time.NewTicker(pause)
	defer tick.Stop()
	for !done() {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// Eventually waits for a condition, and ends the test where it does not come about.
func Eventually(t testing.TB, timeout time.Duration, what string, done func() bool) {
	t.Helper()
	// What a test waits for in its clean-up, it waits for after its own context.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), timeout)
	defer cancel()
	if Await(ctx, done) != nil {
		t.Fatalf("waited in vain: %s", what)
	}
}
