package deviceplugin

import (
	"context"
	"fmt"
	"net"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/server/internal/wire"
)

// retry is how a plugin that registers is dialled: it may call a moment before
// it listens.
var retry = grpc.ConnectParams{
	Backoff:           backoff.Config{BaseDelay: 50 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: time.Second},
	MinConnectTimeout: 20 * time.Second,
}

// dial connects to a plugin's socket and waits until it answers.
func (s *Server) dial(ctx context.Context, path string) (*grpc.ClientConn, error) {
	ctx, cancel := context.WithTimeout(ctx, s.Deadlines.Dial)
	defer cancel()
	return Dial(ctx, path, grpc.WithDefaultCallOptions(
		grpc.MaxCallRecvMsgSize(s.MaxListBytes),
		// A device with its node is three elements, and some have several nodes.
		grpc.ForceCodecV2(wire.Bounded(8*s.MaxDevices)),
	))
}

// Dial connects to the socket of a plugin and waits until it answers, or ctx
// ends; then the error is of class Unavailable.
func Dial(ctx context.Context, path string, options ...grpc.DialOption) (*grpc.ClientConn, error) {
	// The path is no part of the target, which is an URL: %2e%2e%2f would lead out of the
	// directory of plugins.
	conn, err := grpc.NewClient("passthrough:///plugin", append(options,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithAuthority("localhost"),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", path)
		}),
		grpc.WithIdleTimeout(0),
		grpc.WithConnectParams(retry),
		grpc.WithUnaryInterceptor(reportAnswers),
	)...)
	if err != nil {
		return nil, fmt.Errorf("failed to dial device plugin: %w", err)
	}
	conn.Connect()
	for state := conn.GetState(); state != connectivity.Ready; state = conn.GetState() {
		if !conn.WaitForStateChange(ctx, state) {
			_ = conn.Close()
			return nil, errdefs.Unavailablef("failed to dial device plugin: no process serves %s (%s): %w", path, state, context.Cause(ctx))
		}
	}
	return conn, nil
}

// sentError is an error that the plugin sent. Others, also with the same code, are made on
// this side of the connection.
type sentError struct{ error }

func (e sentError) Unwrap() error { return e.error }

// GRPCStatus returns what the plugin sent.
func (e sentError) GRPCStatus() *status.Status { return status.Convert(e.error) }

// reportAnswers marks the errors of a call that its plugin sent: metadata comes with them.
func reportAnswers(ctx context.Context, method string, req, reply any, conn *grpc.ClientConn, invoke grpc.UnaryInvoker,
	options ...grpc.CallOption) error {
	var header, trailer metadata.MD
	err := invoke(ctx, method, req, reply, conn, append(options, grpc.Header(&header), grpc.Trailer(&trailer))...)
	if err != nil && len(header)+len(trailer) > 0 {
		return sentError{err}
	}
	return err
}
