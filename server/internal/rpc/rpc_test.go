package rpc_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
	"unicode/utf8"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/berthd/berth/api/access"
	inspectv1 "github.com/berthd/berth/api/berth/inspect/v1"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/server/internal/rpc"
	"github.com/berthd/berth/server/internal/socket"
)

// inspector answers Check with whatever a test wants.
type inspector struct {
	inspectv1.UnimplementedInspectServiceServer
	check func(context.Context) error
}

func (i inspector) Check(ctx context.Context, _ *inspectv1.CheckRequest) (*inspectv1.CheckResponse, error) {
	return &inspectv1.CheckResponse{}, i.check(ctx)
}

// logBuffer keeps what is logged.
type logBuffer struct {
	mu sync.Mutex
	b  strings.Builder
}

func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *logBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// serve starts a server over a real socket and returns a client with the log.
func serve(t *testing.T, cfg rpc.Config, check func(context.Context) error) (inspectv1.InspectServiceClient, *logBuffer) {
	t.Helper()
	log := new(logBuffer)
	cfg.Log = slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	s := rpc.NewServer(cfg)
	inspectv1.RegisterInspectServiceServer(s, inspector{check: check})
	path := filepath.Join(t.TempDir(), "s.sock")
	l, err := socket.Listen(path, socket.Options{})
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- s.Serve(l) }()
	t.Cleanup(func() {
		s.Stop()
		if err := <-done; err != nil && !errors.Is(err, net.ErrClosed) {
			t.Error(err)
		}
	})
	conn, err := grpc.NewClient("unix://"+path, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return inspectv1.NewInspectServiceClient(conn), log
}

func TestErrorsBecomeStatuses(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		err    error
		code   codes.Code
		reason string
		fields int
		retry  bool
	}{
		"invalid": {
			&errdefs.Error{Class: errdefs.Invalid, Message: "bad", Fields: []errdefs.Violation{{Field: "pod.metadata.uid",
				Description: "required"}}},
			codes.InvalidArgument, "REQUEST_INVALID", 1, false,
		},
		"refused": {fmt.Errorf("plan: %w", errdefs.Refuse(errdefs.SMTAlignmentError, "no")), codes.FailedPrecondition, "POD_REJECTED",
			0, false},
		"unavailable": {errdefs.Unavailablef("disk full"), codes.Unavailable, "TEMPORARILY_UNAVAILABLE", 0, true},
		"descriptors": {fmt.Errorf("look: %w", syscall.EMFILE), codes.Unavailable, "TEMPORARILY_UNAVAILABLE", 0, true},
		"a bad value": {fmt.Errorf("look: %w", syscall.EINVAL), codes.Internal, "INTERNAL_ERROR", 0, false},
		"exists":      {errdefs.Existsf("no").Coded(errdefs.ContainerIDBound), codes.AlreadyExists, "CONTAINER_ID_BOUND", 0, false},
		"contradiction": {
			errdefs.Violations{{Field: "a/main", Description: "has the CPU"}}.Precondition("").Coded(errdefs.ImportContradicts),
			codes.FailedPrecondition, "IMPORT_CONTRADICTS", 1, false,
		},
		"stale":        {errdefs.Conflictf("moved"), codes.Aborted, "STATE_MOVED", 0, true},
		"unclassified": {errors.New("oops"), codes.Internal, "INTERNAL_ERROR", 0, false},
		"a status":     {status.Error(codes.Unknown, "pod x in namespace y not found"), codes.Unknown, "", 0, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			client, log := serve(t, rpc.Config{}, func(context.Context) error { return c.err })
			_, err := client.Check(t.Context(), &inspectv1.CheckRequest{})
			st := status.Convert(err)
			if st.Code() != c.code {
				t.Fatalf("code %s, want %s (%v)", st.Code(), c.code, err)
			}
			var reason string
			var fields int
			var retry bool
			for _, d := range st.Details() {
				switch d := d.(type) {
				case *errdetails.ErrorInfo:
					reason = d.Reason
					if d.Domain != "berthd.github.io" || d.Metadata["request_id"] == "" {
						t.Errorf("error info %v lacks domain or request id", d)
					}
				case *errdetails.BadRequest:
					fields = len(d.FieldViolations)
				case *errdetails.PreconditionFailure:
					fields = len(d.GetViolations())
					if v := d.GetViolations()[0]; v.GetType() != c.reason || v.GetSubject() != "a/main" ||
						v.GetDescription() != "has the CPU" {
						t.Errorf("violation %v", v)
					}
				case *errdetails.RetryInfo:
					retry = true
				}
			}
			if reason != c.reason || fields != c.fields || retry != c.retry {
				t.Errorf("reason %q, %d fields, retry %v; want %q, %d, %v", reason, fields, retry, c.reason, c.fields, c.retry)
			}
			if n := strings.Count(log.String(), "finished call"); n != 1 {
				t.Errorf("%d log lines for one call, want 1:\n%s", n, log)
			}
			for _, part := range []string{"request_id=", "peer=", "grpc.service=berth.inspect.v1.InspectService", "grpc.method=Check",
				"grpc.code=" + c.code.String(), "grpc.time_ms="} {
				if !strings.Contains(log.String(), part) {
					t.Errorf("the log line lacks %q:\n%s", part, log)
				}
			}
		})
	}
}

// TestErrorsFitIntoHeaders: clients in other languages take 8 KiB of headers.
func TestErrorsFitIntoHeaders(t *testing.T) {
	t.Parallel()
	var vs errdefs.Violations
	for i := range 1000 {
		vs.Addf(fmt.Sprintf("pod.spec.containers[%d].resources.requests[%q]", i, strings.Repeat("r", 253)), "%s", strings.Repeat("é", 200))
	}
	one := errdefs.Violations{{Field: "f", Description: strings.Repeat("x", 4000)}}
	for name, c := range map[string]struct {
		err    error
		fields int
	}{
		"many violations": {vs.Err("pod"), 2},
		"a long one":      {one.Err("pod"), 1},
		"a long message":  {errdefs.Conflictf("%s", strings.Repeat("é;", 1<<20)), 0},
	} {
		client, _ := serve(t, rpc.Config{}, func(context.Context) error { return c.err })
		ctx := metadata.AppendToOutgoingContext(t.Context(), rpc.RequestIDHeader, strings.Repeat("r", 128))
		_, err := client.Check(ctx, &inspectv1.CheckRequest{})
		st := status.Convert(err)
		fields := 0
		for _, d := range st.Details() {
			if bad, ok := d.(*errdetails.BadRequest); ok {
				fields = len(bad.FieldViolations)
			}
		}
		if size := proto.Size(st.Proto()); fields != c.fields || size*4/3+3*len(st.Message()) > 8<<10 {
			t.Errorf("%s: %d fields, the status has %d bytes", name, fields, size)
		}
		if !utf8.ValidString(st.Message()) {
			t.Errorf("%s: the message was cut inside a character", name)
		}
	}
}

// TestRequestIDs: a caller's id is used unless it would do harm.
func TestRequestIDs(t *testing.T) {
	t.Parallel()
	client, _ := serve(t, rpc.Config{}, func(context.Context) error { return errors.New("oops") })
	for id, taken := range map[string]bool{
		"mine-1": true, strings.Repeat("r", 128): true, strings.Repeat("r", 129): false, "two words": false, "": false,
	} {
		ctx := metadata.NewOutgoingContext(t.Context(), metadata.MD{rpc.RequestIDHeader: {id}})
		_, err := client.Check(ctx, &inspectv1.CheckRequest{})
		var told string
		for _, d := range status.Convert(err).Details() {
			if info, ok := d.(*errdetails.ErrorInfo); ok {
				told = info.Metadata["request_id"]
			}
		}
		if told == "" || (told == id) != taken {
			t.Errorf("id %q: the error has %q", id, told)
		}
	}
}

func TestPanicIsInternalAndLogged(t *testing.T) {
	t.Parallel()
	client, log := serve(t, rpc.Config{}, func(context.Context) error { panic("aargh") })
	_, err := client.Check(t.Context(), &inspectv1.CheckRequest{})
	if status.Code(err) != codes.Internal || !strings.Contains(log.String(), "aargh") {
		t.Fatalf("%v, log:\n%s", err, log)
	}
	if _, err := client.Check(t.Context(), &inspectv1.CheckRequest{}); status.Code(err) != codes.Internal {
		t.Fatalf("the server did not survive: %v", err)
	}
}

func TestPeerIsWhomTheKernelSays(t *testing.T) {
	t.Parallel()
	var got rpc.Peer
	client, _ := serve(t, rpc.Config{}, func(ctx context.Context) error {
		got, _ = rpc.PeerOf(ctx)
		return nil
	})
	if _, err := client.Check(t.Context(), &inspectv1.CheckRequest{}); err != nil {
		t.Fatal(err)
	}
	groups, err := os.Getgroups()
	if err != nil {
		t.Fatal(err)
	}
	if want := self(); got.UID != want.UID || got.GID != want.GID || got.PID != want.PID || len(got.Groups) != len(groups) {
		t.Errorf("peer %s of %v, want %s of %v", got, got.Groups, want, groups)
	}
	for _, g := range groups {
		if !slices.Contains(got.Groups, uint32(g)) {
			t.Errorf("groups %v, want %v", got.Groups, groups)
		}
	}
}

func TestCeilingEndsACall(t *testing.T) {
	t.Parallel()
	client, _ := serve(t, rpc.Config{Ceiling: time.Millisecond}, func(ctx context.Context) error {
		<-ctx.Done()
		return errdefs.Deadlinef("wait: %w", ctx.Err())
	})
	if _, err := client.Check(t.Context(), &inspectv1.CheckRequest{}); status.Code(err) != codes.DeadlineExceeded {
		t.Fatalf("got %v, want DEADLINE_EXCEEDED", err)
	}
}

func TestObserverSeesOutcome(t *testing.T) {
	t.Parallel()
	type call struct{ method, code string }
	calls := make(chan call, 1)
	client, _ := serve(t, rpc.Config{
		Observe: func(m, c string, _ time.Duration) { calls <- call{m, c} },
	}, func(context.Context) error { return errdefs.NotFoundf("nothing") })
	_, _ = client.Check(t.Context(), &inspectv1.CheckRequest{})
	if got, want := <-calls, (call{"/berth.inspect.v1.InspectService/Check", "NotFound"}); got != want {
		t.Errorf("observed %v, want %v", got, want)
	}
}

func TestAccess(t *testing.T) {
	t.Parallel()
	uid, gid, provider, admin := uint32(1000), uint32(2000), uint32(1001), uint32(1002)
	a := rpc.Access{Self: 77, Grants: []access.Grant{
		{UID: &uid, Roles: []access.Role{access.Read}},
		{GID: &gid, Roles: []access.Role{access.Agent}},
		{UID: &provider, Roles: []access.Role{access.Provider}},
		{UID: &admin, Roles: []access.Role{access.Admin}},
	}}
	for _, c := range []struct {
		peer rpc.Peer
		role access.Role
		want bool
	}{
		{rpc.Peer{UID: 0}, access.Admin, true},
		{rpc.Peer{UID: 77}, access.Admin, true},
		{rpc.Peer{UID: 1000}, access.Read, true},
		{rpc.Peer{UID: 1000}, access.Agent, false},
		{rpc.Peer{UID: 1000, GID: 2000}, access.Agent, true},
		// The role agent includes the role read.
		{rpc.Peer{UID: 5, GID: 2000}, access.Read, true},
		{rpc.Peer{UID: 5, GID: 2000}, access.Provider, false},
		{rpc.Peer{UID: 1001}, access.Read, true},
		{rpc.Peer{UID: 1001}, access.Agent, false},
		{rpc.Peer{UID: 1002}, access.Read, false},
		{rpc.Peer{UID: 5, GID: 5, Groups: []uint32{6, 2000}}, access.Agent, true},
		{rpc.Peer{UID: 5, GID: 5, Groups: []uint32{6, 2001}}, access.Agent, false},
		{rpc.Peer{UID: 5, GID: 5}, access.Read, false},
	} {
		if got := a.Allows(c.peer, c.role); got != c.want {
			t.Errorf("%s as %s: %v, want %v", c.peer, c.role, got, c.want)
		}
	}
	for _, bad := range [][]access.Grant{
		{{Roles: []access.Role{access.Read}}},
		{{UID: &uid, GID: &gid, Roles: []access.Role{access.Read}}},
		{{UID: &uid}},
		{{UID: &uid, Roles: []access.Role{"king"}}},
	} {
		if err := access.Validate("access.grants", bad); errdefs.ClassOf(err) != errdefs.Invalid {
			t.Errorf("%v: %v, want class invalid", bad, err)
		}
	}
}

// A method without a role cannot be called.
func TestMethodWithoutRoleIsRefused(t *testing.T) {
	t.Parallel()
	if r, ok := access.RoleOf("/berth.inspect.v1.InspectService/Check"); !ok || r != access.Admin {
		t.Errorf("Check needs %q, %v; want admin", r, ok)
	}
	if r, ok := access.RoleOf("/berth.inspect.v1.InspectService/GetTrace"); !ok || r != access.Read {
		t.Errorf("GetTrace needs %q, %v; want read", r, ok)
	}
	if _, ok := access.RoleOf("/who.knows.Service/What"); ok {
		t.Error("an unknown service has a role")
	}
}
