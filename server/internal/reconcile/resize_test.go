package reconcile

import (
	"strings"
	"testing"

	"github.com/berthd/berth/managers/admission"
	"github.com/berthd/berth/managers/cgroup"
	"github.com/berthd/berth/managers/cgroup/memtree"
	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/ledger/ledgertest"
	"github.com/berthd/berth/managers/workload"
)

// record makes a Burstable pod of one container.
func record(milliCPU, milliLimit, bytes int64) *ledger.Pod {
	p := ledgertest.Pod("a", "c")
	p.QoS, p.Pod.QoS = workload.Burstable, workload.Burstable
	c := &p.Pod.Containers[0]
	c.Requests = workload.Quantities{workload.CPU: milliCPU, workload.Memory: bytes / 2}
	c.Limits = workload.Quantities{workload.CPU: milliLimit, workload.Memory: bytes}
	return p
}

// resized is a bench with a running pod, and a view in which it has another size.
func resized(t *testing.T, facts cgroup.Facts, from, to *ledger.Pod) (*bench, *ledger.View) {
	t.Helper()
	b := newBench(t, facts, nil)
	b.update(func(d *ledger.Draft) { d.PutPod(from) })
	b.pass()
	owner := ledger.Owner{Pod: "a", Container: "c"}
	path, err := b.EnsureContainer(t.Context(), b.ledger.View(), admission.Start{Binding: ledger.Binding{ID: "1", Owner: owner},
		PID: b.tree.Spawn(memtree.Mortal)})
	if err != nil {
		t.Fatal(err)
	}
	b.update(func(d *ledger.Draft) { d.Bind(ledger.Binding{ID: "1", Owner: owner, CgroupPath: path, Own: true}) })
	b.pass()
	d := ledger.NewDraft(b.ledger.View())
	d.PutPod(to)
	return b, d.View()
}

func TestResizePlaces(t *testing.T) {
	t.Parallel()
	small, large := record(500, 1000, 4<<20), record(1000, 3000, 16<<20)
	for name, facts := range map[string]cgroup.Facts{"v1": memtree.V1(), "v2": memtree.V2()} {
		for direction, pods := range map[string][2]*ledger.Pod{"up": {small, large}, "down": {large, small}} {
			t.Run(name+" "+direction, func(t *testing.T) {
				t.Parallel()
				from, to := *pods[0], *pods[1] // a commit writes into the record
				b, view := resized(t, facts, &from, &to)
				if err := b.CheckResize(t.Context(), view, "a"); err != nil {
					t.Fatal(err)
				}
				if err := b.Resize(t.Context(), view, "a"); err != nil {
					t.Fatal(err)
				}
				c := pods[1].Pod.Containers[0]
				for _, path := range []string{"/kubepods/burstable/poda", "/kubepods/burstable/poda/c"} {
					v := b.seen(path).Values
					if *v.MemoryBytes != c.Limits[workload.Memory] || *v.CPUQuotaUS != c.Limits[workload.CPU]*100 {
						t.Errorf("%s has %d bytes, %d us", path, *v.MemoryBytes, *v.CPUQuotaUS)
					}
				}
				b.update(func(d *ledger.Draft) { d.PutPod(&to) })
				b.pass()
				if len(b.last.Ops) != 0 || len(b.last.Drifts) != 0 {
					t.Errorf("after the commit a pass does %v, finds %v", b.last.Ops, b.last.Drifts)
				}
				if err := b.Resize(t.Context(), view, "a"); err != nil {
					t.Errorf("again: %v", err)
				}
			})
		}
	}
}

// TestUseGrowsBeforeTheWrite: a container that uses more between the look and the write
// delays its resize, and does not end it; a limit that cannot come back stays until a pass.
func TestUseGrowsBeforeTheWrite(t *testing.T) {
	t.Parallel()
	small, large := func() *ledger.Pod { return record(500, 1000, 4<<20) }, func() *ledger.Pod { return record(500, 1000, 16<<20) }
	for _, path := range []string{"/kubepods/burstable/poda", "/kubepods/burstable/poda/c"} {
		b, view := resized(t, memtree.V1(), large(), small())
		b.refuse[path] = errdefs.Preconditionf("write: %w", cgroup.ErrBelowUse)
		err := b.Resize(t.Context(), view, "a")
		if reason, ok := errdefs.ReasonOf(err); !ok || reason != errdefs.ResizeDeferred || errdefs.ClassOf(err) != errdefs.Refused {
			t.Errorf("%s: %v; want a refusal for now", path, err)
		}
		b.must(b.Resize(t.Context(), b.ledger.View(), "a")) // undone: nothing has changed

		b, view = resized(t, memtree.V1(), small(), large())
		b.must(b.Resize(t.Context(), view, "a"))
		b.refuse[path] = errdefs.Preconditionf("write: %w", cgroup.ErrBelowUse)
		if err := b.Resize(t.Context(), b.ledger.View(), "a"); err != nil {
			t.Errorf("%s, undone: %v", path, err)
		}
		delete(b.refuse, path)
		b.pass()
		if v := b.seen(path).Values; *v.MemoryBytes != 4<<20 {
			t.Errorf("%s: %d bytes after a pass", path, *v.MemoryBytes)
		}
	}
}

func TestResizeBelowUse(t *testing.T) {
	t.Parallel()
	for name, facts := range map[string]cgroup.Facts{"v1": memtree.V1(), "v2": memtree.V2()} {
		for _, used := range []string{"/kubepods/burstable/poda", "/kubepods/burstable/poda/c"} {
			t.Run(name+" "+used, func(t *testing.T) {
				t.Parallel()
				b, view := resized(t, facts, record(500, 1000, 16<<20), record(500, 1000, 4<<20))
				b.tree.UseMemory(cgroup.ParseCgroupfs(used), 4<<20)
				err := b.CheckResize(t.Context(), view, "a")
				reason, _ := errdefs.ReasonOf(err)
				if reason != errdefs.ResizeDeferred || !strings.Contains(err.Error(), "(4194304) below current usage (4194304)") {
					t.Errorf("got %v", err)
				}
				b.tree.UseMemory(cgroup.ParseCgroupfs(used), 4<<20-1)
				if err := b.CheckResize(t.Context(), view, "a"); err != nil {
					t.Errorf("below the limit: %v", err)
				}
			})
		}
	}
	b, view := resized(t, memtree.V2(), record(500, 1000, 4<<20), record(500, 1000, 8<<20))
	b.tree.UseMemory(cgroup.ParseCgroupfs("/kubepods/burstable/poda"), 9<<20)
	if err := b.CheckResize(t.Context(), view, "a"); err != nil {
		t.Errorf("a limit that grows helps whatever is in use: %v", err)
	}
}

func TestResizeOfSwappers(t *testing.T) {
	t.Parallel()
	b, view := resized(t, memtree.V2(), record(500, 1000, 4<<20), record(500, 1000, 8<<20))
	b.QoS.Cgroup.SwapBehavior = cgroup.LimitedSwap
	err := b.CheckResize(t.Context(), view, "a")
	if reason, _ := errdefs.ReasonOf(err); reason != errdefs.Infeasible {
		t.Errorf("a container that may swap: %v", err)
	}
	restarting := record(500, 1000, 8<<20)
	restarting.Pod.Containers[0].ResizePolicy = map[workload.Resource]string{workload.Memory: workload.RestartContainer}
	d := ledger.NewDraft(b.ledger.View())
	d.PutPod(restarting)
	if err := b.CheckResize(t.Context(), d.View(), "a"); err != nil {
		t.Errorf("one that is restarted: %v", err)
	}
	d.PutPod(record(900, 1000, 4<<20))
	if err := b.CheckResize(t.Context(), d.View(), "a"); err != nil {
		t.Errorf("another request of cpu only: %v", err)
	}
}

func TestResizeThatTheKernelRefuses(t *testing.T) {
	t.Parallel()
	b, view := resized(t, memtree.V2(), record(500, 1000, 4<<20), record(1000, 3000, 16<<20))
	b.refuse["/kubepods/burstable"] = errRefused
	if err := b.Resize(t.Context(), view, "a"); err != nil {
		t.Errorf("the tier's trouble is not the pod's: %v", err)
	}
	delete(b.refuse, "/kubepods/burstable")
	if err := b.Resize(t.Context(), b.ledger.View(), "a"); err != nil {
		t.Fatalf("back: %v", err)
	}
	b.refuse["/kubepods/burstable/poda/c"] = errRefused
	if err := b.Resize(t.Context(), view, "a"); err == nil {
		t.Error("the container's refusal is not told")
	}
	delete(b.refuse, "/kubepods/burstable/poda/c")
	if err := b.Resize(t.Context(), b.ledger.View(), "a"); err != nil {
		t.Fatalf("undo: %v", err)
	}
	b.pass()
	if len(b.last.Ops) != 0 {
		t.Errorf("undone, and yet a pass does %v", b.last.Ops)
	}
}

// expectMemory checks the limits of a pod and its container.
func (b *bench) expectMemory(when string, want int64) {
	b.t.Helper()
	for _, path := range []string{"/kubepods/burstable/poda", "/kubepods/burstable/poda/c"} {
		if got := *b.seen(path).Values.MemoryBytes; got != want {
			b.t.Errorf("%s: %s may use %d bytes, want %d", when, path, got, want)
		}
	}
}

// A larger size was in force when berthd was killed, and was not committed. The limit
// of the ledger comes back when less is in use and not before, for v2 would kill; the
// CPUs of the ledger come back at once.
func TestPassHoldsALimitBelowUse(t *testing.T) {
	t.Parallel()
	const small, large = 4 << 20, 16 << 20
	for _, facts := range []cgroup.Facts{memtree.V1(), memtree.V2()} {
		b, view := resized(t, facts, record(500, 1000, small), record(1000, 3000, large))
		if err := b.Resize(t.Context(), view, "a"); err != nil {
			t.Fatal(err)
		}
		warned := 0
		b.Log = counting(&warned)
		b.Loop = New(b.Config)
		use := func(bytes int64) {
			for _, path := range []string{"/kubepods/burstable/poda", "/kubepods/burstable/poda/c"} {
				b.tree.UseMemory(name(path), bytes)
			}
		}
		use(9 << 20)
		b.pass()
		b.pass()
		if err := b.Follow(t.Context()); err != nil {
			t.Error(err)
		}
		b.expectMemory("in use", large)
		if found := b.Findings(); len(found) != 2 || found[0].Rule != ruleMemoryLimit || found[0].Owner.Pod != "a" || warned != 2 {
			t.Errorf("findings %v, %d warnings", found, warned)
		}
		if got := *b.seen("/kubepods/burstable/poda/c").Values.CPUQuotaUS; got != 100_000 {
			t.Errorf("the quota is %d", got)
		}
		use(small - 1)
		b.pass()
		b.expectMemory("less in use", small)
		if found := b.Findings(); len(found) != 0 || len(b.last.Drifts) != 0 {
			t.Errorf("less in use: %v, drifts %v", found, b.last.Drifts)
		}
	}
}

// A resize that is undone leaves a limit above what came into use meanwhile; one that
// is carried out is refused.
func TestResizeIsUndoneAboveUse(t *testing.T) {
	t.Parallel()
	const small, large = 4 << 20, 16 << 20
	b, view := resized(t, memtree.V2(), record(500, 1000, small), record(1000, 3000, large))
	if err := b.Resize(t.Context(), view, "a"); err != nil {
		t.Fatal(err)
	}
	b.tree.UseMemory(name("/kubepods/burstable/poda/c"), 9<<20)
	b.tree.UseMemory(name("/kubepods/burstable/poda"), 9<<20)
	if err := b.Resize(t.Context(), b.ledger.View(), "a"); err != nil {
		t.Fatalf("undo: %v", err)
	}
	b.expectMemory("undone", large)
	d := ledger.NewDraft(b.ledger.View())
	d.PutPod(record(500, 1000, small+1<<20))
	err := b.Resize(t.Context(), d.View(), "a")
	if reason, _ := errdefs.ReasonOf(err); reason != errdefs.ResizeDeferred {
		t.Errorf("carried out below use: %v", err)
	}
	b.expectMemory("refused", large)
}

// A pod's cgroup may be there although no pass has seen it, with more in use than
// the pod may have: it is admitted, and its limit follows when less is used.
func TestEnsurePodHoldsALimitBelowUse(t *testing.T) {
	t.Parallel()
	for _, seen := range []bool{false, true} {
		b := newBench(t, memtree.V2(), nil)
		b.pass()
		path := "/kubepods/burstable/poda"
		b.set(path, cgroup.Values{})
		b.tree.UseMemory(name(path), 9<<20)
		if seen {
			b.pass()
		}
		d := ledger.NewDraft(b.ledger.View())
		d.PutPod(record(500, 1000, 4<<20))
		if _, created, err := b.EnsurePod(t.Context(), d.View(), "a"); err != nil || created {
			t.Fatalf("created %t, %v", created, err)
		}
		if v := b.seen(path).Values; *v.MemoryBytes != cgroup.Unlimited || *v.CPUQuotaUS != 100_000 {
			t.Errorf("the pod may use %d bytes, and %d us", *v.MemoryBytes, *v.CPUQuotaUS)
		}
	}
}

// TestResizeMovesNobody: a resize changes amounts. While it waits, a pod with exclusive CPUs may be
// admitted and start, and the resized container has left these CPUs.
func TestResizeMovesNobody(t *testing.T) {
	t.Parallel()
	for name, facts := range map[string]cgroup.Facts{"v1": memtree.V1(), "v2": memtree.V2()} {
		b, view := resized(t, facts, record(500, 1000, 4<<20), record(1000, 3000, 16<<20))
		old := b.ledger.View()
		b.update(func(d *ledger.Draft) { d.PutPod(exclusivePod("x", "2-3")) })
		b.pass()
		owner := ledger.Owner{Pod: "x", Container: "c"}
		path, err := b.EnsureContainer(t.Context(), b.ledger.View(), admission.Start{Binding: ledger.Binding{ID: "2", Owner: owner},
			PID: b.tree.Spawn(memtree.Mortal)})
		if err != nil {
			t.Fatal(err)
		}
		b.update(func(d *ledger.Draft) { d.Bind(ledger.Binding{ID: "2", Owner: owner, CgroupPath: path, Own: true}) })
		b.pass()
		const resizes = "/kubepods/burstable/poda/c"
		before := b.seen(resizes).Values.CPUs
		for what, v := range map[string]*ledger.View{"resized": view, "undone": old} {
			if err := b.Resize(t.Context(), v, "a"); err != nil {
				t.Fatal(err)
			}
			if after := b.seen(resizes).Values.CPUs; after != before || after.Overlaps(b.seen(path).Values.CPUs) {
				t.Errorf("%s, %s: the container is moved from %s to %s; another runs on %s", name, what, before, after,
					b.seen(path).Values.CPUs)
			}
		}
	}
}

// TestGivenBackCPUs: a container that could not be taken off the CPUs that a resize gave back still runs
// on them, and no other container has them as exclusive ones before it has left.
func TestGivenBackCPUs(t *testing.T) {
	t.Parallel()
	b := newBench(t, memtree.V2(), nil)
	start := func(id, uid, cpus string) string {
		owner := ledger.Owner{Pod: uid, Container: "c"}
		b.update(func(d *ledger.Draft) { d.PutPod(exclusivePod(uid, cpus)) })
		b.pass()
		path, err := b.EnsureContainer(t.Context(), b.ledger.View(), admission.Start{Binding: ledger.Binding{ID: id, Owner: owner},
			PID: b.tree.Spawn(memtree.Mortal)})
		if err != nil {
			t.Fatal(err)
		}
		b.update(func(d *ledger.Draft) { d.Bind(ledger.Binding{ID: id, Owner: owner, CgroupPath: path, Own: true}) })
		b.pass()
		return path
	}
	gives, gets := start("1", "x", "1-2"), start("2", "y", "3")
	b.refuse[gives] = errRefused
	b.update(func(d *ledger.Draft) {
		d.PutPod(exclusivePod("x", "1"))
		d.PutPod(exclusivePod("y", "2-3"))
	})
	for range 2 {
		if b.Follow(t.Context()) == nil && b.Pass(t.Context()) == nil {
			t.Error("the refused write is not reported")
		}
		if x, y := b.seen(gives).Values.CPUs, b.seen(gets).Values.CPUs; x != cpuset.Of(1, 2) || y != cpuset.Of(3) {
			t.Errorf("the containers are on %s and %s", x, y)
		}
	}
	delete(b.refuse, gives)
	for range 2 {
		_ = b.Pass(t.Context())
	}
	if x, y := b.seen(gives).Values.CPUs, b.seen(gets).Values.CPUs; x != cpuset.Of(1) || y != cpuset.Of(2, 3) {
		t.Errorf("after it has left, the containers are on %s and %s", x, y)
	}
}

// TestResizeAfterARemoval: a pod that is admitted again before a pass has seen that its cgroup was removed gets all of its amounts.
func TestResizeAfterARemoval(t *testing.T) {
	t.Parallel()
	const path = "/kubepods/burstable/poda"
	for what, resize := range map[string]func(b *bench, to *ledger.Pod) error{
		"a resize": func(b *bench, to *ledger.Pod) error {
			d := ledger.NewDraft(b.ledger.View())
			d.PutPod(to)
			return b.Resize(b.t.Context(), d.View(), "a")
		},
		"a commit": func(b *bench, to *ledger.Pod) error {
			b.update(func(d *ledger.Draft) { d.PutPod(to) })
			return b.Follow(b.t.Context())
		},
	} {
		b := newBench(t, memtree.V1(), nil)
		admit := func() {
			t.Helper()
			d := ledger.NewDraft(b.ledger.View())
			d.PutPod(record(500, 1000, 4<<20))
			if _, created, err := b.EnsurePod(t.Context(), d.View(), "a"); err != nil || !created {
				t.Fatalf("created %t, %v", created, err)
			}
			b.update(func(d *ledger.Draft) { d.PutPod(record(500, 1000, 4<<20)) })
		}
		admit()
		b.pass()
		b.must(b.RemovePod(t.Context(), b.ledger.View(), "a"))
		b.update(func(d *ledger.Draft) { d.RemovePod("a") })
		admit()
		b.must(resize(b, record(1000, 3000, 16<<20)))
		if got := b.shares(path); got != 1024 || *b.seen(path).Values.MemoryBytes != 16<<20 {
			t.Errorf("%s: %d shares and %d bytes", what, got, *b.seen(path).Values.MemoryBytes)
		}
	}
}
