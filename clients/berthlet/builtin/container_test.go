//go:build linux && cgo

package builtin_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/berthd/berth/clients/berthlet/builtin"
	"github.com/berthd/berth/clients/berthlet/container"
	"github.com/berthd/berth/hack/testing/nodetest"
	"github.com/berthd/berth/managers/errdefs"
)

// spec describes a container of the pod u1.
func (b *bench) spec(name string, args ...string) container.Spec {
	return container.Spec{
		ID: name, PodUID: "u1", Name: name, Image: b.image, Command: append([]string{"/probe"}, args...),
		Cgroup: container.Cgroup{CgroupPath: b.cgroup + "/" + name}, LogPath: filepath.Join(b.dir, "logs", name+".log"),
	}
}

// ctx has the test's deadline.
func ctx(t *testing.T) context.Context {
	t.Helper()
	bounded, cancel := context.WithTimeout(t.Context(), timeout)
	t.Cleanup(cancel)
	return bounded
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func (b *bench) pod(t *testing.T) {
	t.Helper()
	must(t, b.Open(ctx(t), container.Pod{UID: "u1", Namespace: "default", Name: "p", Hostname: "host-of-p"}))
}

// run runs a container to its end and gives its output.
func (b *bench) run(t *testing.T, s container.Spec) (container.Status, []string) {
	t.Helper()
	b.pod(t)
	must(t, b.Create(ctx(t), s))
	must(t, b.Start(ctx(t), s.ID))
	status := b.until(t, s.ID, container.Exited)
	text, err := os.ReadFile(s.LogPath)
	must(t, err)
	var lines []string
	for line := range strings.Lines(string(text)) {
		fields := strings.SplitN(strings.TrimSuffix(line, "\n"), " ", 4)
		lines = append(lines, fields[3])
	}
	must(t, b.Remove(ctx(t), s.ID))
	must(t, b.Close(ctx(t), "u1"))
	return status, lines
}

// until waits for a container to be in a phase.
func (b *bench) until(t *testing.T, id string, phase container.Phase) container.Status {
	t.Helper()
	for {
		all, err := b.List(ctx(t), "")
		must(t, err)
		for _, s := range all {
			if s.ID == id && s.Phase == phase {
				return s
			}
		}
		select {
		case <-b.changed:
		case <-ctx(t).Done():
			t.Fatalf("waited in vain for %s to be %s: %+v", id, phase, all)
		}
	}
}

func facts(lines []string) map[string]string {
	out := map[string]string{}
	for _, line := range lines {
		name, value, _ := strings.Cut(line, "=")
		out[name] = value
	}
	return out
}

func TestInside(t *testing.T) {
	t.Parallel()
	b := open(t)
	source := t.TempDir()
	must(t, os.WriteFile(filepath.Join(source, "f"), []byte("from outside\n"), 0o644))
	five, six := int64(5), int64(6)
	s := b.spec("a", "show", ",", "cat", "/in/f", ",", "cat", "/proc/self/oom_score_adj", ",", "complain", "bye")
	s.User, s.Group, s.Dir = &five, &six, "/proc"
	s.NoNewPrivileges, s.OOMScoreAdj = true, 900
	s.Env = []container.Variable{{Name: "A", Value: "1"}, {Name: "B", Value: "x=y"}, {Name: "A", Value: "2"}}
	s.Mounts = []container.Mount{{Path: "/in", HostPath: source, ReadOnly: true}}
	status, lines := b.run(t, s)
	got := facts(lines)
	for name, want := range map[string]string{
		"hostname": "host-of-p", "pid": "1", "uid": "5", "gid": "6", "directory": "/proc",
		"env.A": "2", "env.B": "x=y", "no_new_privileges": "1", "capabilities": "0000000000000000",
	} {
		if got[name] != want {
			t.Errorf("%s is %q, want %q", name, got[name], want)
		}
	}
	for _, want := range []string{"from outside", "900", "bye"} {
		if !slices.Contains(lines, want) {
			t.Errorf("no line %q in %q", want, lines)
		}
	}
	if status.ExitCode != 0 {
		t.Errorf("%+v", status)
	}
	for _, kind := range []string{"net", "ipc", "uts", "pid", "mnt"} {
		host, err := os.Readlink("/proc/self/ns/" + kind)
		must(t, err)
		if got["namespace."+kind] == host {
			t.Errorf("the container is in the machine's %s namespace", kind)
		}
	}
}

func TestHostNamespaces(t *testing.T) {
	t.Parallel()
	b := open(t)
	s := b.spec("a", "show")
	s.HostNetwork, s.HostPID, s.HostIPC = true, true, true
	host := container.HostNamespaces{HostNetwork: true, HostPID: true, HostIPC: true}
	must(t, b.Open(ctx(t), container.Pod{UID: "u1", HostNamespaces: host}))
	_, lines := b.run(t, s)
	got := facts(lines)
	for _, kind := range []string{"net", "ipc", "uts", "pid"} {
		host, err := os.Readlink("/proc/self/ns/" + kind)
		must(t, err)
		if got["namespace."+kind] != host {
			t.Errorf("%s namespace %s, the machine's is %s", kind, got["namespace."+kind], host)
		}
	}
}

// TestRoot shows that containers have the image to themselves.
func TestRoot(t *testing.T) {
	t.Parallel()
	b := open(t)
	status, _ := b.run(t, b.spec("a", "write", "/mine", "x", ",", "cat", "/mine"))
	if status.ExitCode != 0 {
		t.Errorf("write: %+v", status)
	}
	status, lines := b.run(t, b.spec("b", "cat", "/mine"))
	if status.ExitCode != 2 {
		t.Errorf("another container sees what the first wrote: %q", lines)
	}
	s := b.spec("c", "write", "/mine", "x")
	s.ReadOnlyRoot = true
	if status, lines = b.run(t, s); status.ExitCode != 2 || !strings.Contains(strings.Join(lines, ""), "read-only") {
		t.Errorf("read-only root: %+v, %q", status, lines)
	}
	if _, err := os.Stat(filepath.Join(b.image, "mine")); err == nil {
		t.Error("the image was written to")
	}
}

func TestDevices(t *testing.T) {
	t.Parallel()
	b := open(t)
	s := b.spec("a", "write", "/dev/gpu0", "x", ",", "print", "written", ",", "cat", "/dev/gpu0", ",", "print", "read")
	s.Devices = []container.Device{{Path: "/dev/gpu0", HostPath: "/dev/kmsg", Permissions: "w"}}
	status, lines := b.run(t, s)
	// The node is there; it may be written to and not read.
	if !slices.Contains(lines, "written") || slices.Contains(lines, "read") || status.ExitCode != 2 {
		t.Errorf("%+v, %q", status, lines)
	}
	b.pod(t)
	s = b.spec("b", "wait")
	s.Devices = []container.Device{{Path: "/dev/x", HostPath: "/dev/no-such-device", Permissions: "rw"}}
	if err := b.Create(ctx(t), s); errdefs.ClassOf(err) != errdefs.Invalid || !strings.Contains(err.Error(), "/dev/no-such-device") {
		t.Errorf("%v", err)
	}
	s.Devices, s.CDIDevices = nil, []string{"vendor.com/gpu=0"}
	if err := b.Create(ctx(t), s); errdefs.ClassOf(err) != errdefs.Unsupported {
		t.Errorf("%v", err)
	}
	must(t, b.Close(ctx(t), "u1"))
}

func TestWhatCannotBeCreated(t *testing.T) {
	t.Parallel()
	b := open(t)
	b.pod(t)
	for _, row := range []struct {
		change func(*container.Spec)
		want   string
	}{
		{func(s *container.Spec) { s.Image = "/no/such/image" }, "/no/such/image"},
		{func(s *container.Spec) { s.Command = nil }, "names no program"},
		{func(s *container.Spec) { s.Command = []string{"/none"} }, "/none"},
		{func(s *container.Spec) { s.Mounts = []container.Mount{{Path: "/x", HostPath: "/no/such/path"}} }, "/no/such/path"},
		{func(s *container.Spec) { s.PodUID = "closed" }, "closed"},
	} {
		s := b.spec("a", "wait")
		row.change(&s)
		if err := b.Create(ctx(t), s); err == nil || !strings.Contains(err.Error(), row.want) {
			t.Errorf("got %v, want %q", err, row.want)
		}
		if all, err := b.List(ctx(t), ""); err != nil || len(all) > 0 {
			t.Errorf("%s: left %+v, %v", row.want, all, err)
		}
	}
	must(t, b.Close(ctx(t), "u1"))
	if _, err := builtin.New(builtin.Options{Dir: "relative"}); errdefs.ClassOf(err) != errdefs.Invalid {
		t.Errorf("a relative directory: %v", err)
	}
}

// TestTakenOver opens the directory another time: containers are there, and are
// watched.
func TestTakenOver(t *testing.T) {
	t.Parallel()
	b := open(t)
	b.pod(t)
	must(t, b.Create(ctx(t), b.spec("a", "wait")))
	must(t, b.Start(ctx(t), "a"))
	must(t, b.Create(ctx(t), b.spec("b", "wait")))
	before, err := b.List(ctx(t), "")
	must(t, err)
	b.Stop()
	for len(b.changed) > 0 {
		<-b.changed
	}
	b.Runtime = b.again(t)
	after, err := b.List(ctx(t), "")
	must(t, err)
	if fmt.Sprint(before) != fmt.Sprint(after) || len(after) != 2 || after[0].Phase != container.Running ||
		after[1].Phase != container.Created {
		t.Errorf("before %+v\nafter  %+v", before, after)
	}
	must(t, b.Start(ctx(t), "b"))
	for _, id := range []string{"a", "b"} {
		must(t, b.Signal(ctx(t), id, syscall.SIGKILL))
		b.until(t, id, container.Exited)
		must(t, b.Remove(ctx(t), id))
	}
	must(t, b.Close(ctx(t), "u1"))
}

// TestLostKeeper kills a keeper: the container's output is not read any more, and
// its end would not be noticed.
func TestLostKeeper(t *testing.T) {
	t.Parallel()
	b := open(t)
	b.pod(t)
	must(t, b.Create(ctx(t), b.spec("a", "wait")))
	must(t, b.Start(ctx(t), "a"))
	pid := b.until(t, "a", container.Running).PID
	must(t, syscall.Kill(parent(t, pid), syscall.SIGKILL))
	status := b.until(t, "a", container.Exited)
	if status.Reason != container.Lost || status.ExitCode != 137 {
		t.Errorf("%+v", status)
	}
	if err := syscall.Kill(pid, 0); err == nil && !strings.Contains(stat(pid), ") Z ") {
		t.Errorf("process %d lives: %s", pid, stat(pid))
	}
	must(t, b.Remove(ctx(t), "a"))
	must(t, b.Close(ctx(t), "u1"))
}

// TestHeadless: a container that ends the first thread of its first process, as only a hostile one does, has not ended.
// libcontainer takes it for a zombie, neither signals it nor waits for it, and its CPUs would be given to others.
func TestHeadless(t *testing.T) {
	t.Parallel()
	b := open(t)
	b.pod(t)
	for _, row := range []struct {
		name string
		end  func(t *testing.T, id string, pid int)
		code int
	}{
		{"terminated", func(t *testing.T, id string, _ int) { must(t, b.Signal(ctx(t), id, syscall.SIGTERM)) }, 0},
		{"killed", func(t *testing.T, id string, _ int) { must(t, b.Signal(ctx(t), id, syscall.SIGKILL)) }, 137},
		{"lost", func(t *testing.T, _ string, pid int) { must(t, syscall.Kill(parent(t, pid), syscall.SIGKILL)) }, 137},
		{"removed", func(t *testing.T, id string, _ int) { must(t, b.Remove(ctx(t), id)) }, -1},
	} {
		must(t, b.Create(ctx(t), b.spec(row.name, "headless")))
		must(t, b.Start(ctx(t), row.name))
		pid := b.until(t, row.name, container.Running).PID
		nodetest.Eventually(t, timeout, "the first thread has ended", func() bool { return strings.Contains(stat(pid), ") Z ") })
		process, err := unix.PidfdOpen(pid, 0)
		must(t, err)
		if row.code == 0 {
			_, err := builtin.Exec(ctx(t), b.dir, row.name, builtin.Execution{Args: []string{"/probe", "show"}, Stdout: io.Discard,
				Stderr: io.Discard})
			if errdefs.ClassOf(err) != errdefs.Precondition || !strings.Contains(fmt.Sprint(err), "first thread") {
				t.Errorf("a program in a container without a first thread: %v", err)
			}
		}
		row.end(t, row.name, pid)
		if row.code >= 0 {
			if got := b.until(t, row.name, container.Exited); got.ExitCode != row.code {
				t.Errorf("%s: %+v", row.name, got)
			}
			must(t, b.Remove(ctx(t), row.name))
		}
		if n, err := unix.Poll([]unix.PollFd{{Fd: int32(process), Events: unix.POLLIN}}, 0); n != 1 || err != nil {
			t.Errorf("%s: the process has not ended: %d, %v", row.name, n, err)
		}
		must(t, unix.Close(process))
	}
	must(t, b.Close(ctx(t), "u1"))
}

func stat(pid int) string {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return string(text)
}

// parent gives the parent of a process.
func parent(t *testing.T, pid int) int {
	t.Helper()
	var state string
	var ppid int
	fields := stat(pid)
	if _, err := fmt.Sscan(fields[strings.LastIndex(fields, ")")+1:], &state, &ppid); err != nil {
		t.Fatal(err)
	}
	return ppid
}

// TestHalfMade finds what is left when the making of a container was cut off.
func TestHalfMade(t *testing.T) {
	t.Parallel()
	b := open(t)
	b.pod(t)
	must(t, b.Create(ctx(t), b.spec("a", "wait")))
	pid := b.until(t, "a", container.Created).PID
	must(t, syscall.Kill(parent(t, pid), syscall.SIGKILL))
	must(t, os.Remove(filepath.Join(b.dir, "containers", "a", "created.json")))
	if all, err := b.List(ctx(t), ""); err != nil || len(all) > 0 {
		t.Errorf("%+v, %v", all, err)
	}
	must(t, b.Create(ctx(t), b.spec("a", "exit", "4")))
	must(t, b.Start(ctx(t), "a"))
	if status := b.until(t, "a", container.Exited); status.ExitCode != 4 {
		t.Errorf("%+v", status)
	}
	must(t, b.Remove(ctx(t), "a"))
	must(t, b.Close(ctx(t), "u1"))
}

// TestOutOfMemory has the kernel kill a container for want of memory.
func TestOutOfMemory(t *testing.T) {
	t.Parallel()
	b := open(t)
	limit := filepath.Join("/sys/fs/cgroup/memory", b.cgroup, "a", "memory.limit_in_bytes")
	if _, err := os.Stat("/sys/fs/cgroup/memory/cgroup.procs"); err != nil {
		controllers, err := os.ReadFile("/sys/fs/cgroup/cgroup.controllers")
		if err != nil || !slices.Contains(strings.Fields(string(controllers)), "memory") {
			t.Skipf("needs a memory controller: there is no /sys/fs/cgroup/memory, and the unified tree has %q, %v", controllers, err)
		}
		limit = filepath.Join("/sys/fs/cgroup", b.cgroup, "a", "memory.max")
	}
	b.pod(t)
	must(t, b.Create(ctx(t), b.spec("a", "fill")))
	// This is berthd's part.
	must(t, os.WriteFile(limit, []byte("33554432"), 0o644))
	must(t, b.Start(ctx(t), "a"))
	if status := b.until(t, "a", container.Exited); status.Reason != container.OOMKilled || status.ExitCode != 137 {
		t.Errorf("%+v", status)
	}
	must(t, b.Remove(ctx(t), "a"))
	must(t, b.Close(ctx(t), "u1"))
}

// TestStreams shows that both streams are in the log, and how a line looks.
func TestStreams(t *testing.T) {
	t.Parallel()
	b := open(t)
	b.pod(t)
	s := b.spec("a", "print", "to", "out", ",", "complain", "to", "err")
	must(t, b.Create(ctx(t), s))
	must(t, b.Start(ctx(t), "a"))
	b.until(t, "a", container.Exited)
	text, err := os.ReadFile(s.LogPath)
	must(t, err)
	for _, want := range []string{`(?m)^\S+Z stdout F to out$`, `(?m)^\S+Z stderr F to err$`} {
		if !regexp.MustCompile(want).Match(text) {
			t.Errorf("no %s in %q", want, text)
		}
	}
	must(t, b.Remove(ctx(t), "a"))
	must(t, b.Close(ctx(t), "u1"))
	if _, err := os.Stat(s.LogPath); errors.Is(err, os.ErrNotExist) {
		t.Error("the log is the agent's to remove")
	}
}
