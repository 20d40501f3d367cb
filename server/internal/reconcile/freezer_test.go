package reconcile

import (
	"errors"
	"strings"
	"testing"

	"github.com/berthd/berth/managers/admission"
	"github.com/berthd/berth/managers/cgroup"
	"github.com/berthd/berth/managers/cgroup/memtree"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/workload"
)

// startIn starts the one container of a pod, with a process.
func (b *bench) startIn(uid, id string) (path string, err error) {
	b.t.Helper()
	owner := ledger.Owner{Pod: uid, Container: "c"}
	path, err = b.EnsureContainer(b.t.Context(), b.ledger.View(),
		admission.Start{Binding: ledger.Binding{ID: id, Owner: owner}, PID: b.tree.Spawn(memtree.Mortal)})
	if err == nil {
		b.update(func(d *ledger.Draft) { d.Bind(ledger.Binding{ID: id, Owner: owner, CgroupPath: path, Own: true}) })
	}
	return path, err
}

// alive checks that processes of a cgroup run and may fork.
func (b *bench) alive(path string) {
	b.t.Helper()
	by, err := b.tree.Frozen(b.t.Context(), name(path))
	if by != nil || err != nil {
		b.t.Errorf("%s is frozen by %v, %v", path, by, err)
	}
	if pids := *b.seen(path).Values.PIDs; pids == 0 {
		b.t.Errorf("no process may be started in %s", path)
	}
}

// A removal that was killed half way leaves cgroups frozen and unable to fork. Those
// of pods and containers in the ledger live on, after a start too; a limit of theirs
// comes back.
func TestWhatWasCutOffLivesOn(t *testing.T) {
	t.Parallel()
	for _, facts := range []cgroup.Facts{memtree.V1(), memtree.V2()} {
		b := newBench(t, facts, func(c *Config) { c.QoS.Cgroup.PodPIDsLimit = 50 })
		b.admit("a", workload.Burstable, cpus(500))
		b.pass()
		path, err := b.startIn("a", "1")
		if err != nil {
			t.Fatal(err)
		}
		pod := "/kubepods/burstable/poda"
		cutOff := func() { b.tree.CutOff(name(path)); b.tree.CutOff(name(pod)) }
		check := func() {
			t.Helper()
			b.alive(path)
			b.alive(pod)
			if got := *b.seen(pod).Values.PIDs; got != 50 {
				t.Errorf("the pod may have %d processes", got)
			}
		}
		cutOff()
		b.pass()
		check()
		cutOff()
		b.Loop = New(b.Config) // a start: nothing is known of what was in force
		b.pass()
		check()
		if len(b.last.Drifts) != 0 {
			t.Errorf("after a start: %v", b.last.Drifts)
		}
		cutOff()
		if _, err := b.startIn("a", "2"); err != nil {
			t.Fatal(err)
		}
		b.alive(path)
		if by, err := b.tree.Frozen(t.Context(), name(pod)); by != nil || err != nil {
			t.Errorf("a container was started in a frozen pod: %v, %v", by, err)
		}
	}
}

// Who freezes a container that berth made has changed what berth wrote.
func TestFrozenContainerIsDrift(t *testing.T) {
	t.Parallel()
	for _, on := range []DriftPolicy{RepairDrift, ReportDrift} {
		b := newBench(t, memtree.V1(), func(c *Config) { c.DriftPolicy = on })
		b.admit("a", workload.Burstable, cpus(500))
		b.pass()
		path, err := b.startIn("a", "1")
		if err != nil {
			t.Fatal(err)
		}
		b.pass()
		b.set(path, cgroup.Values{Frozen: ptr(true)})
		b.pass()
		expectDrifts(t, b.last.Drifts, []Drift{{Name: name(path), File: "freezer.state", Want: "THAWED", Found: "FROZEN",
			Since: b.clock()}})
		if by, _ := b.tree.Frozen(t.Context(), name(path)); (by == nil) != (on == RepairDrift) {
			t.Errorf("on drift %s: frozen by %v", on, by)
		}
	}
}

// A removal under way freezes what it removes: that is no drift, and a pass
// beside it does not undo it.
func TestPassBesideARemoval(t *testing.T) {
	t.Parallel()
	b := newBench(t, memtree.V1(), nil)
	b.admit("a", workload.Burstable, cpus(500))
	b.pass()
	path, err := b.startIn("a", "1")
	if err != nil {
		t.Fatal(err)
	}
	b.pass()
	b.removing = func() error {
		b.tree.CutOff(name(path))
		b.pass()
		return b.tree.Remove(t.Context(), name(path))
	}
	bound, _ := b.ledger.View().Binding("1")
	if err := b.RemoveContainer(t.Context(), bound); err != nil {
		t.Fatal(err)
	}
	if len(b.last.Drifts) != 0 || len(b.last.Ops) != 0 {
		t.Errorf("a pass beside the removal: drifts %v, ops %v", b.last.Drifts, b.last.Ops)
	}
	b.pass()
	if b.seen(path).State == cgroup.Absent {
		t.Error("the container is bound, and has no cgroup after the next pass")
	}
}

// Berth does not thaw a cgroup above the pods: it is a finding, and no
// container is started there.
func TestFrozenAbovePods(t *testing.T) {
	t.Parallel()
	for _, path := range []string{"/kubepods", "/kubepods/burstable"} {
		warned := 0
		b := newBench(t, memtree.V2(), func(c *Config) { c.Log = counting(&warned) })
		b.admit("a", workload.Burstable, cpus(500))
		b.admit("b", workload.Guaranteed, cpus(1000))
		b.pass()
		b.set(path, cgroup.Values{Frozen: ptr(true)})
		b.pass()
		b.pass()
		found := b.Findings()
		if len(found) != 1 || found[0].Rule != ruleFrozen || !strings.Contains(found[0].Text, path+" is frozen") || warned != 1 {
			t.Errorf("findings %v, %d warnings", found, warned)
		}
		_, err := b.startIn("a", "1")
		if errdefs.ClassOf(err) != errdefs.Precondition || !strings.Contains(err.Error(), path+" is frozen") {
			t.Errorf("a container starts below %s: %v", path, err)
		}
		if _, err := b.startIn("b", "2"); (err == nil) != (path != "/kubepods") {
			t.Errorf("a container of another tier, with %s frozen: %v", path, err)
		}
		b.set(path, cgroup.Values{Frozen: ptr(false)})
		b.pass()
		if found := b.Findings(); len(found) != 0 {
			t.Errorf("thawed: %v", found)
		}
		if _, err := b.startIn("a", "1"); err != nil {
			t.Errorf("thawed: %v", err)
		}
	}
}

// A pass beside a removal leaves to it what it changes, but not the CPUs: the processes
// may outlive it, and a container that gets CPUs of theirs starts after the pass.
func TestPassClearsCPUsBesideARemoval(t *testing.T) {
	t.Parallel()
	b := newBench(t, memtree.V1(), nil)
	b.admit("a", workload.Burstable, cpus(500))
	b.pass()
	path, err := b.startIn("a", "1")
	if err != nil {
		t.Fatal(err)
	}
	b.pass()
	b.removing = func() error {
		b.tree.CutOff(name(path))
		b.own()
		b.pass()
		return errors.New("processes are still there")
	}
	bound, _ := b.ledger.View().Binding("1")
	if err := b.RemoveContainer(t.Context(), bound); err == nil {
		t.Fatal("removed")
	}
	if got, want := b.seen(path).Values.CPUs, b.ledger.View().SharedCPUs(); got != want {
		t.Errorf("the container may run on %s, shared are %s", got, want)
	}
	if by, _ := b.tree.Frozen(t.Context(), name(path)); by == nil {
		t.Error("the pass has thawed what is being removed")
	}
}
