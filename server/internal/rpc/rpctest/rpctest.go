// Package rpctest runs a service in berth's frame over a real socket, for the
// tests of handlers, and holds errors against what a client should see.
package rpctest

import (
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	errorsv1 "github.com/berthd/berth/api/berth/errors/v1"
	"github.com/berthd/berth/server/internal/rpc"
	"github.com/berthd/berth/server/internal/socket"
)

// Serve runs a server with what register adds to it until the test ends, and
// returns a connection to it.
func Serve(t testing.TB, register func(grpc.ServiceRegistrar)) *grpc.ClientConn {
	t.Helper()
	// A test's own directory may have too long a name for a socket.
	dir, err := os.MkdirTemp("", "rpc")
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "s.sock")
	l, err := socket.Listen(path, socket.Options{})
	if err != nil {
		t.Fatal(err)
	}
	s := rpc.NewServer(rpc.Config{
		Access: &rpc.Access{Self: uint32(os.Getuid())},
		Log:    slog.New(slog.DiscardHandler),
	})
	register(s)
	done := make(chan error, 1)
	go func() { done <- s.Serve(l) }()
	conn, err := grpc.NewClient("unix://"+path, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = conn.Close()
		s.Stop()
		if err := <-done; err != nil {
			t.Errorf("serve: %v", err)
		}
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return conn
}

// Failure is the expected failure of a call. The zero value is success.
type Failure struct {
	Code codes.Code
	// Message is the whole text.
	Message string
	// Reason of the ErrorInfo; its domain is berthd.github.io.
	Reason string
	// VerdictReason of the ErrorInfo; empty for any.
	VerdictReason string
	// Fields of the violations, in order.
	Fields []string
	// Retry means that repeating the call makes sense, and RetryAfter when; 0 for any time.
	Retry      bool
	RetryAfter time.Duration
	// Provider and Resource of the ErrorInfo; empty for any.
	Provider, Resource string
}

// Check holds an error against the failure.
func (f Failure) Check(t testing.TB, err error) {
	t.Helper()
	st := status.Convert(err)
	got := Failure{Code: st.Code(), Message: st.Message()}
	for _, d := range st.Details() {
		switch d := d.(type) {
		case *errdetails.ErrorInfo:
			got.Reason = d.GetReason()
			if f.VerdictReason != "" {
				got.VerdictReason = d.GetMetadata()["verdict_reason"]
			}
			if _, known := errorsv1.ErrorReason_value[got.Reason]; !known {
				t.Errorf("reason %q is none of berth.errors.v1", got.Reason)
			}
			if f.Provider+f.Resource != "" {
				got.Provider, got.Resource = d.GetMetadata()["provider"], d.GetMetadata()["resource"]
			}
			if d.GetDomain() != "berthd.github.io" {
				t.Errorf("domain %q, want berthd.github.io", d.GetDomain())
			}
		case *errdetails.BadRequest:
			for _, v := range d.GetFieldViolations() {
				got.Fields = append(got.Fields, v.GetField())
			}
		case *errdetails.RetryInfo:
			got.Retry = true
			if f.RetryAfter > 0 {
				got.RetryAfter = d.GetRetryDelay().AsDuration()
			}
		}
	}
	if !reflect.DeepEqual(got, f) {
		t.Errorf("failed with\n\t%+v\nwant\n\t%+v", got, f)
	}
}
