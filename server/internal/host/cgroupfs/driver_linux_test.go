package cgroupfs

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/berthd/berth/managers/cgroup"
	"github.com/berthd/berth/managers/cgroup/cgrouptest"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/server/internal/host/cgroupfs/ocicgroups"
)

// kernelTree is a tree of this machine that tests may write to.
type kernelTree struct {
	name    string
	options Options
}

// kernelTrees are the tree that the system uses and, on a hybrid system, the
// unified one beside it.
var kernelTrees = []kernelTree{
	{"system", Options{Setter: ocicgroups.Setter{}}},
	{"unified", Options{Mount: "/sys/fs/cgroup/unified", Required: []string{}, Setter: ocicgroups.Setter{}}},
}

// open opens a tree, or skips with the proof that it cannot be written to.
func (k kernelTree) open(t *testing.T) *Driver {
	t.Helper()
	if _, err := os.Stat(k.options.Mount); k.options.Mount != "" && err != nil {
		t.Skipf("no such tree here: %v", err)
	}
	d, err := Open(k.options)
	if err != nil {
		t.Skipf("no usable tree: %v", err)
	}
	t.Cleanup(func() { _ = d.Close() })
	return d
}

// place makes sure that a place in the tree can be made, and removes it with all
// that is in it when the test ends.
func place(t *testing.T, d *Driver) cgroup.Name {
	t.Helper()
	name := cgroup.Name{fmt.Sprintf("berthtest-%d-%d", os.Getpid(), cgroupNumber.next())}
	_, err := d.Ensure(t.Context(), cgroup.Node{Name: name})
	if errors.Is(err, unix.EACCES) || errors.Is(err, unix.EPERM) || errors.Is(err, unix.EROFS) {
		t.Skipf("the tree cannot be written to (uid %d): %v", os.Getuid(), err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		//nolint:usetesting // the test's context has ended by now
		if err := d.Remove(cleanupContext(), name); err != nil {
			t.Errorf("left behind: %v", err)
		}
	})
	return name
}

// start runs a process that waits to become a chain.
func start(t *testing.T) cgrouptest.Process {
	t.Helper()
	c := exec.Command(os.Args[0])
	c.Env = append(os.Environ(), fmt.Sprintf("%s=%d", chainEnv, os.Getpid()))
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
		<-done // the first of the chain has ended: the second is there
	}}
}

func TestKernelKeepsContract(t *testing.T) {
	t.Parallel()
	for _, k := range kernelTrees {
		t.Run(k.name, func(t *testing.T) {
			t.Parallel()
			d := k.open(t)
			top, err := d.Observe(t.Context(), nil, 0)
			if err != nil {
				t.Fatal(err)
			}
			place(t, d)
			cgrouptest.Run(t, func(t *testing.T) cgrouptest.Fixture {
				set := top.Nodes[0].Effective
				return cgrouptest.Fixture{
					Tree: d, Facts: d.Facts(), Root: place(t, d),
					CPUs: set.CPUs, Mems: set.Mems, Start: start,
				}
			})
		})
	}
}

// A cgroup that lacks a hierarchy is invalid, the reason names it, and Ensure repairs it.
func TestPartialCgroupIsRepaired(t *testing.T) {
	t.Parallel()
	d := kernelTrees[0].open(t)
	if d.Facts().Version != cgroup.V1 {
		t.Skipf("%s is cgroup v2: it has one hierarchy", d.mount)
	}
	name := append(place(t, d), "pod")
	if _, err := d.Ensure(t.Context(), cgroup.Node{Name: name}); err != nil {
		t.Fatal(err)
	}
	h, _ := d.hierarchy("cpu")
	if err := d.root.Remove(h.path(name)); err != nil {
		t.Fatal(err)
	}
	seen, err := d.Observe(t.Context(), name, 0)
	if err != nil || seen.Nodes[0].State != cgroup.Invalid || seen.Nodes[0].Reason != "has some missing paths: "+h.path(name) {
		t.Fatalf("partial cgroup: %+v, %v", seen, err)
	}
	if created, err := d.Ensure(t.Context(), cgroup.Node{Name: name}); err != nil || created {
		t.Fatalf("the rest of a cgroup is made: created %t, %v", created, err)
	}
	if seen, err = d.Observe(t.Context(), name, 0); err != nil || seen.Nodes[0].State != cgroup.Valid {
		t.Errorf("after Ensure: %+v, %v", seen, err)
	}
}

// The error of a removal that runs out of time has the remaining processes, and it can be
// repeated.
func TestRemoveOutOfTime(t *testing.T) {
	t.Parallel()
	d := kernelTrees[0].open(t)
	name := append(place(t, d), "pod")
	if _, err := d.Ensure(t.Context(), cgroup.Node{Name: name}); err != nil {
		t.Fatal(err)
	}
	p := start(t)
	if err := d.Move(t.Context(), name, p.PID); err != nil {
		t.Fatal(err)
	}
	hasty := *d
	hasty.killTimeout = 1
	err := hasty.Remove(t.Context(), name)
	if errdefs.ClassOf(err) != errdefs.Deadline || !strings.Contains(err.Error(), strconv.Itoa(p.PID)) {
		t.Errorf("%v, want class deadline and process %d", err, p.PID)
	}
	if err := d.Remove(t.Context(), name); err != nil {
		t.Errorf("second Remove: %v", err)
	}
}

// Remove does not kill berth itself, whatever is in the tree.
func TestRemoveRefusesItsOwnCgroup(t *testing.T) {
	t.Parallel()
	if os.Getenv(childEnv) == "" {
		inChild(t)
		return
	}
	d := kernelTrees[0].open(t)
	name := append(place(t, d), "self")
	if _, err := d.Ensure(t.Context(), cgroup.Node{Name: name}); err != nil {
		t.Fatal(err)
	}
	if err := d.Move(t.Context(), name, os.Getpid()); err != nil {
		t.Fatal(err)
	}
	err := d.Remove(t.Context(), name)
	if back := d.Move(t.Context(), nil, os.Getpid()); back != nil {
		t.Fatal(back)
	}
	if err == nil {
		t.Error("Remove of the cgroup that holds the test itself: no error")
	}
}

// childEnv marks the process that inChild starts.
const childEnv = "BERTH_TEST_CHILD"

// inChild runs the test again in a process of its own: for tests that move
// themselves about or change what belongs to the whole process.
func inChild(t *testing.T) {
	t.Helper()
	c := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v")
	c.Env = append(os.Environ(), childEnv+"=1")
	if out, err := c.CombinedOutput(); err != nil {
		t.Errorf("%v:\n%s", err, out)
	}
}

func TestOpenRefusals(t *testing.T) {
	t.Parallel()
	if _, err := Open(Options{Mount: t.TempDir()}); err == nil {
		t.Error("an ordinary directory was taken for a cgroup tree")
	}
	if _, err := Open(Options{Mount: filepath.Join(t.TempDir(), "none")}); err == nil {
		t.Error("a directory that is not there was taken for a cgroup tree")
	}
	if _, err := Open(Options{Required: []string{"gravity"}}); err == nil {
		t.Error("a controller that no kernel has was found")
	}
}
