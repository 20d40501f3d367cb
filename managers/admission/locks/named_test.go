package locks

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
)

// TestNamed: calls with one name come one after another, others beside them; a call that waits says so first, and gives up
// when its context ends. Nothing is left of a name that no call has.
func TestNamed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		waits := 0
		n := Named{Waits: func(context.Context) { waits++ }}
		unlock, err := n.Lock(t.Context(), "operation on pod", "a")
		if err != nil || waits != 0 {
			t.Fatalf("a free lock: %v after %d waits", err, waits)
		}
		other, ok := n.TryLock("b")
		if !ok {
			t.Fatal("the lock of another name is held")
		}
		if _, ok := n.TryLock("a"); ok {
			t.Fatal("one lock has two holders")
		}
		var next bool
		go func() {
			unlock, err := n.Lock(t.Context(), "operation on pod", "a")
			if err != nil {
				t.Error(err)
				return
			}
			next = true
			unlock()
		}()
		synctest.Wait()
		if next || waits != 1 {
			t.Fatalf("a held lock: passed on %t after %d waits", next, waits)
		}
		gone, cancel := context.WithCancelCause(t.Context())
		cancel(errors.New("no time"))
		if _, err := n.Lock(gone, "operation on pod", "a"); err == nil ||
			err.Error() != "wait for another operation on pod a: no time" {
			t.Errorf("a call without time: %v", err)
		}
		unlock()
		synctest.Wait()
		if !next {
			t.Error("the lock was not passed on")
		}
		other()
		if len(n.locks) > 0 {
			t.Errorf("left: %v", n.locks)
		}
	})
}
