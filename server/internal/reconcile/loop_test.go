package reconcile

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/berthd/berth/managers/admission"
	"github.com/berthd/berth/managers/cgroup"
	"github.com/berthd/berth/managers/cgroup/memtree"
	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/ledger/ledgertest"
	"github.com/berthd/berth/managers/numa"
	"github.com/berthd/berth/managers/workload"
)

func TestPassMakesTheTree(t *testing.T) {
	t.Parallel()
	b := newBench(t, memtree.V1(), func(c *Config) {
		c.Pods = cgroup.Values{CPUShares: ptr(uint64(3072)), MemoryBytes: ptr(int64(1 << 30)), PIDs: ptr(int64(500))}
	})
	b.admit("a", workload.Guaranteed, cpus(2000))
	b.admit("b", workload.Burstable, cpus(500))
	b.pass()
	for path, want := range map[string]uint64{
		"/kubepods": 3072, "/kubepods/burstable": 512, "/kubepods/besteffort": 2, "/kubepods/poda": 2048, "/kubepods/burstable/podb": 512,
	} {
		if got := b.shares(path); got != want {
			t.Errorf("%s has %d shares, want %d", path, got, want)
		}
	}
	v := b.seen("/kubepods").Values
	if *v.MemoryBytes != 1<<30 || *v.PIDs != 500 || v.HugePages[2<<20] != 1<<62 {
		t.Errorf("the cgroup of all pods has memory %d, pids %d, huge pages %v", *v.MemoryBytes, *v.PIDs, v.HugePages)
	}
	if b.ops[OpCreate] != 5 || len(b.last.Drifts) != 0 {
		t.Errorf("created %d cgroups, drifts %v", b.ops[OpCreate], b.last.Drifts)
	}
	b.pass()
	if len(b.last.Ops) != 0 {
		t.Errorf("a second pass still does %v", b.last.Ops)
	}
}

func TestDriftIsHealed(t *testing.T) {
	t.Parallel()
	b := newBench(t, memtree.V1(), nil)
	b.admit("a", workload.Burstable, cpus(500))
	b.pass()
	b.set("/kubepods/burstable/poda", cgroup.Values{CPUShares: ptr(uint64(7))})
	if err := b.tree.Remove(t.Context(), cgroup.ParseCgroupfs("/kubepods/besteffort")); err != nil {
		t.Fatal(err)
	}
	b.pass()
	if got := b.shares("/kubepods/burstable/poda"); got != 512 {
		t.Errorf("the pod has %d shares", got)
	}
	want := []Drift{
		{Name: cgroup.ParseCgroupfs("/kubepods/besteffort"), Want: "valid", Found: "absent", Since: b.clock()},
		{Name: cgroup.ParseCgroupfs("/kubepods/burstable/poda"), File: "cpu.shares", Want: "512", Found: "7", Since: b.clock()},
	}
	expectDrifts(t, b.last.Drifts, want)
	expectDrifts(t, b.Drifts(), want)
	b.pass()
	expectDrifts(t, b.last.Drifts, nil)

	// What berth itself wants otherwise is no drift.
	b.admit("b", workload.Burstable, cpus(1000))
	b.pass()
	expectDrifts(t, b.last.Drifts, nil)
	if got := b.shares("/kubepods/burstable"); got != 1536 {
		t.Errorf("the tier has %d shares", got)
	}
}

func expectDrifts(t *testing.T, got, want []Drift) {
	t.Helper()
	if len(got) != len(want) {
		t.Errorf("drifts %v, want %v", got, want)
		return
	}
	for i := range got {
		if got[i].key() != want[i].key() || got[i].Want != want[i].Want || !got[i].Since.Equal(want[i].Since) {
			t.Errorf("drift %v, want %v", got[i], want[i])
		}
	}
}

func TestDriftIsOnlyReported(t *testing.T) {
	t.Parallel()
	b := newBench(t, memtree.V1(), func(c *Config) { c.DriftPolicy = ReportDrift })
	b.admit("a", workload.Guaranteed, cpus(1000))
	b.admit("b", workload.Burstable, cpus(500))
	b.pass()
	b.set("/kubepods/poda", cgroup.Values{CPUShares: ptr(uint64(7))})
	b.set("/kubepods/burstable", cgroup.Values{CPUShares: ptr(uint64(9))})
	b.pass()
	if len(b.last.Drifts) != 2 || len(b.last.Ops) != 0 || b.shares("/kubepods/poda") != 7 {
		t.Errorf("drifts %v, ops %v, shares %d", b.last.Drifts, b.last.Ops, b.shares("/kubepods/poda"))
	}
	b.pass()
	if len(b.last.Drifts) != 0 || len(b.Drifts()) != 2 {
		t.Errorf("found again: %v; in all %v", b.last.Drifts, b.Drifts())
	}
	// A change of berth's own is written.
	b.admit("c", workload.Burstable, cpus(500))
	b.pass()
	if got := b.shares("/kubepods/burstable"); got != 1024 || b.shares("/kubepods/poda") != 7 {
		t.Errorf("the tier has %d shares, the pod %d", got, b.shares("/kubepods/poda"))
	}
}

func TestOneRefusalStopsNoOther(t *testing.T) {
	t.Parallel()
	b := newBench(t, memtree.V1(), func(c *Config) { c.Pods.CPUShares = ptr(uint64(4096)) })
	b.admit("a", workload.Guaranteed, cpus(1000))
	b.admit("b", workload.Guaranteed, cpus(2000))
	b.refuse["/kubepods/poda"] = errRefused
	err := b.Pass(t.Context())
	if !errors.Is(err, errRefused) || b.shares("/kubepods/podb") != 2048 {
		t.Errorf("%v; the other pod has %d shares", err, b.shares("/kubepods/podb"))
	}
	delete(b.refuse, "/kubepods/poda")
	b.pass()
	if len(b.last.Drifts) != 0 {
		t.Errorf("what was never in force is no drift: %v", b.last.Drifts)
	}
	b.refuse["/kubepods"] = errRefused
	b.set("/kubepods", cgroup.Values{CPUShares: ptr(uint64(7))})
	b.admit("c", workload.Guaranteed, cpus(1000))
	if err := b.Pass(t.Context()); !errors.Is(err, errRefused) || b.shares("/kubepods/podc") != 1024 {
		t.Errorf("below a cgroup that was not set: %v, %d shares", err, b.shares("/kubepods/podc"))
	}
}

func TestNothingBelowWhatCouldNotBeMade(t *testing.T) {
	t.Parallel()
	b := newBench(t, memtree.V1(), nil)
	b.admit("a", workload.Burstable, cpus(1000))
	b.refuse["/kubepods/burstable"] = errRefused
	err := b.Pass(t.Context())
	if !errors.Is(err, errRefused) || b.seen("/kubepods/burstable/poda").State != cgroup.Absent {
		t.Errorf("%v; the pod is %s", err, b.seen("/kubepods/burstable/poda").State)
	}
}

// A pod that cannot have its memory limit does not keep others from exclusive CPUs; one
// that does not give CPUs up does.
func TestWhichPodsHoldCPUsBack(t *testing.T) {
	t.Parallel()
	b := newBench(t, memtree.V2(), nil)
	exclusive := ledgertest.With(ledgertest.Pod("x", "c"), ledgertest.Exclusive("c", "2-3"))
	b.admit("a", workload.Burstable, cpus(500))
	owner := ledger.Owner{Pod: "a", Container: "c"}
	b.pass()
	path, err := b.EnsureContainer(t.Context(), b.ledger.View(), admission.Start{Binding: ledger.Binding{ID: "1", Owner: owner}})
	if err != nil {
		t.Fatal(err)
	}
	b.update(func(d *ledger.Draft) { d.Bind(ledger.Binding{ID: "1", Owner: owner, CgroupPath: path, Own: true}) })
	b.pass()
	b.update(func(d *ledger.Draft) { d.PutPod(exclusive) })
	start := func() error {
		_, err := b.EnsureContainer(t.Context(), b.ledger.View(), admission.Start{Binding: ledger.Binding{ID: "2",
			Owner: ledger.Owner{Pod: "x", Container: "c"}}})
		return err
	}
	b.refuse[path] = errRefused
	if err := start(); !errors.Is(err, errRefused) {
		t.Errorf("the other container still uses the CPUs: %v", err)
	}
	delete(b.refuse, path)
	b.admit("b", workload.Burstable, cpus(500))
	b.refuse["/kubepods/burstable/podb"] = errRefused
	if err := start(); err != nil {
		t.Errorf("a pod elsewhere lacks its limits: %v", err)
	}
	if got := b.seen(path).Values.CPUs; got != cpuset.Range(0, 1) {
		t.Errorf("the other container has CPUs %s", got)
	}
}

// Containers that start one after the other do not wait for a look at the whole tree, nor
// does one for whose own CPUs others have to leave.
func TestStartsShareAPass(t *testing.T) {
	t.Parallel()
	passes := 0
	b := newBench(t, memtree.V2(), func(c *Config) { c.Observe = func(Outcome) { passes++ } })
	b.admit("a", workload.Burstable, cpus(500))
	b.pass()
	start := func(uid, id string) {
		t.Helper()
		owner := ledger.Owner{Pod: uid, Container: "c"}
		path, err := b.EnsureContainer(t.Context(), b.ledger.View(), admission.Start{Binding: ledger.Binding{ID: id, Owner: owner}})
		if err != nil {
			t.Fatal(err)
		}
		b.update(func(d *ledger.Draft) { d.Bind(ledger.Binding{ID: id, Owner: owner, CgroupPath: path, Own: true}) })
	}
	for _, id := range []string{"1", "2", "3"} {
		start("a", id)
	}
	if passes != 1 {
		t.Errorf("%d passes for three starts", passes-1)
	}
	b.update(func(d *ledger.Draft) {
		d.PutPod(ledgertest.With(ledgertest.Pod("x", "c"), ledgertest.Exclusive("c", "2-3")))
	})
	start("x", "4")
	start("a", "5")
	if got := b.seen("/kubepods/burstable/poda/c").Values.CPUs; passes != 1 || got != cpuset.Range(0, 1) {
		t.Errorf("%d looks after CPUs were taken, the others run on %s", passes-1, got)
	}
}

// A caller's view may be older than what is in force: a container is not put back
// on CPUs that another container has got since, and a pod that has left does not come back.
func TestContainersFollowTheNewestView(t *testing.T) {
	t.Parallel()
	b := newBench(t, memtree.V2(), nil)
	b.admit("a", workload.Burstable, cpus(500))
	b.admit("gone", workload.Burstable, cpus(500))
	b.pass()
	old := b.ledger.View()
	owner := ledger.Owner{Pod: "a", Container: "c"}
	if err := b.RemovePod(t.Context(), old, "gone"); err != nil {
		t.Fatal(err)
	}
	b.update(func(d *ledger.Draft) {
		d.RemovePod("gone")
		d.PutPod(ledgertest.With(ledgertest.Pod("x", "c"), ledgertest.Exclusive("c", "2-3")))
	})
	path, err := b.EnsureContainer(t.Context(), old, admission.Start{Binding: ledger.Binding{ID: "1", Owner: owner}})
	if err != nil {
		t.Fatal(err)
	}
	if got := b.seen(path).Values.CPUs; got != cpuset.Range(0, 1) {
		t.Errorf("the container has CPUs %s", got)
	}
	if got := b.seen("/kubepods/burstable/podgone").State; got != cgroup.Absent {
		t.Errorf("the cgroup of the pod that has left is %s", got)
	}
}

func TestLimitsOfTiersFollowTheirUse(t *testing.T) {
	t.Parallel()
	b := newBench(t, memtree.V1(), func(c *Config) {
		c.QoS.ReservedMemory, c.QoS.Cgroup.AllocatableMemoryBytes = 100, 10<<20
	})
	b.pass()
	b.tree.UseMemory(cgroup.ParseCgroupfs("/kubepods/besteffort"), 9<<20)
	b.admit("a", workload.Burstable, workload.Quantities{workload.Memory: 4 << 20})
	b.pass()
	if got := *b.seen("/kubepods/besteffort").Values.MemoryBytes; got != 9<<20 {
		t.Errorf("the tier may use %d, want what it uses", got)
	}
	b.tree.UseMemory(cgroup.ParseCgroupfs("/kubepods/besteffort"), 0)
	b.pass()
	if got := *b.seen("/kubepods/besteffort").Values.MemoryBytes; got != 6<<20 {
		t.Errorf("the tier may use %d, want what is not reserved", got)
	}
}

// TestGatherFailsBesideAWrite: where the limits of tiers are tried a second time, both failures are reported.
func TestGatherFailsBesideAWrite(t *testing.T) {
	t.Parallel()
	b := newBench(t, memtree.V1(), func(c *Config) {
		c.QoS.ReservedMemory, c.QoS.Cgroup.AllocatableMemoryBytes = 100, 10<<20
	})
	b.pass()
	b.set("/one", cgroup.Values{Cpuset: cgroup.Cpuset{CPUs: cpuset.Of(1), Mems: numa.Of(0)}})
	b.hotplug.scatter.emptied()
	b.hotplug.scatter.noteAll(func(note func(cgroup.Name)) { note(cgroup.Name{"one"}) })
	blind := errors.New("no processes are shown")
	b.blind["/one/cgroup.procs"], b.refuse["/kubepods/poda"] = blind, errRefused
	b.admit("a", workload.Guaranteed, cpus(1000))
	if err := b.Pass(t.Context()); !errors.Is(err, blind) || !errors.Is(err, errRefused) {
		t.Errorf("a pass reports %v, expected both failures", err)
	}
}

func TestReservedCgroups(t *testing.T) {
	t.Parallel()
	system := cgroup.Node{Name: cgroup.Name{"sys"}, Values: cgroup.Values{CPUShares: ptr(uint64(512))}}
	b := newBench(t, memtree.V1(), func(c *Config) { c.Reserved = []cgroup.Node{system} })
	if err := b.Begin(t.Context()); errdefs.ClassOf(err) != errdefs.Precondition || !strings.Contains(err.Error(), "/sys") {
		t.Errorf("without the cgroup: %v", err)
	}
	if b.seen("/sys").State != cgroup.Absent {
		t.Error("it was made")
	}
	b.set("/sys", cgroup.Values{MemoryBytes: ptr(int64(1 << 20))})
	if err := b.Begin(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := b.seen("/sys").Values; *got.CPUShares != 512 || *got.MemoryBytes != 1<<20 {
		t.Errorf("it has %d shares and %d bytes", *got.CPUShares, *got.MemoryBytes)
	}
	b.pass()
	b.set("/sys", cgroup.Values{CPUShares: ptr(uint64(7))})
	b.pass()
	if len(b.last.Drifts) != 1 || b.shares("/sys") != 512 {
		t.Errorf("drifts %v, shares %d", b.last.Drifts, b.shares("/sys"))
	}
	if err := b.tree.Remove(t.Context(), system.Name); err != nil {
		t.Fatal(err)
	}
	b.admit("a", workload.Guaranteed, cpus(1000))
	if err := b.Pass(t.Context()); err == nil || b.seen("/sys").State != cgroup.Absent || b.shares("/kubepods/poda") != 1024 {
		t.Errorf("gone: %v; it is %s; the pod has %d shares", err, b.seen("/sys").State, b.shares("/kubepods/poda"))
	}
	b.refuse["/sys"] = errRefused
	b.set("/sys", cgroup.Values{})
	if err := b.Begin(t.Context()); !errors.Is(err, errRefused) {
		t.Errorf("refused: %v", err)
	}
}

func TestPlacedProcessesAreScored(t *testing.T) {
	t.Parallel()
	scores := map[int]int{}
	var refusal error
	b := newBench(t, memtree.V1(), func(c *Config) {
		c.QoS.Cgroup.MemoryBytes = 1 << 30
		c.SetScore = func(pid, score int) error { scores[pid] = score; return refusal }
	})
	b.admit("a", workload.Guaranteed, cpus(1000))
	place := func() error {
		_, err := b.EnsureContainer(t.Context(), b.ledger.View(), admission.Start{Binding: ledger.Binding{ID: "1",
			Owner: ledger.Owner{Pod: "a", Container: "c"}}, PID: b.tree.Spawn(memtree.Mortal)})
		return err
	}
	if err := place(); err != nil || len(scores) != 1 {
		t.Fatalf("%v, %v", scores, err)
	}
	for pid, score := range scores {
		if score != -997 {
			t.Errorf("process %d is scored %d", pid, score)
		}
	}
	refusal = errdefs.Unavailablef("not permitted")
	if err := place(); err != nil {
		t.Errorf("a score that may not be set is no reason not to start: %v", err)
	}
	refusal = errdefs.NotFoundf("gone")
	if err := place(); errdefs.ClassOf(err) != errdefs.NotFound {
		t.Errorf("a process that has gone: %v", err)
	}
}

// A process that is not the one any more that was handed over stays where it is.
func TestOnlyProcessesThatAreStillThere(t *testing.T) {
	t.Parallel()
	type key struct{}
	b := newBench(t, memtree.V1(), func(c *Config) {
		c.StillThere = func(ctx context.Context, pid int) error {
			if ctx.Value(key{}) != pid {
				return errdefs.NotFoundf("process %d has ended", pid)
			}
			return nil
		}
	})
	b.admit("a", workload.Guaranteed, cpus(1000))
	for handed, want := range map[string]int{"this one": 1, "another": 0} {
		pid := b.tree.Spawn(memtree.Mortal)
		ctx := context.WithValue(t.Context(), key{}, pid+1-want)
		path, err := b.EnsureContainer(ctx, b.ledger.View(), admission.Start{Binding: ledger.Binding{ID: handed,
			Owner: ledger.Owner{Pod: "a", Container: "c"}}, PID: pid})
		if (err == nil) != (want == 1) || err != nil && errdefs.ClassOf(err) != errdefs.NotFound {
			t.Errorf("%s: %q, %v", handed, path, err)
		}
		if procs, err := b.tree.Procs(t.Context(), name("/kubepods/poda/c")); err != nil || slices.Contains(procs, pid) != (want == 1) {
			t.Errorf("%s: %d among %v, %v", handed, pid, procs, err)
		}
	}
}

// A cgroup that another program made after the last pass looked is not taken for the
// admission's own: undoing that would kill what runs there.
func TestCreatedIsWhatTheTreeSays(t *testing.T) {
	t.Parallel()
	for _, facts := range []cgroup.Facts{memtree.V1(), memtree.V2()} {
		b := newBench(t, facts, nil)
		b.pass()
		d := ledger.NewDraft(b.ledger.View())
		for _, uid := range []string{"new", "theirs"} {
			d.PutPod(ledgertest.Pod(uid, "c"))
		}
		path := "/kubepods/podtheirs"
		b.set(path, cgroup.Values{})
		if err := b.tree.Move(t.Context(), name(path), b.tree.Spawn(memtree.Mortal)); err != nil {
			t.Fatal(err)
		}
		for uid, want := range map[string]bool{"new": true, "theirs": false} {
			if _, created, err := b.EnsurePod(t.Context(), d.View(), uid); err != nil || created != want {
				t.Errorf("cgroup v%d, pod %s: created %t, %v; want %t", facts.Version, uid, created, err, want)
			}
		}
	}
}

func TestTiersDoNotFailAPod(t *testing.T) {
	t.Parallel()
	b := newBench(t, memtree.V1(), nil)
	b.pass()
	b.refuse["/kubepods/burstable"] = errRefused
	p := ledgertest.Pod("a", "c")
	p.QoS, p.Pod.QoS = workload.Burstable, workload.Burstable
	p.Pod.Containers[0].Requests = cpus(500)
	d := ledger.NewDraft(b.ledger.View())
	d.PutPod(p)
	if _, created, err := b.EnsurePod(t.Context(), d.View(), "a"); err != nil || !created {
		t.Errorf("created %t, %v", created, err)
	}
	b.refuse["/kubepods/burstable/podb"] = errRefused
	p = ledgertest.Pod("b", "c")
	p.QoS, p.Pod.QoS = workload.Burstable, workload.Burstable
	d.PutPod(p)
	if _, created, err := b.EnsurePod(t.Context(), d.View(), "b"); !errors.Is(err, errRefused) || created {
		t.Errorf("created %t, %v", created, err)
	}
	// The pod was not committed: the tier goes back, and there is no drift.
	delete(b.refuse, "/kubepods/burstable")
	b.pass()
	if len(b.last.Drifts) != 0 || len(b.Orphans()) != 1 {
		t.Errorf("drifts %v, orphans %v", b.last.Drifts, b.Orphans())
	}
}

func TestCanceledPass(t *testing.T) {
	t.Parallel()
	b := newBench(t, memtree.V1(), nil)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := b.Pass(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}

// TestPassesOfManyPods: above 400 pods the time between passes grows with the number of pods.
func TestPassesOfManyPods(t *testing.T) {
	t.Parallel()
	for pods, want := range map[int]int{3: 6, 400: 6, 800: 3} {
		synctest.Test(t, func(t *testing.T) {
			b := newBench(t, memtree.V2(), func(*Config) {})
			b.Now, b.Every = time.Now, 10*time.Second
			for i := range pods {
				b.admit(fmt.Sprint("p", i), "Burstable", cpus(1))
			}
			passes := 0
			b.Config.Observe = func(Outcome) { passes++ }
			ctx, cancel := context.WithTimeout(t.Context(), 65*time.Second)
			defer cancel()
			if err := b.Run(ctx); !errors.Is(err, context.DeadlineExceeded) {
				t.Error(err)
			}
			if passes != want {
				t.Errorf("%d pods: %d passes in 65 s, want %d", pods, passes, want)
			}
		})
	}
}

// TestPeriod: the time between passes is bounded, and a longer one stays as it was configured.
func TestPeriod(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		every time.Duration
		pods  int
		want  time.Duration
	}{
		{10 * time.Second, 0, 10 * time.Second}, {10 * time.Second, 600, 15 * time.Second}, {10 * time.Second, 5000, 2 * time.Minute},
		{10 * time.Second, 1 << 40, 2 * time.Minute}, {5000 * time.Hour, 0, 5000 * time.Hour}, {1<<63 - 1, 5000, 1<<63 - 1},
	} {
		if got := period(test.every, test.pods); got.Round(time.Millisecond) != test.want.Round(time.Millisecond) {
			t.Errorf("%s with %d pods: %s, want %s", test.every, test.pods, got, test.want)
		}
	}
}
