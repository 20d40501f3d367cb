package main

import (
	"context"
	"os"
	"path"
	"strconv"
	"strings"
	"syscall"
	"testing"

	admissionv1 "github.com/berthd/berth/api/berth/admission/v1"
	cgroupv1 "github.com/berthd/berth/api/berth/cgroup/v1"
	"github.com/berthd/berth/clients/berth"
	"github.com/berthd/berth/managers/cgroup"
	"github.com/berthd/berth/server/internal/host/cgroupfs"
	"github.com/berthd/berth/server/internal/host/systemd"
)

// TestSlices: where systemd owns the tree, pods are slices of its.
func TestSlices(t *testing.T) {
	t.Parallel()
	tree, err := systemd.Open(cgroupfs.Options{})
	if err != nil {
		t.Skipf("no systemd to ask: %v", err)
	}
	n := newNode(t, "--cgroup-driver", "systemd")
	n.needKernel()
	root := cgroup.Name{n.cgroup}
	t.Cleanup(func() {
		if err := tree.Remove(context.WithoutCancel(t.Context()), root); err != nil {
			t.Error(err)
		}
		_ = tree.Close()
	})
	d := n.start()
	answer := d.admitted(limited("a-1", "100m", "32Mi"))
	slice := strings.ReplaceAll(n.cgroup, "-", "_")
	want := path.Join("/", slice+".slice", slice+"-kubepods.slice", slice+"-kubepods-burstable.slice",
		slice+"-kubepods-burstable-poda_1.slice")
	if got := answer.GetCgroupParent(); got != want {
		t.Fatalf("the runtime is told %s, want %s", got, want)
	}
	p := n.stoppedWith(4)
	d.run(p, "a-1", "main", "c-1")
	p.works()
	pod := cgroup.Name{n.cgroup, "kubepods", "burstable", "poda-1"}
	expect := func(when string, mib int64) {
		t.Helper()
		seen, err := tree.Observe(t.Context(), pod, 1)
		if err != nil || len(seen.Nodes) != 2 {
			t.Fatalf("%s: %v, %v", when, seen, err)
		}
		for _, o := range seen.Nodes {
			if o.State != cgroup.Valid || o.Values.MemoryBytes == nil || *o.Values.MemoryBytes != mib<<20 {
				t.Errorf("%s: %s is %s, with %v", when, o.Name, o.State, o.Values.MemoryBytes)
			}
		}
	}
	expect("admitted", 32)
	resized, err := d.admission.Resize(d.ctx(), berth.ResizeTo(limited("a-1", "200m", "64Mi")))
	if err != nil || resized.GetVerdict() != admissionv1.Verdict_VERDICT_ADMITTED {
		t.Fatalf("%v, %v", resized, err)
	}
	expect("resized", 64)
	d.kill()
	d = n.start()
	expect("after a crash", 64)
	if text, err := os.ReadFile("/proc/" + strconv.Itoa(p.cmd.Process.Pid) + "/cgroup"); err != nil ||
		!strings.Contains(string(text), want+"/") {
		t.Errorf("the process runs in %s, %v", text, err)
	}
	plan, err := cgroupv1.NewCgroupServiceClient(d.conn).Plan(d.ctx(), &cgroupv1.PlanRequest{})
	if err != nil || len(plan.GetWrites()) > 0 {
		t.Errorf("a tree at rest is planned to change: %v, %v", plan, err)
	}
	d.remove("a-1")
	if seen, err := tree.Observe(t.Context(), pod, 0); err != nil || seen.Nodes[0].State != cgroup.Absent {
		t.Errorf("the slice stays: %v, %v", seen, err)
	}
	d.check()
}

// TestReexecutedSystemd: when systemd is started again in its place, slices of removed pods that
// are there again are removed at once and quietly, and values that were taken back are
// written. No pass is due by time.
func TestReexecutedSystemd(t *testing.T) {
	tree, err := systemd.Open(cgroupfs.Options{})
	if err != nil {
		t.Skipf("no systemd to ask: %v", err)
	}
	n := newNode(t, "--cgroup-driver", "systemd", "--log-level", "debug")
	n.needKernel()
	n.configure("cgroups: {reconcilePeriod: 24h}\n")
	t.Cleanup(func() {
		if err := tree.Remove(context.WithoutCancel(t.Context()), cgroup.Name{n.cgroup}); err != nil {
			t.Error(err)
		}
		_ = tree.Close()
	})
	d := n.start()
	d.admitted(limited("a-1", "100m", "32Mi"))
	d.admitted(limited("b-1", "100m", "32Mi"))
	d.remove("a-1")
	removed, stays := cgroup.Name{n.cgroup, "kubepods", "burstable", "poda-1"}, cgroup.Name{n.cgroup, "kubepods", "burstable", "podb-1"}
	state := func(name cgroup.Name) cgroup.State {
		t.Helper()
		seen, err := tree.Observe(t.Context(), name, 0)
		if err != nil {
			t.Fatal(err)
		}
		return seen.Find(name).State
	}
	if state(removed) != cgroup.Absent {
		t.Fatal("the slice of the removed pod is there")
	}
	// Whether systemd brings it back depends on its version and on when it was stopped.
	if _, err := tree.Ensure(t.Context(), cgroup.Node{Name: removed}); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(1, syscall.SIGTERM); err != nil { // systemctl daemon-reexec
		t.Skipf("systemd cannot be told to start anew: %v", err)
	}
	d.eventually("the slice of the removed pod goes again", func() bool { return state(removed) == cgroup.Absent })
	if got := state(stays); got != cgroup.Valid {
		t.Errorf("the slice of the pod that is here is %s", got)
	}
	d.says("removing a cgroup without a pod")
	for line := range strings.Lines(d.log.String()) {
		if strings.Contains(line, "removing a cgroup without a pod") && !strings.Contains(line, "DEBUG") {
			t.Errorf("it is not quiet: %s", line)
		}
	}
	d.remove("b-1")
	d.check()
}
