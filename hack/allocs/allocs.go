// Package allocs limits in tests what operations allocate. Unlike times, the numbers do not depend on
// the load of the machine. The limit of an operation is what it has allocated at best; a change that
// lowers the number lowers the limit.
package allocs

import (
	"errors"
	"testing"
)

// AtMost fails if an operation allocates more than a number of objects. The test must not be
// parallel. With the race detector, which changes the numbers, it only runs the operation once.
func AtMost(t *testing.T, operation string, limit int, do func() error) {
	t.Helper()
	if raceDetector {
		if err := do(); err != nil {
			t.Errorf("%s: %v", operation, err)
		}
		return
	}
	var failed error
	if got := testing.AllocsPerRun(100, func() { failed = errors.Join(failed, do()) }); got > float64(limit) {
		t.Errorf("%s: %v allocations, want at most %d", operation, got, limit)
	}
	if failed != nil {
		t.Errorf("%s: %v", operation, failed)
	}
}
