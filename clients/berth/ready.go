package berth

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
)

// pause is how long a client waits before a retry without a delay from berthd.
const pause = 100 * time.Millisecond

// WaitReady returns when berthd answers and its health service reports SERVING, or when the context ends, with the
// last problem. An answer that waiting does not change, such as a missing role, ends it at once.
func (c *Client) WaitReady(ctx context.Context) error {
	var last error
	for {
		err := c.watchHealth(ctx, &last)
		if err == nil {
			return nil
		}
		if ctx.Err() == nil && !IsUnavailable(err) {
			return fmt.Errorf("wait for berthd at %s: %w", c.Endpoint(), err)
		}
		// The error of a call that ended with the context has less information than the one before.
		if last == nil || ctx.Err() == nil {
			last = err
		}
		if sleep(ctx, pause) != nil {
			s := status.FromContextError(ctx.Err())
			return &Error{
				Code:    s.Code(),
				Message: fmt.Sprintf("wait for berthd at %s: %v (%v)", c.Endpoint(), s.Message(), last),
				status:  s,
			}
		}
	}
}

// errNotServing is the last problem of a berthd that reports itself as not ready.
var errNotServing = errors.New("berthd runs and says that it cannot serve; its log says why, and so does /readyz")

// watchHealth returns nil when the health service reports SERVING; last is called when it reports something else.
func (c *Client) watchHealth(ctx context.Context, last *error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	// Without WaitForReady: it would hide why there is no answer.
	watch, err := healthv1.NewHealthClient(c.conn).Watch(ctx, &healthv1.HealthCheckRequest{}, grpc.WaitForReady(false))
	if err != nil {
		return err
	}
	for {
		answer, err := watch.Recv()
		if errors.Is(err, io.EOF) {
			// A server that stops ends its streams like this.
			return fromStatus(status.Error(codes.Unavailable, "berthd ended the health stream"))
		}
		if err != nil {
			return err
		}
		if answer.GetStatus() == healthv1.HealthCheckResponse_SERVING {
			return nil
		}
		*last = errNotServing
	}
}

// sleep waits; it returns the context's error if that ends first.
func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
