package reconcile

import (
	"slices"
	"strings"
	"testing"

	"github.com/berthd/berth/managers/admission"
	"github.com/berthd/berth/managers/cgroup"
	"github.com/berthd/berth/managers/cgroup/memtree"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/workload"
)

// newNoPods makes a bench without cgroups of pods, below the root given; "/" is that of
// the tree.
func newNoPods(t *testing.T, root string, change func(*Config)) *bench {
	t.Helper()
	return newBench(t, memtree.V2(), func(c *Config) {
		c.NoPodCgroups = true
		layout, err := cgroup.NewLayout(root, c.Layout.Driver())
		if err != nil {
			t.Fatal(err)
		}
		if c.Layout = layout; root != "/" {
			c.Reserved = []cgroup.Node{{Name: layout.Root(), Values: cgroup.Values{CPUShares: ptr(uint64(4096))}}}
		}
		if change != nil {
			change(c)
		}
	})
}

// names lists all cgroups of the bench but for the root.
func (b *bench) names() (out []string) {
	b.t.Helper()
	seen, err := b.tree.Observe(b.t.Context(), nil, -1)
	b.must(err)
	for _, o := range seen.Nodes {
		if len(o.Name) > 0 && o.State != cgroup.Absent {
			out = append(out, o.Name.String())
		}
	}
	return out
}

// TestNoPodCgroups: a pod's life leaves no cgroup behind, and takes none of those that
// look like a pod's.
func TestNoPodCgroups(t *testing.T) {
	t.Parallel()
	b := newNoPods(t, "/", nil)
	b.set("/kubepods/podlost", cgroup.Values{})
	before := b.names()
	b.admit("a", workload.Guaranteed, cpus(500))
	view := b.ledger.View()
	parent, created, err := b.EnsurePod(t.Context(), view, "a")
	if parent != "" || created || err != nil {
		t.Errorf("the pod gets the cgroup %q (new: %t), %v", parent, created, err)
	}
	b.must(b.Begin(t.Context()))
	b.pass()
	b.must(b.Follow(t.Context()))
	if orphans := b.Orphans(); len(orphans) > 0 {
		t.Errorf("orphans: %v", orphans)
	}
	if unknown, err := b.UnknownPods(t.Context(), view); len(unknown) > 0 || err != nil {
		t.Errorf("unknown pods: %v, %v", unknown, err)
	}
	p, _ := view.Pod("a")
	if path, err := b.ContainerPath(p, "c"); path != "" || err != nil {
		t.Errorf("the container's cgroup: %q, %v", path, err)
	}
	start := admission.Start{Binding: ledger.Binding{ID: "a1", Owner: ledger.Owner{Pod: "a", Container: "c"}}}
	if path, err := b.EnsureContainer(t.Context(), view, start); path != "" || err != nil {
		t.Errorf("a start: %q, %v", path, err)
	}
	start.PID = 7
	if _, err := b.EnsureContainer(t.Context(), view, start); errdefs.ClassOf(err) != errdefs.Precondition ||
		!strings.Contains(err.Error(), "cgroupsPerQOS") {
		t.Errorf("a start with a process: %v", err)
	}
	b.must(b.CheckResize(t.Context(), view, "a"))
	b.must(b.Resize(t.Context(), view, "a"))
	b.must(b.RemovePod(t.Context(), view, "a"))
	b.must(b.RemoveUnknown(t.Context(), b.ledger.View(), "lost"))
	if report, err := newNoPods(t, "/", nil).Report(t.Context()); err != nil || len(report.Entries) > 0 {
		t.Errorf("a report on no cgroups: %+v, %v", report.Entries, err)
	}
	if after := b.names(); !slices.Equal(after, before) {
		t.Errorf("cgroups %q, want %q", after, before)
	}
}

// TestNoTiers: without cgroups of pods there are no tiers.
func TestNoTiers(t *testing.T) {
	t.Parallel()
	b := newNoPods(t, "/berth", nil)
	b.admit("a", workload.Guaranteed, cpus(500))
	if ops, err := b.UpdateTiers(t.Context()); len(ops) > 0 || err != nil || b.HasTiers() {
		t.Errorf("tiers: %v, %v", ops, err)
	}
}

// TestNoPodCgroupsLimitsTheRoot: the configured root gets what the machine has, once
// the cgroup exists.
func TestNoPodCgroupsLimitsTheRoot(t *testing.T) {
	t.Parallel()
	b := newNoPods(t, "/berth", nil)
	b.must(b.Begin(t.Context()))
	if err := b.Pass(t.Context()); err == nil || !strings.Contains(err.Error(), "limit cgroups.root, /berth: it does not exist") {
		t.Errorf("without the root: %v", err)
	}
	if names := b.names(); len(names) > 0 {
		t.Errorf("cgroups were made: %q", names)
	}
	b.set("/berth", cgroup.Values{})
	b.pass()
	if weight := b.seen("/berth").Values.CPUWeight; weight == nil || *weight != cgroup.SharesToWeight(4096) {
		t.Errorf("the root weighs %v", weight)
	}
}

// TestNoPodCgroupsBesideARuntime: the runtime's containers are where the ledger has them, and
// they end with their pod.
func TestNoPodCgroupsBesideARuntime(t *testing.T) {
	t.Parallel()
	d := &fakeRuntime{boxes: map[string]*fakeContainer{}}
	b := newNoPods(t, "/", func(c *Config) { c.Runtime = d })
	d.tree = b.tree
	b.Bindings = admission.New(admission.Config{}, admission.Parts{Ledger: b.ledger})
	t.Cleanup(func() { b.calls.running.Wait() })
	b.admit("a", workload.Guaranteed, cpus(500))
	for id, pod := range map[string]string{"a1": "a", "own1": "own"} {
		if pod == "own" {
			b.own()
		}
		d.create(id, pod, "0-3")
		d.boxes[id].Cgroup = cgroup.Name{id}
		b.must(b.prestart(id, pod))
		d.start(t, id)
		b.pass()
	}
	for path, want := range map[string]string{"/a1": "0-1", "/own1": "2-3"} {
		if got := b.seen(path).Values.CPUs.String(); got != want {
			t.Errorf("container %s has CPUs %s, want %s", path, got, want)
		}
	}
	b.must(b.RemovePod(t.Context(), b.ledger.View(), "own"))
	if names := b.names(); !slices.Equal(names, []string{"/a1"}) {
		t.Errorf("cgroups %q, want only that of the pod that stays", names)
	}
}

// TestNoPodCgroupsAfterThereWere: what an earlier configuration has made stays in force,
// and ends with its pod.
func TestNoPodCgroupsAfterThereWere(t *testing.T) {
	t.Parallel()
	b := newNoPods(t, "/", nil)
	b.update(func(d *ledger.Draft) { d.PutPod(exclusivePod("old", "2-3")) })
	b.update(func(d *ledger.Draft) {
		d.Bind(ledger.Binding{ID: "o1", Owner: ledger.Owner{Pod: "old", Container: "c"}, CgroupPath: "/kubepods/podold/c", Own: true,
			Sequence: 1})
	})
	b.pass()
	if names := b.names(); len(names) > 0 {
		t.Errorf("cgroups were made: %q", names)
	}
	b.set("/kubepods/podold/c", cgroup.Values{})
	b.pass()
	if got := b.seen("/kubepods/podold/c").Values.CPUs.String(); got != "2-3" {
		t.Errorf("the container has CPUs %s", got)
	}
	b.must(b.RemovePod(t.Context(), b.ledger.View(), "old"))
	if names := b.names(); !slices.Equal(names, []string{"/kubepods"}) {
		t.Errorf("cgroups %q are left", names)
	}
}
