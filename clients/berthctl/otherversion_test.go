package main

import (
	"bytes"
	"context"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	nodev1 "github.com/berthd/berth/api/berth/node/v1"
	"github.com/berthd/berth/api/version"
	"github.com/berthd/berth/clients/berth"
	"github.com/berthd/berth/clients/internal/command"
)

// TestOtherVersion: a berthd that does not know a method, or reads a request in another way, is of another version. The error has both
// versions and what to do.
func TestOtherVersion(t *testing.T) {
	t.Parallel()
	for name, answer := range map[string]error{
		"unknown method": nil,
		"another form": status.Error(codes.Internal,
			"grpc: error unmarshalling request: proto: cannot parse invalid wire-format data"),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir, err := os.MkdirTemp("", "b") // the directory of the test may be too long for a socket
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = os.RemoveAll(dir) })
			path := filepath.Join(dir, "b.sock")
			l, err := net.Listen("unix", path)
			if err != nil {
				t.Fatal(err)
			}
			old := grpc.NewServer()
			nodev1.RegisterNodeServiceServer(old, fakeNode{})
			if answer != nil {
				old.RegisterService(&grpc.ServiceDesc{
					ServiceName: "berth.inspect.v1.InspectService", HandlerType: (*any)(nil),
					Methods: []grpc.MethodDesc{{
						MethodName: "Check",
						Handler: func(any, context.Context, func(any) error, grpc.UnaryServerInterceptor) (any, error) {
							return nil, answer
						},
					}},
				}, nil)
			}
			ended := make(chan error, 1)
			go func() { ended <- old.Serve(l) }()
			t.Cleanup(func() { old.Stop(); <-ended })
			for _, format := range []string{"table", "json"} {
				var out, errs bytes.Buffer
				code := run(t.Context(), command.Env{
					In: strings.NewReader(""), Out: &out, Err: &errs, Now: time.Now, Getenv: func(string) string { return "" },
					Dial: func(ctx context.Context, endpoint string) (*berth.Client, error) {
						return berth.Dial(ctx, endpoint, berth.Options{})
					},
				}, []string{"--endpoint", path, "ledger", "check", "-o", format})
				if code != command.ExitError {
					t.Errorf("-o %s: exit code %d", format, code)
				}
				for _, want := range []string{"v1.2.3", "c0ffee", version.Of().Version, "upgrade"} {
					if !strings.Contains(errs.String()+out.String(), want) {
						t.Errorf("-o %s lacks %q: %s%s", format, want, out.String(), errs.String())
					}
				}
			}
		})
	}
}
