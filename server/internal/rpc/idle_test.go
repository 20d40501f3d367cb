package rpc

import (
	"context"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/test/bufconn"
)

// TestIdleConnectionsEnd: on a socket without roles, a connection without calls is closed after idleTime. One with a
// stream stays open.
func TestIdleConnectionsEnd(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := bufconn.Listen(1 << 20)
		s := grpc.NewServer(Config{}.unlimited(insecure.NewCredentials())...)
		healthpb.RegisterHealthServer(s, health.NewServer())
		served := make(chan error, 1)
		go func() { served <- s.Serve(l) }()
		defer func() { s.Stop(); <-served }()
		connect := func() *grpc.ClientConn {
			conn, err := grpc.NewClient("passthrough:///memory", grpc.WithTransportCredentials(insecure.NewCredentials()),
				grpc.WithIdleTimeout(0),
				grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return l.DialContext(ctx) }))
			if err != nil {
				t.Fatal(err)
			}
			return conn
		}
		idle, busy := connect(), connect()
		defer idle.Close()
		defer busy.Close()
		call := func() {
			t.Helper()
			if _, err := healthpb.NewHealthClient(idle).Check(t.Context(), &healthpb.HealthCheckRequest{}); err != nil {
				t.Error(err)
			}
		}
		stream, err := healthpb.NewHealthClient(busy).Watch(t.Context(), &healthpb.HealthCheckRequest{})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := stream.Recv(); err != nil {
			t.Fatal(err)
		}
		call()
		for _, step := range []struct {
			after time.Duration
			want  connectivity.State
		}{{idleTime - time.Second, connectivity.Ready}, {2 * time.Second, connectivity.Idle}} {
			time.Sleep(step.after)
			synctest.Wait()
			if a, b := idle.GetState(), busy.GetState(); a != step.want || b != connectivity.Ready {
				t.Errorf("the connection without calls is %s, want %s; the one with a stream is %s", a, step.want, b)
			}
		}
		call() // on a new connection
	})
}
