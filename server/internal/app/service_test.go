package app

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// TestAliveWithCommits: the service manager hears nothing while a commit hangs.
func TestAliveWithCommits(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		hangs := make(chan struct{}, 1)
		var told atomic.Int64
		ended := make(chan error, 1)
		go func() {
			ended <- alive(ctx, time.Second, func(ctx context.Context) error {
				select {
				case hangs <- struct{}{}:
					<-hangs
					return nil
				case <-ctx.Done():
					return ctx.Err()
				}
			}, func() { told.Add(1) })
		}()
		time.Sleep(10*time.Second + time.Millisecond)
		if told.Load() != 11 {
			t.Errorf("told %d times in 10 s, want 11", told.Load())
		}
		hangs <- struct{}{} // a commit does not come to its end
		time.Sleep(time.Minute)
		if told.Load() != 11 {
			t.Errorf("told %d times while a commit hangs, want 11", told.Load())
		}
		<-hangs
		time.Sleep(10 * time.Second)
		if told.Load() < 20 {
			t.Errorf("told %d times after it has ended", told.Load())
		}
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	})
}
