package app

import (
	"context"
	"errors"
	"net"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"

	inspectv1 "github.com/berthd/berth/api/berth/inspect/v1"
	"github.com/berthd/berth/managers/errdefs"
)

// slow is a service whose calls end when they are released, or if they hear that they
// are cut off.
type slow struct {
	inspectv1.UnimplementedInspectServiceServer
	deaf             bool
	entered, release chan struct{}
}

func (s slow) Check(ctx context.Context, _ *inspectv1.CheckRequest) (*inspectv1.CheckResponse, error) {
	s.entered <- struct{}{}
	cut := ctx.Done()
	if s.deaf {
		cut = nil
	}
	select {
	case <-s.release:
		return &inspectv1.CheckResponse{}, nil
	case <-cut:
		return nil, context.Cause(ctx)
	}
}

func TestStop(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		deaf, released, answered bool
		notice                   time.Duration
		want                     errdefs.Class
	}{
		"a call that ends in time":    {released: true, answered: true, notice: time.Minute},
		"one that is cut off":         {notice: time.Minute},
		"one that does not notice it": {deaf: true, notice: time.Millisecond, want: errdefs.Deadline},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			service := slow{deaf: row.deaf, entered: make(chan struct{}), release: make(chan struct{})}
			s := grpc.NewServer()
			inspectv1.RegisterInspectServiceServer(s, service)
			l := bufconn.Listen(1 << 16)
			served := make(chan error, 1)
			go func() { served <- s.Serve(l) }()
			conn, err := grpc.NewClient("passthrough:", grpc.WithTransportCredentials(insecure.NewCredentials()),
				grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return l.DialContext(ctx) }))
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			answer := make(chan error, 1)
			go func() {
				_, err := inspectv1.NewInspectServiceClient(conn).Check(t.Context(), &inspectv1.CheckRequest{})
				answer <- err
			}()
			<-service.entered

			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			stopped := make(chan error, 1)
			go func() { stopped <- stop(s, row.notice)(ctx) }()
			if row.released {
				close(service.release)
			} else {
				cancel()
			}
			if err := <-stopped; (err != nil) != (row.want != 0) || err != nil && errdefs.ClassOf(err) != row.want {
				t.Errorf("stopped with %v", err)
			}
			if err := <-answer; (err == nil) != row.answered {
				t.Errorf("answered with %v", err)
			}
			if err := <-served; err != nil && !errors.Is(err, grpc.ErrServerStopped) {
				t.Errorf("served until %v", err)
			}
			if !row.released {
				close(service.release)
			}
		})
	}
}

// TestStopBeforeServe: berthd that is stopped as soon as it has started ends without an error.
func TestStopBeforeServe(t *testing.T) {
	t.Parallel()
	s := grpc.NewServer()
	if err := stop(s, cutOff)(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := serve(s, func(serve func(net.Listener) error) error { return serve(bufconn.Listen(1)) })(t.Context()); err != nil {
		t.Error(err)
	}
}
