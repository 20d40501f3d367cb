package app

import (
	"context"
	"errors"
	"net"
	"time"

	"google.golang.org/grpc"

	"github.com/berthd/berth/managers/errdefs"
)

// serve runs a gRPC server on what keeps its socket, until it is stopped.
func serve(s *grpc.Server, on func(serve func(net.Listener) error) error) func(context.Context) error {
	return func(context.Context) error {
		if err := on(s.Serve); !errors.Is(err, grpc.ErrServerStopped) { // berthd was stopped before it served
			return err
		}
		return nil
	}
}

// cutOff is how long a cut-off call may take to return. A call that writes to a dead disk never
// does.
const cutOff = 2 * time.Second

// stop lets calls finish, and cuts them off when the context ends.
func stop(s *grpc.Server, notice time.Duration) func(context.Context) error {
	return func(ctx context.Context) error {
		done := make(chan struct{})
		go func() { s.GracefulStop(); close(done) }()
		select {
		case <-done:
			return nil
		case <-ctx.Done():
			s.Stop()
		}
		select {
		case <-done:
			return nil
		case <-time.After(notice):
			return errdefs.Deadlinef("calls still run %s after they were cut off", notice)
		}
	}
}
