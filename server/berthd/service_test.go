package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	admissionv1 "github.com/berthd/berth/api/berth/admission/v1"
	nodev1 "github.com/berthd/berth/api/berth/node/v1"
)

// manager is what systemd would be for a node's daemons: it holds their sockets and receives their notifications.
type manager struct {
	t    *testing.T
	conn *net.UnixConn

	mu   sync.Mutex
	said []string // guarded by mu
}

// managed gives a node a service manager that holds the sockets at the paths.
func managed(t *testing.T, n *node, watchdog time.Duration, paths ...string) *manager {
	t.Helper()
	path := filepath.Join(n.root, "notify")
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	m := &manager{t: t, conn: conn}
	ended := make(chan struct{})
	go func() { defer close(ended); m.listen() }()
	t.Cleanup(func() { _ = conn.Close(); <-ended })
	n.env = append(n.env, "NOTIFY_SOCKET="+path)
	if watchdog > 0 {
		n.env = append(n.env, fmt.Sprintf("WATCHDOG_USEC=%d", watchdog.Microseconds()))
	}
	for _, path := range paths {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
		if err != nil {
			t.Fatal(err)
		}
		l.SetUnlinkOnClose(false)
		f, err := l.File()
		if err := errors.Join(err, l.Close()); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = f.Close() })
		n.sockets = append(n.sockets, f)
	}
	return m
}

func (m *manager) listen() {
	buffer := make([]byte, 4096)
	for {
		n, err := m.conn.Read(buffer)
		if err != nil {
			return
		}
		m.mu.Lock()
		m.said = append(m.said, strings.Split(string(buffer[:n]), "\n")...)
		m.mu.Unlock()
	}
}

// until waits until a line begins so, and forgets what was before.
func (m *manager) until(n *node, begins string) (line string) {
	m.t.Helper()
	n.eventually("berthd says "+begins, func() bool {
		m.mu.Lock()
		defer m.mu.Unlock()
		for i, s := range m.said {
			if strings.HasPrefix(s, begins) {
				line, m.said = s, m.said[i+1:]
				return true
			}
		}
		return false
	})
	return line
}

// TestServiceManager: berthd notifies systemd when it is ready, alive, busy and ending.
func TestServiceManager(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	m := managed(t, n, 300*time.Millisecond)
	d := n.start()
	m.until(n, "STATUS=starts")
	m.until(n, "READY=1")
	if got := m.until(n, "STATUS="); !strings.HasPrefix(got, "STATUS=serves 0 pods at revision ") {
		t.Error(got)
	}
	m.until(n, "WATCHDOG=1")
	d.admit(burstable("a"))
	m.until(n, "STATUS=serves 1 pods")
	m.until(n, "WATCHDOG=1")
	d.stop()
	m.until(n, "STOPPING=1")
	m.until(n, "STATUS=ends")
}

// TestForeignSocket: a socket that the configuration does not name would take connections without an answer.
func TestForeignSocket(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	managed(t, n, 0, filepath.Join(n.root, "other.sock"))
	d := n.launch()
	if d.readyOrDead() {
		t.Fatal("berthd serves")
	}
	if got := d.log.String(); !strings.Contains(got, "other.sock, which is neither listen ("+n.socket()+") nor in podResourcesDir") {
		t.Error(got)
	}
}

// load is calls without a pause, until it is ended.
type load struct {
	calls   atomic.Int64
	longest atomic.Int64 // nanoseconds
	mu      sync.Mutex
	refused []error // guarded by mu
}

// TestRestartsRefuseNoCall: with sockets that the service manager holds, calls of a restart wait for the next berthd.
// Some callers keep a connection, others make one for each call; none of them sets WaitForReady.
func TestRestartsRefuseNoCall(t *testing.T) {
	t.Parallel()
	const restarts = 10
	n := newNode(t)
	m := managed(t, n, 0, n.socket(), filepath.Join(n.root, "pod-resources", "kubelet.sock"))
	ctx, cancel := context.WithTimeout(t.Context(), 3*timeout)
	defer cancel()
	running, end := context.WithCancel(ctx)
	var l load
	var all sync.WaitGroup
	for i := range 4 {
		all.Go(func() { l.run(ctx, running, n, i%2 == 0) })
	}
	var d *daemon
	for i := range restarts + 1 {
		if d != nil {
			// The systemctl of a person does not wait for calls in between either.
			if err := d.Cmd.Process.Signal(syscall.SIGTERM); err != nil {
				t.Fatal(err)
			}
			if err := d.Wait(); err != nil {
				t.Fatalf("berthd %d ended with %v\n%s", i, err, d.log)
			}
		}
		d = n.launch()
		m.until(n, "READY=1")
		before := l.calls.Load()
		n.eventually("calls are answered", func() bool { return l.calls.Load() >= before+20 })
	}
	end()
	all.Wait()
	if len(l.refused) > 0 {
		t.Errorf("%d of %d calls were refused, the first with %v", len(l.refused), l.calls.Load(), l.refused[0])
	}
	t.Logf("%d calls in %d restarts, %d refused, longest wait %s", l.calls.Load(), restarts, len(l.refused),
		time.Duration(l.longest.Load()).Round(time.Millisecond))
}

// run makes calls one after the other.
func (l *load) run(ctx, running context.Context, n *node, keep bool) {
	var conn *grpc.ClientConn
	defer func() {
		if conn != nil {
			_ = conn.Close()
		}
	}()
	for running.Err() == nil {
		start := time.Now()
		var err error
		if conn == nil {
			conn, err = grpc.NewClient("unix://"+n.socket(), grpc.WithTransportCredentials(insecure.NewCredentials()))
		}
		if err == nil && keep {
			p := burstable("dry")
			_, err = admissionv1.NewAdmissionServiceClient(conn).Admit(ctx,
				&admissionv1.AdmitRequest{Subject: &admissionv1.AdmitRequest_Pod{Pod: p}, DryRun: true})
		} else if err == nil {
			_, err = nodev1.NewNodeServiceClient(conn).GetVersion(ctx, &nodev1.GetVersionRequest{})
		}
		if !keep && conn != nil {
			_ = conn.Close()
			conn = nil
		}
		took := int64(time.Since(start))
		for was := l.longest.Load(); took > was && !l.longest.CompareAndSwap(was, took); was = l.longest.Load() {
		}
		l.calls.Add(1)
		if err != nil {
			l.mu.Lock()
			l.refused = append(l.refused, err)
			l.mu.Unlock()
		}
	}
}
