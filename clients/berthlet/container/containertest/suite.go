// Package containertest holds every container runtime against the same demands,
// and has a runtime without processes for tests of what uses one.
package containertest

import (
	"context"
	"slices"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/berthd/berth/clients/berthlet/container"
	"github.com/berthd/berth/managers/errdefs"
)

// Bench is a runtime to be tested.
type Bench struct {
	Runtime container.Runtime
	// Image and Program are used by every container. The program follows its arguments, as
	// hack/probe does.
	Image, Program string
	// Changed gets the pod's uid whenever a container of it ends.
	Changed <-chan string
	// CgroupPath names a cgroup for a container; nil for a runtime that makes it.
	CgroupPath func(name string) string
	// CgroupParent is the pods', and LogDir where their logs are; both may be empty.
	CgroupParent, LogDir string
	// Suffix ends the uids of pods, for runtimes that share something; may be empty.
	Suffix string
	// OwnIDs means that the runtime assigns ids and places processes itself.
	OwnIDs bool
	// Listening waits until a running program would handle a signal. Before that, a signal kills
	// the program or is lost. It is nil if programs handle signals at once.
	Listening func(ctx context.Context, s container.Spec) error
}

// timeout bounds every wait; no test takes that long unless it fails.
const timeout = time.Minute

type tried struct {
	Bench
	t   *testing.T
	ctx context.Context
	uid string
}

// Run holds a runtime against the demands; open makes a fresh one.
func Run(t *testing.T, open func(t *testing.T) Bench) {
	t.Helper()
	for name, check := range map[string]func(*tried){
		"nothing begins before the start": startsLate,
		"a program ends by itself":        ends,
		"a program ends on SIGTERM":       terminated,
		"a stubborn program is killed":    killed,
		"what never began is removed":     neverBegan,
		"what runs is removed":            removedAlive,
		"calls are repeated":              repeated,
		"pods are apart":                  apart,
		"what is not there":               unknown,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithTimeout(t.Context(), timeout)
			defer cancel()
			b := &tried{Bench: open(t), t: t, ctx: ctx}
			b.uid = "u1" + b.Suffix
			b.must(b.Runtime.Open(ctx, b.pod("p")))
			if opened, err := b.Runtime.Opened(ctx); err != nil || !slices.Contains(opened, b.uid) {
				t.Errorf("open pods: %v, %v; %s is open", opened, err, b.uid)
			}
			check(b)
			for _, s := range b.list("") {
				b.must(b.Runtime.Remove(ctx, s.ID))
			}
			b.must(b.Runtime.Close(ctx, b.uid))
			b.must(b.Runtime.Close(ctx, b.uid))
			if opened, err := b.Runtime.Opened(ctx); err != nil || slices.Contains(opened, b.uid) {
				t.Errorf("open pods: %v, %v; %s is closed", opened, err, b.uid)
			}
			if left := b.list(""); len(left) > 0 {
				t.Errorf("left behind: %v", left)
			}
		})
	}
}

func (b *tried) pod(name string) container.Pod {
	return container.Pod{UID: b.uid, Namespace: "default", Name: name, Hostname: name, CgroupParent: b.CgroupParent, LogDir: b.LogDir}
}

// log is a path for the output of a container.
func (b *tried) log() string {
	if b.LogDir == "" {
		return b.t.TempDir() + "/log"
	}
	return b.LogDir + "/" + b.uid + "/log"
}

func (b *tried) must(err error) {
	b.t.Helper()
	if err != nil {
		b.t.Fatal(err)
	}
}

func (b *tried) list(uid string) []container.Status {
	b.t.Helper()
	all, err := b.Runtime.List(b.ctx, uid)
	b.must(err)
	return all
}

// spec describes a container whose program follows the arguments.
func (b *tried) spec(name string, args ...string) container.Spec {
	s := container.Spec{
		ID: name + "-0", PodUID: b.uid, Name: name, Pause: 3 * time.Second,
		Image: b.Image, Command: append([]string{b.Program}, args...),
		LogPath: b.log(), Cgroup: container.Cgroup{CgroupParent: b.CgroupParent},
	}
	if b.CgroupPath != nil {
		s.CgroupPath = b.CgroupPath(s.ID)
	}
	return s
}

// status expects one container of the pod in a phase.
func (b *tried) status(want container.Phase) container.Status {
	b.t.Helper()
	all := b.list(b.uid)
	if len(all) != 1 || all[0].Phase != want {
		b.t.Fatalf("containers %+v, want one that is %s", all, want)
	}
	return all[0]
}

// exit waits until the pod's one container has exited, with the runtime's notifications only.
func (b *tried) exit() container.Status {
	b.t.Helper()
	for {
		if all := b.list(b.uid); len(all) == 1 && all[0].Phase == container.Exited {
			return all[0]
		}
		select {
		case <-b.Changed:
		case <-b.ctx.Done():
			b.t.Fatalf("waited in vain for an end: %+v", b.list(b.uid))
		}
	}
}

func (b *tried) running(args ...string) string {
	b.t.Helper()
	s := b.spec("c", args...)
	id := b.create(s)
	b.must(b.Runtime.Start(b.ctx, id))
	if b.Listening != nil && args[0] != "exit" {
		b.must(b.Listening(b.ctx, s))
	}
	return id
}

// create creates the pod's one container, and returns its id.
func (b *tried) create(s container.Spec) string {
	b.t.Helper()
	b.must(b.Runtime.Create(b.ctx, s))
	return b.status(container.Created).ID
}

func startsLate(b *tried) {
	s := b.spec("c", "wait")
	s.Attempt = 4
	id := b.create(s)
	got := b.status(container.Created)
	if !b.OwnIDs && id != s.ID || got.PodUID != b.uid || got.Name != "c" || got.Attempt != 4 || got.Pause != s.Pause {
		b.t.Errorf("labels: %+v", got)
	}
	if (got.PID == 0) != b.OwnIDs || got.Created.IsZero() || !got.Started.IsZero() || !got.Finished.IsZero() {
		b.t.Errorf("created: %+v", got)
	}
	b.must(b.Runtime.Start(b.ctx, id))
	if now := b.status(container.Running); now.PID != got.PID || now.Started.Before(now.Created) {
		b.t.Errorf("running: %+v, was %+v", now, got)
	}
}

func ends(b *tried) {
	for _, code := range []int{0, 3} {
		id := b.running("exit", strconv.Itoa(code))
		got := b.exit()
		if got.ExitCode != code || got.PID != 0 || got.Finished.Before(got.Started) || got.Reason != "" {
			b.t.Errorf("exit %d: %+v", code, got)
		}
		b.must(b.Runtime.Remove(b.ctx, id))
	}
}

func terminated(b *tried) {
	id := b.running("wait")
	b.must(b.Runtime.Signal(b.ctx, id, syscall.SIGTERM))
	if got := b.exit(); got.ExitCode != 0 {
		b.t.Errorf("after SIGTERM: %+v", got)
	}
	b.must(b.Runtime.Signal(b.ctx, id, syscall.SIGTERM))
}

func killed(b *tried) {
	id := b.running("stubborn")
	b.must(b.Runtime.Signal(b.ctx, id, syscall.SIGTERM))
	b.status(container.Running)
	b.must(b.Runtime.Signal(b.ctx, id, syscall.SIGKILL))
	if got := b.exit(); got.ExitCode != 137 {
		b.t.Errorf("killed: %+v", got)
	}
}

func neverBegan(b *tried) {
	s := b.spec("c", "wait")
	id := b.create(s)
	b.must(b.Runtime.Signal(b.ctx, id, syscall.SIGKILL))
	if got := b.exit(); got.ExitCode != 137 || !got.Started.IsZero() {
		b.t.Errorf("killed before it began: %+v", got)
	}
	if err := b.Runtime.Start(b.ctx, id); err == nil {
		b.t.Error("a container that has exited was started")
	}
	b.must(b.Runtime.Remove(b.ctx, id))
	b.must(b.Runtime.Remove(b.ctx, b.create(s)))
	if left := b.list(""); len(left) > 0 {
		b.t.Errorf("removed: %+v", left)
	}
}

func removedAlive(b *tried) {
	b.must(b.Runtime.Remove(b.ctx, b.running("stubborn")))
	if left := b.list(""); len(left) > 0 {
		b.t.Errorf("removed: %+v", left)
	}
}

func repeated(b *tried) {
	s := b.spec("c", "wait")
	id := b.create(s)
	pid := b.status(container.Created).PID
	b.must(b.Runtime.Create(b.ctx, s))
	b.must(b.Runtime.Start(b.ctx, id))
	b.must(b.Runtime.Start(b.ctx, id))
	b.must(b.Runtime.Create(b.ctx, s))
	if got := b.status(container.Running); got.PID != pid || got.ID != id {
		b.t.Errorf("container %s with process %d became %s with %d", id, pid, got.ID, got.PID)
	}
	b.must(b.Runtime.Open(b.ctx, b.pod("p")))
	b.must(b.Runtime.Remove(b.ctx, id))
	b.must(b.Runtime.Remove(b.ctx, id))
}

func apart(b *tried) {
	other := *b
	other.uid = "u2" + b.Suffix
	b.must(b.Runtime.Open(b.ctx, other.pod("q")))
	b.must(b.Runtime.Create(b.ctx, b.spec("c", "wait")))
	b.must(b.Runtime.Create(b.ctx, other.spec("d", "wait")))
	if got := b.status(container.Created); got.Name != "c" {
		b.t.Errorf("containers of u1: %+v", got)
	}
	if got := other.status(container.Created); got.Name != "d" {
		b.t.Errorf("containers of u2: %+v", got)
	}
	if all := b.list(""); len(all) != 2 {
		b.t.Errorf("all containers: %+v", all)
	}
	b.must(b.Runtime.Remove(b.ctx, other.status(container.Created).ID))
	b.must(b.Runtime.Close(b.ctx, other.uid))
}

func unknown(b *tried) {
	if err := b.Runtime.Start(b.ctx, "none"); errdefs.ClassOf(err) != errdefs.NotFound {
		b.t.Errorf("start: %v", err)
	}
	if err := b.Runtime.Signal(b.ctx, "none", syscall.SIGTERM); errdefs.ClassOf(err) != errdefs.NotFound {
		b.t.Errorf("signal: %v", err)
	}
	b.must(b.Runtime.Remove(b.ctx, "none"))
	b.must(b.Runtime.Close(b.ctx, "none"))
	if all := b.list("none"); len(all) > 0 {
		b.t.Errorf("containers of nobody: %+v", all)
	}
}
