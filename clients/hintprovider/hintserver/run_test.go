package hintserver_test

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	hintv1 "github.com/berthd/berth/api/berth/hint/v1"
	"github.com/berthd/berth/clients/hintprovider/hintserver"
)

// timeout bounds everything that a test waits for; no test takes that long unless
// it fails.
const timeout = 60 * time.Second

// berthd is as much of a daemon as registration needs.
type berthd struct {
	hintv1.UnimplementedHintBusServiceServer
	answers    func(n int) error
	registered chan *hintv1.RegisterRequest

	mu sync.Mutex
	n  int
}

func (b *berthd) Register(_ context.Context, req *hintv1.RegisterRequest) (*hintv1.RegisterResponse, error) {
	b.mu.Lock()
	b.n++
	n := b.n
	b.mu.Unlock()
	if b.answers != nil {
		if err := b.answers(n); err != nil {
			return nil, err
		}
	}
	b.registered <- req
	return &hintv1.RegisterResponse{}, nil
}

// start serves at a path until the returned function is called.
func (b *berthd) start(t *testing.T, path string) (stop func()) {
	t.Helper()
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	g := grpc.NewServer()
	hintv1.RegisterHintBusServiceServer(g, b)
	healthv1.RegisterHealthServer(g, health.NewServer())
	done := make(chan struct{})
	go func() { defer close(done); _ = g.Serve(l) }()
	stop = sync.OnceFunc(func() { g.Stop(); <-done })
	t.Cleanup(stop)
	return stop
}

// place is a directory with short paths.
func place(t *testing.T) string {
	t.Helper()
	if runtime.GOOS == "windows" || runtime.GOOS == "js" {
		t.Skip("needs unix sockets with permissions")
	}
	dir, err := os.MkdirTemp("", "hp")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

// await receives before the test's deadline.
func await[T any](t *testing.T, what string, c <-chan T) (v T) {
	t.Helper()
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	select {
	case v = <-c:
	case <-timer.C:
		t.Fatalf("waited in vain: %s", what)
	}
	return v
}

// run runs the slots in the background.
func run(t *testing.T, o hintserver.Options) (ended <-chan error, stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- hintserver.Run(ctx, newSlots(), o) }()
	t.Cleanup(cancel)
	return done, cancel
}

func TestRunRegistersWithEachBerthd(t *testing.T) {
	t.Parallel()
	dir := place(t)
	b := &berthd{registered: make(chan *hintv1.RegisterRequest, 1), answers: func(n int) error {
		if n == 1 {
			return status.Error(codes.Unavailable, "not yet")
		}
		return nil
	}}
	socket := filepath.Join(dir, "slots.sock")
	ended, stop := run(t, hintserver.Options{
		Socket: socket, Berth: dir + "/berth.sock", Required: true, Deadline: time.Second, Resources: []string{"example.com/slot"},
		Index: 3,
	})
	kill := b.start(t, dir+"/berth.sock")
	req := await(t, "the first registration", b.registered)
	if req.GetProvider() != "slots" || req.GetEndpoint() != socket || req.GetMode() != hintv1.Mode_MODE_REQUIRED ||
		req.GetDeadline().AsDuration() != time.Second || req.GetIndex() != 3 || len(req.GetResources()) != 1 {
		t.Errorf("registered %v", req)
	}
	if info, err := os.Stat(socket); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("socket %v, %v", info, err)
	}
	conn, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := hintv1.NewHintProviderServiceClient(conn).Commit(t.Context(),
		&hintv1.CommitRequest{Provider: "nobody"}); status.Code(err) != codes.NotFound {
		t.Errorf("a call at the socket: %v", err)
	}
	_ = conn.Close()
	kill()
	b.start(t, dir+"/berth.sock")
	await(t, "another registration with the next berthd", b.registered)
	stop()
	if err := await(t, "the end", ended); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(socket); err == nil {
		t.Error("the socket stayed")
	}
}

func TestRunGivesUp(t *testing.T) {
	t.Parallel()
	for _, code := range []codes.Code{codes.InvalidArgument, codes.PermissionDenied} {
		dir := place(t)
		b := &berthd{registered: make(chan *hintv1.RegisterRequest, 1), answers: func(int) error { return status.Error(code, "never") }}
		b.start(t, dir+"/berth.sock")
		ended, _ := run(t, hintserver.Options{Socket: dir + "/slots.sock", Berth: dir + "/berth.sock"})
		if err := await(t, "the end", ended); err == nil || !strings.Contains(err.Error(), "register provider slots: never") {
			t.Errorf("%s: %v", code, err)
		}
	}
}

func TestRunNeedsItsSocket(t *testing.T) {
	t.Parallel()
	dir := place(t)
	file := dir + "/file"
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	busy, err := net.Listen("unix", dir+"/busy")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = busy.Close() }()
	for path, want := range map[string]string{
		"": "expected a path", file: "no socket", dir + "/busy": "another process already serves", dir + "/no/such/dir": "no such file",
	} {
		ended, _ := run(t, hintserver.Options{Socket: path, NoRegistration: true})
		if err := await(t, "the end", ended); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("socket %q: %v, want %q", path, err, want)
		}
	}
	// What a process that was killed leaves behind is replaced.
	stale, err := net.ListenUnix("unix", &net.UnixAddr{Name: dir + "/stale", Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	stale.SetUnlinkOnClose(false)
	_ = stale.Close()
	ended, stop := run(t, hintserver.Options{Socket: dir + "/stale", NoRegistration: true})
	conn, err := grpc.NewClient("unix://"+dir+"/stale", grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	ctx, cancel := context.WithTimeout(t.Context(), timeout)
	defer cancel()
	if _, err := hintv1.NewHintProviderServiceClient(conn).Commit(ctx, &hintv1.CommitRequest{},
		grpc.WaitForReady(true)); status.Code(err) != codes.NotFound {
		t.Errorf("a call at the socket: %v", err)
	}
	stop()
	if err := await(t, "the end", ended); err != nil {
		t.Error(err)
	}
}
