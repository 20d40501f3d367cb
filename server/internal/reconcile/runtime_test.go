package reconcile

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/berthd/berth/managers/admission"
	"github.com/berthd/berth/managers/cgroup"
	"github.com/berthd/berth/managers/cgroup/memtree"
	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/ledger/ledgertest"
	"github.com/berthd/berth/managers/placement"
	"github.com/berthd/berth/managers/workload"
	"github.com/berthd/berth/server/internal/runtime"
)

// fakeRuntime is a runtime that keeps its containers' cgroups in the bench's tree.
type fakeRuntime struct {
	tree *memtree.Tree

	mu      sync.Mutex // guards what is below
	boxes   map[string]*fakeContainer
	fail    error
	late    error            // of an update that is carried out
	hang    map[string]bool  // containers of which updates are not answered until release
	stopped map[string]error // what updates of a container are answered with
	hidden  map[string]bool  // containers that it has no record of any more
	closed  map[string]bool  // pods whose sandbox is not ready
	freed   chan struct{}    // closed by release
	slow    time.Duration    // how long a list takes
	listed  func()           // called after each list
	updated func(id string, v cgroup.Values)
	asked   [][]string // the ids of each list
}

type fakeContainer struct {
	runtime.Container
	values cgroup.Values
	sent   int
}

// Sandboxes has one for each pod, which is ready unless it is closed.
func (d *fakeRuntime) Sandboxes(_ context.Context, pods ...string) (out []runtime.Sandbox, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, pod := range []string{"a", "b", "own", "one"} {
		if len(pods) == 0 || slices.Contains(pods, pod) {
			out = append(out, runtime.Sandbox{ID: pod + "-sandbox", Pod: pod, Ready: !d.closed[pod]})
		}
	}
	return out, d.fail
}

func (d *fakeRuntime) List(ctx context.Context, ids ...string) (out []runtime.Container, err error) {
	d.mu.Lock()
	d.asked = append(d.asked, ids)
	if slow := d.slow; slow > 0 {
		d.mu.Unlock()
		select {
		case <-time.After(slow):
		case <-ctx.Done():
			return nil, errdefs.Deadlinef("list the containers: %w", ctx.Err())
		}
		d.mu.Lock()
	}
	defer d.mu.Unlock()
	for _, b := range d.boxes {
		if !d.hidden[b.ID] && (len(ids) == 0 || slices.Contains(ids, b.ID)) {
			out = append(out, b.Container)
		}
	}
	if d.listed != nil {
		d.listed()
	}
	return out, d.fail
}

func (d *fakeRuntime) Update(ctx context.Context, id string, v cgroup.Values) error {
	d.mu.Lock()
	if d.hang[id] {
		if d.freed == nil {
			d.freed = make(chan struct{})
		}
		freed := d.freed
		d.mu.Unlock()
		select {
		case <-freed:
			d.mu.Lock()
		case <-ctx.Done():
			return errdefs.Deadlinef("update container %s: %w", id, ctx.Err())
		}
	}
	defer d.mu.Unlock()
	if err := d.stopped[id]; err != nil {
		return err
	}
	b := d.boxes[id]
	switch {
	case d.fail != nil:
		return d.fail
	case b == nil || b.Phase == runtime.Exited || d.hidden[id]:
		return nil
	}
	if d.updated != nil {
		d.updated(id, v)
	}
	b.sent++
	b.values = b.values.Merge(v)
	b.values.Cpuset = merged(b.values.Cpuset, v.Cpuset)
	if b.Cgroup == nil {
		return d.late
	}
	seen, err := d.tree.Observe(ctx, b.Cgroup, 0)
	if b.Phase == runtime.Running && err == nil && seen.Find(b.Cgroup).State != cgroup.Absent {
		_, err = d.tree.Ensure(ctx, cgroup.Node{Name: b.Cgroup, Values: b.values})
	}
	return errors.Join(err, d.late)
}

// release has the updates of a container answered, those under way included.
func (d *fakeRuntime) release(id string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.hang, id)
	close(d.freed)
	d.freed = nil
}

func merged(have, more cgroup.Cpuset) cgroup.Cpuset {
	if !more.CPUs.IsEmpty() {
		have.CPUs = more.CPUs
	}
	if !more.Mems.IsEmpty() {
		have.Mems = more.Mems
	}
	return have
}

// create makes a container that may run on the CPUs of a list.
func (d *fakeRuntime) create(id, pod, list string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.boxes[id] = &fakeContainer{Container: runtime.Container{
		ID: id, Owner: ledger.Owner{Pod: pod, Container: "c"}, Phase: runtime.Created,
		Cgroup: cgroup.ParseCgroupfs("/kubepods/pod" + pod + "/" + id),
	}}
	d.boxes[id].values.CPUs, _ = cpuset.Parse(list)
}

// start has a container run with what it was created with, or sent since.
func (d *fakeRuntime) start(t *testing.T, id string) {
	t.Helper()
	if err := d.launch(t.Context(), id); err != nil {
		t.Fatal(err)
	}
}

func (d *fakeRuntime) launch(ctx context.Context, id string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.run(ctx, id, d.boxes[id].values)
}

// run is for callers that hold mu.
func (d *fakeRuntime) run(ctx context.Context, id string, v cgroup.Values) error {
	b := d.boxes[id]
	b.Phase, b.values = runtime.Running, v
	_, err := d.tree.Ensure(ctx, cgroup.Node{Name: b.Cgroup, Values: v})
	if err == nil {
		err = d.tree.Move(ctx, b.Cgroup, d.tree.Spawn(memtree.Mortal))
	}
	return err
}

func (d *fakeRuntime) set(change func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	change()
}

// newFakeRuntime makes a bench beside a runtime. Pods a, b are shared, and "own" has CPUs 2
// and 3 for itself.
func newFakeRuntime(t *testing.T, facts cgroup.Facts) (*bench, *fakeRuntime) {
	t.Helper()
	d := &fakeRuntime{boxes: map[string]*fakeContainer{}}
	b := newBench(t, facts, func(c *Config) { c.Runtime = d })
	d.tree = b.tree
	b.Bindings = admission.New(admission.Config{}, admission.Parts{Ledger: b.ledger})
	t.Cleanup(func() { b.calls.running.Wait() })
	b.admit("a", workload.Guaranteed, cpus(500))
	b.pass()
	return b, d
}

// asked is a fake runtime with container a1 of the shared pool, whose start was requested while
// all CPUs were shared.
func asked(t *testing.T) (*bench, *fakeRuntime) {
	t.Helper()
	b, d := newFakeRuntime(t, memtree.V1())
	d.create("a1", "a", "0-3")
	b.must(b.prestart("a1", "a"))
	return b, d
}

// own admits the pod with CPUs of its own.
func (b *bench) own() {
	b.t.Helper()
	p := ledgertest.With(ledgertest.Pod("own", "c"), ledgertest.Exclusive("c", "2-3"))
	b.update(func(d *ledger.Draft) { d.PutPod(p) })
}

// box is the binding of a container of a runtime.
func box(id, pod string) ledger.Binding {
	return ledger.Binding{ID: id, Owner: ledger.Owner{Pod: pod, Container: "c"}, Sequence: 1}
}

func (b *bench) bind(id, pod string) {
	b.t.Helper()
	b.update(func(d *ledger.Draft) { d.Bind(box(id, pod)) })
}

// prestart does what the engine does.
func (b *bench) prestart(id, pod string) error {
	view := b.ledger.View()
	_, bound := view.Binding(id)
	path, err := b.EnsureContainer(b.t.Context(), view, admission.Start{Binding: box(id, pod), Again: bound})
	if err == nil && path != "" {
		b.t.Errorf("berth made %s beside a runtime", path)
	}
	if err == nil {
		_, err = b.ledger.Update(b.t.Context(), func(d *ledger.Draft) error { d.Bind(box(id, pod)); return nil })
	}
	return err
}

// mustWait wants a start to wait for container a1, which may run on some CPUs in a moment.
func (b *bench) mustWait(s admission.Start, list string) {
	b.t.Helper()
	if err := b.tryToStart(b.ledger.View(), s); !errors.Is(err, errBlocked) || !waits(err) {
		b.t.Errorf("container a1 may run on CPUs %s in a moment, and %s may start: %v", list, s.Binding.ID, err)
	}
}

// tryToStart is EnsureContainer without waiting for others.
func (b *bench) tryToStart(view *ledger.View, s admission.Start) error {
	b.beginStart(ofID(s.Binding.ID))
	defer b.endStart(ofID(s.Binding.ID), s.Binding.ID)
	return b.ensureContainer(b.t.Context(), view, s)
}

// on expects the CPUs of a container's cgroup.
func (b *bench) on(pod, id, want string) {
	b.t.Helper()
	if got := b.seen("/kubepods/pod" + pod + "/" + id).Values.CPUs.String(); got != want {
		b.t.Errorf("container %s has CPUs %s, want %s", id, got, want)
	}
}

func (b *bench) must(err error) {
	b.t.Helper()
	if err != nil {
		b.t.Fatal(err)
	}
}

func TestRuntimeContainersAreWhereTheLedgerSays(t *testing.T) {
	t.Parallel()
	for name, facts := range map[string]cgroup.Facts{"v1": memtree.V1(), "v2": memtree.V2()} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b, d := newFakeRuntime(t, facts)
			d.create("a1", "a", "0-3")
			b.must(b.prestart("a1", "a"))
			d.start(t, "a1")
			b.must(b.Follow(t.Context()))
			b.own()
			// The answer of Allocate is old by the time of the start.
			b.pass()
			d.create("own1", "own", "0-3")
			b.must(b.prestart("own1", "own"))
			b.on("a", "a1", "0-1")
			d.start(t, "own1")
			b.on("own", "own1", "2-3")
			b.update(func(d *ledger.Draft) { d.Unbind("own1"); d.RemovePod("own") })
			b.must(b.Follow(t.Context()))
			b.on("a", "a1", "0-3")

			// Another program writes there, and the kernel's value counts.
			b.set("/kubepods/poda/a1", cgroup.Values{Cpuset: cgroup.Cpuset{CPUs: cpuset.Of(3)}})
			b.pass()
			b.on("a", "a1", "0-3")
			if len(b.last.Drifts) != 1 || b.last.Drifts[0].Found != "3" {
				t.Errorf("drifts %v", b.last.Drifts)
			}
			sent := d.boxes["a1"].sent
			b.pass()
			if d.boxes["a1"].sent != sent {
				t.Error("a container that is where it should be is written again")
			}
		})
	}
}

// A shared container is on its way with the CPUs of before when an exclusive one is
// to start: that one waits until the first shows where it runs, and has left.
func TestStartsUnderWayAreWaitedFor(t *testing.T) {
	t.Parallel()
	b, d := asked(t)
	old := d.boxes["a1"].values
	d.updated = func(id string, _ cgroup.Values) {
		if id == "a1" {
			d.updated = nil
			// The runtime has read the values before it was sent others.
			if err := d.run(context.WithoutCancel(t.Context()), id, old); err != nil {
				t.Error(err)
			}
		}
	}
	b.own()
	d.create("own1", "own", "2-3")
	b.must(b.prestart("own1", "own"))
	b.on("a", "a1", "0-1")

	// One that never starts is waited for only so long.
	b.update(func(d *ledger.Draft) { d.Unbind("own1"); d.RemovePod("own") })
	b.pass()
	b.admit("b", workload.Guaranteed, cpus(500))
	b.pass()
	d.create("b1", "b", "0-3")
	b.must(b.prestart("b1", "b"))
	b.own()
	d.create("own2", "own", "2-3")
	b.mustWait(admission.Start{Binding: box("own2", "own")}, "2-3")
	b.wait(placement.StartTime)
	b.must(b.prestart("own2", "own"))
	if got := d.boxes["b1"].values.CPUs.String(); got != "0-1" || !b.latestStart().Equal(b.clock()) {
		t.Errorf("it would start on %s; the latest start: %v", got, b.latestStart())
	}
}

// A process that shows up before its container does counts too.
func TestHalfStartedRuntimeContainers(t *testing.T) {
	t.Parallel()
	b, d := asked(t)
	d.start(t, "a1")
	d.set(func() { d.boxes["a1"].Phase = runtime.Created })
	b.wait(placement.StartTime)
	b.own()
	b.mustWait(admission.Start{Binding: box("own1", "own")}, "0-3")
	d.set(func() { d.boxes["a1"].Phase = runtime.Running })
	b.must(b.tryToStart(b.ledger.View(), admission.Start{Binding: box("own1", "own")}))
	b.on("a", "a1", "0-1")
}

func TestRuntimeIsAway(t *testing.T) {
	t.Parallel()
	b, d := asked(t)
	d.start(t, "a1")
	b.pass()
	away := errdefs.Unavailablef("nobody there")
	d.set(func() { d.fail = away })
	b.own()
	d.create("own1", "own", "2-3")
	err := b.prestart("own1", "own")
	if !errors.Is(err, away) || !strings.Contains(err.Error(), "clear the CPUs for own/c") {
		t.Errorf("an exclusive container: %v", err)
	}
	b.admit("b", workload.Burstable, cpus(500))
	if err := b.Pass(t.Context()); !errors.Is(err, away) || b.shares("/kubepods/burstable/podb") != 512 {
		t.Errorf("a pass without the runtime: %v, %d shares", err, b.shares("/kubepods/burstable/podb"))
	}
	b.on("a", "a1", "0-3")
	d.set(func() { d.fail = nil })
	b.must(b.prestart("own1", "own"))
	b.on("a", "a1", "0-1")
}

// What a runtime does not show is sent again and again; what has just gone is not
// made again.
func TestRuntimeContainersOutOfSight(t *testing.T) {
	t.Parallel()
	b, d := newFakeRuntime(t, memtree.V1())
	d.create("a1", "a", "0-3")
	d.set(func() { d.boxes["a1"].Cgroup, d.boxes["a1"].Phase = nil, runtime.Running })
	b.must(b.prestart("a1", "a"))
	b.own()
	b.pass()
	if got := d.boxes["a1"].values.CPUs.String(); got != "0-1" {
		t.Errorf("a container of unknown place was sent CPUs %s", got)
	}
	d.set(func() {
		d.boxes["a1"].Cgroup = cgroup.ParseCgroupfs("/kubepods/poda/a1")
		d.boxes["other"] = &fakeContainer{Container: runtime.Container{ID: "other", Phase: runtime.Running,
			Cgroup: cgroup.ParseCgroupfs("/kubepods/poda/other")}}
	})
	b.pass()
	if d.boxes["a1"].sent < 3 || d.boxes["other"].sent > 0 {
		t.Errorf("sent %d times to a container that is not where the runtime says, %d to another container", d.boxes["a1"].sent,
			d.boxes["other"].sent)
	}
	for _, id := range []string{"a1", "other"} {
		if o := b.seen("/kubepods/poda/" + id); o.State != cgroup.Absent {
			t.Errorf("the cgroup of %s was made", id)
		}
	}
	// Elsewhere, but there.
	d.set(func() { d.boxes["a1"].Cgroup = cgroup.ParseCgroupfs("/elsewhere/a1") })
	b.set("/elsewhere", cgroup.Values{})
	b.set("/elsewhere/a1", cgroup.Values{Cpuset: cgroup.Cpuset{CPUs: cpuset.Range(0, 3)}})
	b.pass()
	if got := b.seen("/elsewhere/a1").Values.CPUs.String(); got != "0-1" {
		t.Errorf("elsewhere: CPUs %s", got)
	}
}

// A process that the agent hands over is berth's to place, also beside a runtime.
func TestHandedOverBesideARuntime(t *testing.T) {
	t.Parallel()
	b, _ := newFakeRuntime(t, memtree.V1())
	p, _ := b.ledger.View().Pod("a")
	if path, err := b.ContainerPath(p, "c"); path != "" || err != nil {
		t.Errorf("path %q, %v", path, err)
	}
	owner := ledger.Owner{Pod: "a", Container: "c"}
	path, err := b.EnsureContainer(t.Context(), b.ledger.View(), admission.Start{Binding: ledger.Binding{ID: "x", Owner: owner},
		PID: b.tree.Spawn(memtree.Mortal)})
	if path != "/kubepods/poda/c" || err != nil {
		t.Errorf("path %q, %v", path, err)
	}
}

func TestRuntimeContainersAreResized(t *testing.T) {
	t.Parallel()
	for name, facts := range map[string]cgroup.Facts{"v1": memtree.V1(), "v2": memtree.V2()} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b, d := newFakeRuntime(t, facts)
			d.create("a1", "a", "0-3")
			b.must(b.prestart("a1", "a"))
			d.start(t, "a1")
			d.create("a2", "a", "0-3")
			b.must(b.prestart("a2", "a"))
			b.admit("b", workload.Guaranteed, cpus(100))
			d.create("b1", "b", "0-3")
			b.pass()
			b.must(b.prestart("b1", "b"))
			var others []string
			d.updated = func(id string, v cgroup.Values) {
				if id == "b1" && v.MemoryBytes != nil {
					others = append(others, id)
				}
			}
			have, _ := b.ledger.View().Pod("a")
			p := *have
			p.Pod.Containers = slices.Clone(have.Pod.Containers)
			more := workload.Quantities{workload.CPU: 2000, workload.Memory: 4 << 20}
			p.Pod.Containers[0].Requests, p.Pod.Containers[0].Limits = more, more
			b.update(func(d *ledger.Draft) { d.PutPod(&p) })
			b.must(b.CheckResize(t.Context(), b.ledger.View(), "a"))
			b.must(b.Resize(t.Context(), b.ledger.View(), "a"))
			for _, id := range []string{"a1", "a2"} {
				v := d.boxes[id].values
				if v.MemoryBytes == nil || *v.MemoryBytes != 4<<20 || v.CPUShares == nil || *v.CPUShares != 2048 || len(v.HugePages) > 0 {
					t.Errorf("%s: %+v", id, v)
				}
			}
			if len(others) > 0 {
				t.Errorf("resized with it: %v", others)
			}
			if got := b.seen("/kubepods/poda/a1").Values.MemoryBytes; got == nil || *got != 4<<20 {
				t.Errorf("the kernel has %v", got)
			}
		})
	}
}

// A running loop follows a start without a call.
func TestRunLooksAtStarts(t *testing.T) {
	t.Parallel()
	b, d := newFakeRuntime(t, memtree.V1())
	looked := make(chan struct{}, 1000)
	b.Config.Observe = func(Outcome) {
		select {
		case looked <- struct{}{}:
		default:
		}
	}
	b.Every = time.Hour
	d.create("a1", "a", "0-3")
	b.must(b.prestart("a1", "a"))
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- b.Run(ctx) }()
	b.Wake()
	for range 5 {
		<-looked
	}
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}
