package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	admissionv1 "github.com/berthd/berth/api/berth/admission/v1"
	allocationv1 "github.com/berthd/berth/api/berth/allocation/v1"
	inspectv1 "github.com/berthd/berth/api/berth/inspect/v1"
	lifecyclev1 "github.com/berthd/berth/api/berth/lifecycle/v1"
)

// actAs does something as another user. The kernel keeps the credentials of the thread that connects or listens (unix(7)), so one
// thread changes its own for a moment.
func actAs[T any](uid int, do func() (T, error)) (v T, err error) {
	if uid == os.Geteuid() {
		return do()
	}
	runtime.LockOSThread()
	setuid := func(uid int) error {
		if _, _, errno := syscall.RawSyscall(syscall.SYS_SETRESUID, ^uintptr(0), uintptr(uid), ^uintptr(0)); errno != 0 {
			return errno
		}
		return nil
	}
	if err := setuid(uid); err != nil {
		runtime.UnlockOSThread()
		return v, err
	}
	v, err = do()
	if back := setuid(0); back != nil {
		return v, back // the thread stays locked, and ends with its goroutine
	}
	runtime.UnlockOSThread()
	return v, err
}

// dialAs connects to a socket as another user.
func dialAs(uid int, path string) (net.Conn, error) {
	return actAs(uid, func() (net.Conn, error) { return net.Dial("unix", path) })
}

// as returns a connection of another user's.
func (d *daemon) as(uid int) *grpc.ClientConn {
	d.t.Helper()
	conn, err := grpc.NewClient("passthrough:///"+filepath.Join(d.root, "berth.sock"),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(_ context.Context, path string) (net.Conn, error) { return dialAs(uid, path) }))
	if err != nil {
		d.t.Fatal(err)
	}
	d.t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// TestOneUserDoesNotKeepTheAgentOut: whatever other users do to the socket, root's
// agent gets through.
func TestOneUserDoesNotKeepTheAgentOut(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skipf("needs to act as other users, this is uid %d", os.Geteuid())
	}
	const unprivileged, reader = 64001, 64002
	n := newNode(t)
	if err := os.Chmod(n.root, 0o711); err != nil {
		t.Fatal(err)
	}
	n.configure(fmt.Sprintf("access: [{uid: %d, roles: [read]}]\nlimits: {userConnections: 8, userCalls: 4}\n", reader))
	d := n.start()
	path := filepath.Join(n.root, "berth.sock")
	var silent []net.Conn
	for _, uid := range []int{unprivileged, reader} {
		for range 60 { // none of them sends anything
			c, err := dialAs(uid, path)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = c.Close() })
			if uid == reader {
				silent = append(silent, c)
			}
		}
	}
	d.admitted(burstable("a"))
	sockets := func() (n int) {
		dir := fmt.Sprintf("/proc/%d/fd", d.Cmd.Process.Pid)
		files, err := os.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range files {
			if to, err := os.Readlink(filepath.Join(dir, f.Name())); err == nil && strings.HasPrefix(to, "socket:") {
				n++
			}
		}
		return n
	}
	// Those of users without a role, of the reader, and berthd's own.
	n.eventually("most of the connections are closed", func() bool { return sockets() < 16+8+20 })
	for _, c := range silent {
		_ = c.Close()
	}
	// Calls that never end.
	c := allocationv1.NewAllocationServiceClient(d.as(reader))
	open := 0
	n.eventually("calls are too many", func() bool {
		w, err := c.Watch(n.ctx(), &allocationv1.WatchRequest{})
		if err == nil {
			_, err = w.Recv()
		}
		switch status.Code(err) {
		case codes.OK:
			open++
		case codes.Unavailable: // the silent ones are not gone yet
		case codes.ResourceExhausted:
			return true
		default:
			t.Fatal(err)
		}
		return false
	})
	if open != 4 {
		t.Errorf("%d calls at once, want 4", open)
	}
	d.admitted(burstable("b"))
	d.remove("a")
	d.remove("b")
	d.check()
}

// TestRolesOfRealUsers: every user may connect, and may call what the roles of the
// user id allow.
func TestRolesOfRealUsers(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skipf("needs to act as other users, this is uid %d", os.Geteuid())
	}
	const unprivileged, reader, agent = 64001, 64002, 64003
	n := newNode(t)
	if err := os.Chmod(n.root, 0o711); err != nil {
		t.Fatal(err)
	}
	n.configure(fmt.Sprintf("access: [{uid: %d, roles: [read]}, {uid: %d, roles: [read, agent]}]\n", reader, agent))
	d := n.start()
	held := n.stopped() // root's
	admit := func(c *grpc.ClientConn, dry bool) error {
		_, err := admissionv1.NewAdmissionServiceClient(c).Admit(n.ctx(),
			&admissionv1.AdmitRequest{Subject: &admissionv1.AdmitRequest_Pod{Pod: burstable("x")}, DryRun: dry})
		return err
	}
	start := func(pid int) func(c *grpc.ClientConn) error {
		return func(c *grpc.ClientConn) error {
			_, err := lifecyclev1.NewLifecycleServiceClient(c).PreStartContainer(n.ctx(), &lifecyclev1.PreStartContainerRequest{
				PodUid: "x", ContainerName: "main", ContainerId: "i", Pid: int32(pid),
			})
			return err
		}
	}
	for _, call := range []struct {
		name    string
		do      func(c *grpc.ClientConn) error
		allowed []int
		role    string
	}{
		{"a dry run", func(c *grpc.ClientConn) error { return admit(c, true) }, []int{reader, agent}, "read"},
		{"Admit", func(c *grpc.ClientConn) error { return admit(c, false) }, []int{agent}, "agent"},
		{"List", func(c *grpc.ClientConn) error {
			_, err := allocationv1.NewAllocationServiceClient(c).List(n.ctx(), &allocationv1.ListRequest{})
			return err
		}, []int{reader, agent}, "read"},
		{"PreStartContainer", start(0), []int{agent}, "agent"},
		{"PreStartContainer of root's process", start(held.pid()), nil, ""},
		{"Remove", func(c *grpc.ClientConn) error {
			_, err := admissionv1.NewAdmissionServiceClient(c).RemovePod(n.ctx(), &admissionv1.RemovePodRequest{PodUid: "ghost"})
			return err
		}, []int{agent}, "agent"},
		{"Dump", func(c *grpc.ClientConn) error {
			_, err := inspectv1.NewInspectServiceClient(c).Dump(n.ctx(), &inspectv1.DumpRequest{})
			return err
		}, nil, "admin"},
	} {
		for _, uid := range []int{unprivileged, reader, agent} {
			err, allowed := call.do(d.as(uid)), slices.Contains(call.allowed, uid)
			switch {
			case allowed && err != nil:
				t.Errorf("%s by uid %d: %v", call.name, uid, err)
			case !allowed && (status.Code(err) != codes.PermissionDenied || !strings.Contains(err.Error(), fmt.Sprintf("uid %d", uid))):
				t.Errorf("%s by uid %d: %v; want PERMISSION_DENIED with who it is", call.name, uid, err)
			case !allowed && call.role != "" && !strings.Contains(err.Error(), "role "+call.role):
				t.Errorf("%s by uid %d: %v does not name the role", call.name, uid, err)
			}
		}
	}
	if pods := d.pods(); len(pods) != 1 {
		t.Errorf("pods %v", pods)
	}
	if err := syscall.Kill(held.pid(), 0); err != nil {
		t.Errorf("root's process: %v", err)
	}
	d.check()
}
