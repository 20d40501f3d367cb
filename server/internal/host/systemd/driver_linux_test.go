package systemd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berthd/berth/managers/cgroup"
	"github.com/berthd/berth/managers/cgroup/cgrouptest"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/server/internal/host/cgroupfs"
)

// chainEnv makes this program a process that waits for a line and then forks: each
// of the chain starts the next and ends.
const chainEnv = "BERTH_TEST_CHAIN"

func TestMain(m *testing.M) {
	if os.Getenv(chainEnv) != "" {
		chain()
	}
	os.Exit(m.Run())
}

func chain() {
	if os.Getenv(chainEnv) == "first" {
		if _, err := os.Stdin.Read(make([]byte, 1)); err != nil {
			os.Exit(1)
		}
	}
	next := exec.Command(os.Args[0])
	next.Env = append(os.Environ(), chainEnv+"=next")
	// A limit on processes ends the chain too.
	if next.Start() != nil {
		os.Exit(1)
	}
	os.Exit(0)
}

func open(t *testing.T) *Driver {
	t.Helper()
	d, err := Open(cgroupfs.Options{})
	if err != nil {
		t.Skipf("no systemd to ask: %v", err)
	}
	t.Cleanup(func() { _ = d.Close() })
	return d
}

var roots atomic.Int64

// root makes a place of its own for a test, which goes with all that is in it.
func root(t *testing.T, d *Driver) cgroup.Name {
	t.Helper()
	name := cgroup.Name{fmt.Sprintf("berthtest%d-%d", os.Getpid(), roots.Add(1))}
	_, err := d.Ensure(t.Context(), cgroup.Node{Name: name})
	if errors.Is(err, unix.EACCES) || errors.Is(err, unix.EPERM) {
		t.Skipf("systemd lets nobody in (uid %d): %v", os.Getuid(), err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Remove(context.WithoutCancel(t.Context()), name); err != nil {
			t.Errorf("left behind: %v", err)
		}
	})
	return name
}

func start(t *testing.T) cgrouptest.Process {
	t.Helper()
	c := exec.Command(os.Args[0])
	c.Env = append(os.Environ(), chainEnv+"=first")
	in, err := c.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		_ = c.Wait() // it is killed: that it ended is all there is to know
		close(done)
	}()
	t.Cleanup(func() {
		_ = c.Process.Kill()
		<-done
	})
	return cgrouptest.Process{PID: c.Process.Pid, Fork: func() {
		_, _ = io.WriteString(in, "\n")
		<-done
	}}
}

// Not beside other tests: systemd is one for all of them, and other tests that make slices
// change which controllers those of others have.
func TestSystemdKeepsContract(t *testing.T) {
	d := open(t)
	top, err := d.Observe(t.Context(), nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	set := top.Nodes[0].Effective
	root(t, d)
	cgrouptest.Run(t, func(t *testing.T) cgrouptest.Fixture {
		return cgrouptest.Fixture{
			Tree: d, Facts: d.Facts(), Root: root(t, d), CPUs: set.CPUs, Mems: set.Mems, Start: start,
		}
	})
}

// A slice without values requests its share of the CPUs all the same: what no slice
// requests, systemd takes away from all of them.
func TestEverySliceAsksForTheCPUController(t *testing.T) {
	d := open(t)
	at, err := place(root(t, d))
	if err != nil {
		t.Fatal(err)
	}
	want := "CPUWeight=100"
	if d.Facts().Version == cgroup.V1 {
		want = "CPUShares=1024"
	}
	name, _, _ := strings.Cut(want, "=")
	got, err := exec.CommandContext(t.Context(), "systemctl", "show", "--property="+name, at.Base()).Output()
	if err != nil || strings.TrimSpace(string(got)) != want {
		t.Errorf("systemd knows %q (%v), want %s", got, err, want)
	}
}

// systemd knows the limits itself: they are still there after it has reloaded.
func TestLimitsOutliveAReload(t *testing.T) {
	d := open(t)
	name := append(root(t, d), "pod")
	shares, quota, period, memory, pids := uint64(512), int64(175500), uint64(100000), int64(64<<20), int64(77)
	values := cgroup.Values{CPUShares: &shares, CPUQuotaUS: &quota, CPUPeriodUS: &period, MemoryBytes: &memory, PIDs: &pids}
	if _, err := d.Ensure(t.Context(), cgroup.Node{Name: name, Values: values}); err != nil {
		t.Fatal(err)
	}
	expect := func(when string) {
		t.Helper()
		seen, err := d.Observe(t.Context(), name, 0)
		if err != nil {
			t.Fatal(err)
		}
		if ops := cgroup.Diff([]cgroup.Node{{Name: name, Values: values}}, seen); len(ops) > 0 {
			t.Errorf("%s: not in force: %v", when, ops)
		}
		if got := *seen.Find(name).Values.CPUQuotaUS; got != 176000 {
			t.Errorf("%s: the quota is %d, want systemd's whole percents, 176000", when, got)
		}
	}
	expect("set")
	reload(t, d)
	expect("reloaded")
}

// reload has systemd read its units again, as systemctl daemon-reload does. It
// answers requests in between only, so a slice that it has made since shows that it
// has read them.
func reload(t *testing.T, d *Driver) {
	t.Helper()
	if err := unix.Kill(1, unix.SIGHUP); err != nil {
		t.Skipf("systemd cannot be told to reload: %v", err)
	}
	root(t, d)
}

// A pod's slice that was stopped is noticed by a pass, runs again after it, and
// its cgroup can be written and removed meanwhile.
func TestStoppedSlice(t *testing.T) {
	d := open(t)
	top := root(t, d)
	shares := uint64(512)
	values := cgroup.Values{CPUShares: &shares}
	pod, container := append(slices.Clone(top), "pod"), append(slices.Clone(top), "pod", "c")
	wanted := []cgroup.Node{{Name: top}, {Name: pod, Values: values}, {Name: container, Values: values}}
	for _, n := range wanted {
		if _, err := d.Ensure(t.Context(), n); err != nil {
			t.Fatal(err)
		}
	}
	at, err := place(pod)
	if err != nil {
		t.Fatal(err)
	}
	somebody := newBus()
	t.Cleanup(func() { _ = somebody.Close() })
	for range 2 {
		if err := somebody.Stop(t.Context(), at.Base()); err != nil {
			t.Fatal(err)
		}
		seen, err := d.Observe(t.Context(), top, -1)
		if err != nil || seen.Find(pod).State == cgroup.Valid {
			t.Fatalf("stopped, and %s: %v", seen.Find(pod).State, err)
		}
		if err := cgroup.Apply(t.Context(), d, cgroup.Diff(wanted, seen)); err != nil {
			t.Fatal(err)
		}
		active, err := somebody.Active(t.Context(), at.Base())
		if err != nil || !active[at.Base()] {
			t.Errorf("after the pass: %v, %v", active, err)
		}
		if seen, err = d.Observe(t.Context(), top, -1); err != nil || len(cgroup.Diff(wanted, seen)) > 0 {
			t.Errorf("after the pass: %v, %v", cgroup.Diff(wanted, seen), err)
		}
	}
	if err := somebody.Stop(t.Context(), at.Base()); err != nil {
		t.Fatal(err)
	}
	shares = 1024
	if _, err := d.Ensure(t.Context(), wanted[2]); err != nil {
		t.Errorf("a container of a pod that was stopped: %v", err)
	}
	if err := d.Remove(t.Context(), pod); err != nil {
		t.Error(err)
	}
}

// Watchers are notified of a reload when it is over.
func TestReloads(t *testing.T) {
	d := open(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	over, ended := make(chan struct{}, 100), make(chan error, 1)
	go func() { ended <- d.Reloads(ctx, func() { over <- struct{}{} }) }()
	for {
		reload(t, d) // the watch may not have begun at the first one
		select {
		case <-over:
			cancel()
			if err := <-ended; !errors.Is(err, context.Canceled) {
				t.Errorf("it ends with %v", err)
			}
			return
		case err := <-ended:
			t.Fatalf("the watch ends: %v", err)
		case <-time.After(time.Second):
		}
	}
}

// What systemd knows nothing of is foreign: it is seen and not touched.
func TestForeignUnits(t *testing.T) {
	t.Parallel()
	d := open(t)
	seen, err := d.Observe(t.Context(), cgroup.Name{"system"}, 1)
	if err != nil {
		t.Fatal(err)
	}
	services := slices.DeleteFunc(seen.Nodes, func(o cgroup.Observed) bool { return !strings.HasSuffix(o.Name.Base(), ".service") })
	if len(services) == 0 {
		t.Skip("system.slice has no service")
	}
	name := services[0].Name
	if !name.Parent().Equal(cgroup.Name{"system"}) {
		t.Errorf("a service is named %s", name)
	}
	if _, err := d.Ensure(t.Context(), cgroup.Node{Name: name}); errdefs.ClassOf(err) != errdefs.Invalid {
		t.Errorf("a service is made: %v", err)
	}
	if o, err := d.Observe(t.Context(), name, 0); err != nil || o.Find(name).State == cgroup.Absent {
		t.Errorf("by its name it is %s, %v", o.Find(name).State, err)
	}
}

func TestPlaces(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name cgroup.Name
		want string
	}{
		{nil, "/"},
		{cgroup.Name{"kubepods"}, "/kubepods.slice"},
		{cgroup.Name{"kubepods", "burstable", "pod1-2"}, "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod1_2.slice"},
		{cgroup.Name{"kubepods", "pod1", "cri-a.scope"}, "/kubepods.slice/kubepods-pod1.slice/cri-a.scope"},
		{cgroup.Name{"system", "ssh.service"}, "/system.slice/ssh.service"},
	}
	for _, tt := range tests {
		got, err := place(tt.name)
		if err != nil || got.String() != tt.want {
			t.Errorf("%s lies at %s, %v, want %s", tt.name, got, err, tt.want)
		}
		back := cgroup.Name(nil)
		for _, component := range got {
			back = name(back, component)
		}
		if !back.Equal(tt.name) {
			t.Errorf("%s is read back as %s", tt.want, back)
		}
	}
	for _, bad := range []cgroup.Name{{"a", ""}, {"a", ".."}, {"a/b"}} {
		if _, err := place(bad); errdefs.ClassOf(err) != errdefs.Invalid {
			t.Errorf("%q: %v", []string(bad), err)
		}
	}
}
