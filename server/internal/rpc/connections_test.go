package rpc

import (
	"context"
	"log/slog"
	"net"
	"path/filepath"
	"testing"

	"golang.org/x/time/rate"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
)

// TestConnectionsAboveTheLimitAreClosed: they get no answer, and a closed connection makes room for another one.
func TestConnectionsAboveTheLimitAreClosed(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "s")
	inner, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	l := AtMost(inner, 2)
	defer l.Close()
	accepted := make(chan net.Conn, 10)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			accepted <- c
		}
	}()
	dial := func() net.Conn {
		c, err := net.Dial("unix", path)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		return c
	}
	dial()
	dial()
	first, second := <-accepted, <-accepted
	defer second.Close()
	if _, err := dial().Read(make([]byte, 1)); err == nil {
		t.Error("a connection above the limit stays open")
	}
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	_ = first.Close() // gRPC may close twice
	dial()
	defer (<-accepted).Close()
	if _, err := dial().Read(make([]byte, 1)); err == nil {
		t.Error("closing twice made room for two")
	}
}

// TestRefusedBeforeTheMessageIsRead: where calls are limited by their rate, the refusal does not depend on the message,
// which would be too large.
func TestRefusedBeforeTheMessageIsRead(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("unix", filepath.Join(t.TempDir(), "s"))
	if err != nil {
		t.Fatal(err)
	}
	s := NewServer(Config{Log: slog.New(slog.DiscardHandler), Limiter: rate.NewLimiter(0, 1), MaxReceiveBytes: 64 << 10})
	healthpb.RegisterHealthServer(s, health.NewServer())
	served := make(chan error, 1)
	go func() { served <- s.Serve(l) }()
	defer func() { s.Stop(); <-served }()
	conn, err := grpc.NewClient("unix://"+l.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	client := healthpb.NewHealthClient(conn)
	if _, err := client.Check(t.Context(), &healthpb.HealthCheckRequest{}); err != nil {
		t.Fatal(err)
	}
	large := &healthpb.HealthCheckRequest{Service: string(make([]byte, 1<<20))}
	_, err = client.Check(context.Background(), large)
	if status.Code(err) != codes.ResourceExhausted || status.Convert(err).Message() != "rejected by rate limit" {
		t.Errorf("%v", err)
	}
}
