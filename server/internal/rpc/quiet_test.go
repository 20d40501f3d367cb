package rpc

import (
	"context"
	"io"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/tap"
	"google.golang.org/protobuf/types/known/emptypb"
)

// TestCostlyCallsWaitForRoot: a costly call of another user begins when root's agent is
// quiet, or after a while; with no agent about at once.
func TestCostlyCallsWaitForRoot(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := bounded(io.Discard)
		cfg := Config{limiter: c}
		_, readers, err := c.dial(t, reader)
		if err != nil {
			t.Fatal(err)
		}
		begin := func() (context.Context, context.CancelFunc) {
			ctx, end := context.WithCancel(readers)
			if ctx, err = c.tap(ctx, &tap.Info{FullMethodName: list}); err != nil {
				t.Fatal(err)
			}
			return ctx, end
		}
		costly := func() (waited time.Duration) {
			ctx, end := begin()
			defer end()
			begun := time.Now()
			_, err := cfg.gateUnary(ctx, nil, &grpc.UnaryServerInfo{FullMethod: list}, func(context.Context, any) (any, error) {
				waited = time.Since(begun)
				return &emptypb.Empty{}, nil
			})
			if err != nil {
				t.Error(err)
			}
			return waited
		}
		_, roots, err := c.dial(t, root)
		if err != nil {
			t.Fatal(err)
		}
		agents := func(takes time.Duration) { // a call of root's
			_, err := c.beginUnary(roots, nil, nil, func(context.Context, any) (any, error) {
				time.Sleep(takes)
				return &emptypb.Empty{}, nil
			})
			if err != nil {
				t.Error(err)
			}
		}
		for _, row := range []struct {
			name     string
			takes    time.Duration // by the agent's call, which begins before
			ago      time.Duration // since when the costly call comes
			from, to time.Duration // that it waits
		}{
			{"nobody else", 0, time.Hour, 0, 0},
			{"a call just now", 0, time.Millisecond, quietFor - time.Millisecond, quietFor - time.Millisecond},
			{"a call under way", 15 * time.Millisecond, time.Millisecond, 14*time.Millisecond + quietFor, 14*time.Millisecond + quietFor},
			{"a call that waits for others", time.Minute, time.Millisecond, quietWait, quietWait},
		} {
			go agents(row.takes)
			time.Sleep(row.ago)
			if waited := costly(); waited < row.from || waited > row.to {
				t.Errorf("%s: waited %v, want %v to %v", row.name, waited, row.from, row.to)
			}
			time.Sleep(time.Hour)
		}
		// Who gives up keeps nothing.
		go agents(time.Minute)
		synctest.Wait()
		ctx, end := begin()
		defer end()
		ctx, cancel := context.WithTimeout(ctx, time.Millisecond)
		defer cancel()
		if _, err := cfg.gateUnary(ctx, nil, &grpc.UnaryServerInfo{FullMethod: list}, nil); err == nil || c.slots.free != 1 ||
			len(c.slots.users) != 0 {
			t.Errorf("given up: %v; %d slots are free, %v", err, c.slots.free, c.slots.users)
		}
		time.Sleep(time.Hour)
	})
}
