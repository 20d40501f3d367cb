package reconcile

import (
	"errors"
	"fmt"
	"testing"

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

// open admits a pod that shares CPUs, as the engine does: its cgroup is made before the commit.
func (b *bench) open(uid string) {
	b.t.Helper()
	p := ledgertest.Pod(uid, "c")
	p.QoS, p.Pod.QoS = workload.Guaranteed, workload.Guaranteed
	p.Pod.Containers[0].Requests, p.Pod.Containers[0].Limits = cpus(500), cpus(500)
	b.commit(p)
}

func (b *bench) commit(p *ledger.Pod) {
	b.t.Helper()
	d := ledger.NewDraft(b.ledger.View())
	d.PutPod(p)
	_, _, err := b.EnsurePod(b.t.Context(), d.View(), p.UID())
	b.must(err)
	b.update(func(d *ledger.Draft) { d.PutPod(p) })
}

// begin starts the process of a sandbox, with what its pod's cgroup has.
func (b *bench) begin(uid string) string {
	b.t.Helper()
	path := "/kubepods/pod" + uid + "/" + uid + "-sandbox"
	b.set(path, cgroup.Values{})
	b.must(b.tree.Move(b.t.Context(), name(path), b.tree.Spawn(memtree.Mortal)))
	return path
}

// runsOn expects the CPUs on which processes in a cgroup run.
func (b *bench) runsOn(path, want string) {
	b.t.Helper()
	if got := b.kernel.allowed(b.seen(path)).String(); got != want {
		b.t.Errorf("%s runs on %s, want %s", path, got, want)
	}
}

// The process of a sandbox begins on the shared CPUs, before the runtime reports it, and leaves
// the CPUs of a container that starts meanwhile. From the first start of its pod on it has CPUs
// of its own, and the cgroup of the pod has all.
func TestSandboxesBeginOnSharedCPUs(t *testing.T) {
	t.Parallel()
	for version, facts := range map[string]cgroup.Facts{"v1": memtree.V1(), "v2": memtree.V2()} {
		for _, restarted := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, restarted %t", version, restarted), func(t *testing.T) {
				t.Parallel()
				b, d := newFakeRuntime(t, facts)
				b.commit(exclusivePod("own", "2-3"))
				b.runsOn("/kubepods/podown", "0-3") // nothing is shared without it, and these are its own
				b.must(b.prestart("own1", "own"))
				b.open("b")
				b.runsOn("/kubepods/podb", "0-1")
				path := b.begin("b")
				b.runsOn(path, "0-1")
				if restarted {
					b.Loop = New(b.Config)
					d.set(func() { d.closed = map[string]bool{"b": true} }) // it does not report the sandbox yet
					b.pass()
				}
				b.commit(exclusivePod("one", "1"))
				b.must(b.prestart("one1", "one"))
				b.runsOn(path, "0")
				b.must(b.Follow(t.Context()))
				b.pass()
				d.create("b1", "b", "0")
				b.must(b.prestart("b1", "b"))
				b.runsOn("/kubepods/podb", "0-3")
				b.runsOn(path, "0")
				b.must(b.RemovePod(t.Context(), b.ledger.View(), "one"))
				b.update(func(d *ledger.Draft) { d.RemovePod("one") })
				b.must(b.Follow(t.Context()))
				b.runsOn(path, "0-1")
				if len(b.sandboxes.opening.pods) > 0 && !restarted {
					t.Errorf("these pods are opening: %v", b.sandboxes.opening.pods)
				}
			})
		}
	}
}

// The cgroup of a pod without a requested start gets all CPUs, too.
func TestOpeningEndsWithAContainer(t *testing.T) {
	t.Parallel()
	b, d := newFakeRuntime(t, memtree.V1())
	b.own()
	b.open("b")
	b.runsOn("/kubepods/podb", "0-1")
	b.begin("b")
	d.create("b1", "b", "0-1")
	d.start(t, "b1")
	b.pass()
	b.pass()
	b.runsOn("/kubepods/podb", "0-3")
	b.runsOn("/kubepods/podb/b-sandbox", "0-1")
	b.must(b.RemovePod(t.Context(), b.ledger.View(), "b"))
	b.update(func(d *ledger.Draft) { d.RemovePod("b") })
	_, known := b.tracker.Get(placement.Key{Cgroup: "/kubepods/podb/b-sandbox"})
	if known || len(b.sandboxes.opening.pods)+len(b.sandboxes.sharers.pods["b"]) > 0 {
		t.Errorf("after the removal known is %t of %v, %v", known, b.sandboxes.opening.pods, b.sandboxes.sharers.pods)
	}
}

// A pod whose ledger was lost while it was opening is opening again once it is admitted, and its
// cgroup gets all CPUs before its first container starts.
func TestOpeningAfterALostLedger(t *testing.T) {
	t.Parallel()
	for _, withRuntime := range []bool{true, false} {
		t.Run(fmt.Sprintf("runtime %t", withRuntime), func(t *testing.T) {
			t.Parallel()
			b, d := newFakeRuntime(t, memtree.V1())
			b.commit(exclusivePod("own", "2-3"))
			b.open("b")
			b.runsOn("/kubepods/podb", "0-1")
			b.update(func(d *ledger.Draft) { d.RemovePod("b"); d.RemovePod("own") })
			if !withRuntime {
				b.Config.Runtime = nil
			}
			b.Loop = New(b.Config)
			b.pass()
			b.commit(exclusivePod("own", "2-3"))
			b.open("b")
			b.must(b.RemovePod(t.Context(), b.ledger.View(), "own"))
			b.update(func(d *ledger.Draft) { d.RemovePod("own") })
			if withRuntime {
				d.create("b1", "b", "0-3")
				b.must(b.prestart("b1", "b"))
			} else {
				_, err := b.EnsureContainer(t.Context(), b.ledger.View(), admission.Start{Binding: box("b1", "b")})
				b.must(err)
				b.on("b", "c", "0-3")
			}
			b.runsOn("/kubepods/podb", "0-3")
		})
	}
}

// A sandbox that cannot be moved holds up the containers on whose CPUs it may run, and not its
// own pod.
func TestSandboxThatCannotBeMoved(t *testing.T) {
	t.Parallel()
	b, d := newFakeRuntime(t, memtree.V2())
	b.open("b")
	path := b.begin("b")
	b.refuse[path] = errRefused
	d.create("b1", "b", "0-3")
	b.must(b.prestart("b1", "b"))
	b.runsOn("/kubepods/podb", "0-3")
	b.commit(exclusivePod("own", "2-3"))
	if err := b.tryToStart(b.ledger.View(), admission.Start{Binding: box("own1", "own")}); !errors.Is(err, errBlocked) {
		t.Errorf("the sandbox is on CPUs 0-3, and own starts: %v", err)
	}
	delete(b.refuse, path)
	d.start(t, "b1")
	b.must(b.prestart("own1", "own"))
	b.runsOn(path, "0-1")
}

// A pod that is given up after its cgroup was made leaves nothing.
func TestOpeningEndsWithThePod(t *testing.T) {
	t.Parallel()
	b, _ := newFakeRuntime(t, memtree.V2())
	p := exclusivePod("own", "2-3")
	d := ledger.NewDraft(b.ledger.View())
	d.PutPod(p)
	_, _, err := b.EnsurePod(t.Context(), d.View(), "own")
	b.must(err)
	b.must(b.ForgetPod(t.Context(), d.View(), "own"))
	if _, known := b.tracker.Get(placement.Key{Cgroup: "/kubepods/podown"}); known || len(b.sandboxes.opening.pods) > 0 {
		t.Errorf("known is %t of %v", known, b.sandboxes.opening.pods)
	}
	b.refuse["/kubepods/podown"] = errRefused
	if _, _, err = b.EnsurePod(t.Context(), d.View(), "own"); err == nil || len(b.sandboxes.opening.pods) > 0 {
		t.Errorf("a cgroup that could not be made: %v of %v", err, b.sandboxes.opening.pods)
	}
}

// A sandbox that runs while berthd starts is found before a container starts on its CPUs, even if
// the runtime was away at the first pass.
func TestSandboxesOfAnEarlierBerthd(t *testing.T) {
	t.Parallel()
	for version, facts := range map[string]cgroup.Facts{"v1": memtree.V1(), "v2": memtree.V2()} {
		for _, row := range []struct {
			name    string
			started bool // the pod has a container
			listed  bool // the runtime reports the sandbox
			follow  bool
		}{
			{name: "begins"},
			{name: "listed", listed: true},
			{name: "listed, followed", listed: true, follow: true},
			{name: "started", started: true, listed: true},
			{name: "started, followed", started: true, listed: true, follow: true},
		} {
			t.Run(version+", "+row.name, func(t *testing.T) {
				t.Parallel()
				b, d := newFakeRuntime(t, facts)
				b.open("b")
				path := b.begin("b")
				if row.started {
					d.create("b1", "b", "0-3")
					b.must(b.prestart("b1", "b"))
					d.start(t, "b1")
				}
				b.runsOn(path, "0-3")
				b.Loop = New(b.Config)
				d.set(func() {
					d.closed = map[string]bool{"b": !row.listed}
					d.fail = errdefs.Unavailablef("nobody there")
				})
				if err := b.Pass(t.Context()); err == nil {
					t.Error("a pass without the runtime succeeds")
				}
				b.commit(exclusivePod("own", "2-3"))
				start := admission.Start{Binding: box("own1", "own")}
				if err := b.tryToStart(b.ledger.View(), start); errdefs.ClassOf(err) != errdefs.Unavailable {
					t.Errorf("own starts beside sandboxes that nobody has listed: %v", err)
				}
				d.set(func() { d.fail = nil })
				if row.follow {
					b.must(b.Follow(t.Context()))
				}
				b.must(b.tryToStart(b.ledger.View(), start))
				b.runsOn(path, "0-1")
			})
		}
	}
}

// A container that was started without a call is no sandbox, although nothing is known of
// it when the next container of its pod starts: once it is bound, it has its own CPUs.
func TestContainerIsNoSandbox(t *testing.T) {
	t.Parallel()
	for version, facts := range map[string]cgroup.Facts{"v1": memtree.V1(), "v2": memtree.V2()} {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			b, d := newFakeRuntime(t, facts)
			b.commit(ledgertest.With(ledgertest.Pod("own", "c", "d"), ledgertest.Exclusive("c", "2-3"), ledgertest.Exclusive("d", "1")))
			path := b.begin("own")
			d.create("found", "own", "2-3")
			d.start(t, "found")
			other := ledger.Binding{ID: "d1", Owner: ledger.Owner{Pod: "own", Container: "d"}, Sequence: 1}
			b.must(b.tryToStart(b.ledger.View(), admission.Start{Binding: other}))
			b.update(func(d *ledger.Draft) { d.Bind(other) })
			for range 3 {
				b.pass()
				b.on("own", "found", "2-3")
				b.runsOn(path, "0")
			}
			sharers := b.sandboxes.sharers.pods
			if _, known := b.tracker.Get(placement.Key{Cgroup: "/kubepods/podown/found"}); known || len(sharers["own"]) != 1 {
				t.Errorf("the container is a sandbox: known %t, %v", known, sharers)
			}
		})
	}
}

// A start waits for a sandbox that is being removed with its pod, and does not fail at once.
func TestSandboxOfALeavingPod(t *testing.T) {
	t.Parallel()
	for _, started := range []bool{false, true} {
		t.Run(fmt.Sprintf("started %t", started), func(t *testing.T) {
			t.Parallel()
			b, d := newFakeRuntime(t, memtree.V1())
			b.open("b")
			path := b.begin("b")
			if started {
				d.create("b1", "b", "0-3")
				b.must(b.prestart("b1", "b"))
				d.start(t, "b1")
			}
			b.removing = func() error {
				b.commit(exclusivePod("own", "2-3"))
				b.refuse["/kubepods/podb"], b.refuse[path] = errRefused, errRefused
				err := b.tryToStart(b.ledger.View(), admission.Start{Binding: box("own1", "own")})
				if !errors.Is(err, errBlocked) || !waits(err) {
					t.Errorf("a start beside the removal: %v", err)
				}
				return errRefused
			}
			if err := b.RemovePod(t.Context(), b.ledger.View(), "b"); !errors.Is(err, errRefused) {
				t.Errorf("the removal: %v", err)
			}
			b.removing = nil
			clear(b.refuse)
			b.must(b.tryToStart(b.ledger.View(), admission.Start{Binding: box("own1", "own")}))
			b.runsOn(path, "0-1")
		})
	}
}

// A removal that has just taken the cgroup of a pod away is not undone by a start that moves it.
func TestLeavingPodIsNotMadeAgain(t *testing.T) {
	t.Parallel()
	b, _ := newFakeRuntime(t, memtree.V1())
	b.open("b")
	b.removing = func() error {
		b.removing = nil
		b.must(b.tree.Remove(t.Context(), name("/kubepods/podb")))
		b.commit(exclusivePod("own", "2-3"))
		if err := b.tryToStart(b.ledger.View(), admission.Start{Binding: box("own1", "own")}); err != nil && !waits(err) {
			t.Errorf("a start beside the removal: %v", err)
		}
		return nil
	}
	b.must(b.RemovePod(t.Context(), b.ledger.View(), "b"))
	b.update(func(d *ledger.Draft) { d.RemovePod("b") })
	if b.seen("/kubepods/podb").State != cgroup.Absent {
		t.Error("the removed cgroup is there")
	}
	b.must(b.prestart("own1", "own"))
}

// A sandbox that takes the place of another one begins on the shared CPUs, too: a runtime starts it
// when the containers of the pod have ended.
func TestSandboxesBeginAgain(t *testing.T) {
	t.Parallel()
	for version, facts := range map[string]cgroup.Facts{"v1": memtree.V1(), "v2": memtree.V2()} {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			b, d := newFakeRuntime(t, facts)
			b.commit(exclusivePod("own", "2-3"))
			b.must(b.prestart("own1", "own"))
			b.open("b")
			path := b.begin("b")
			for i, id := range []string{"b1", "b2", "b3"} {
				d.create(id, "b", "0-1")
				b.must(b.prestart(id, "b"))
				d.start(t, id)
				b.must(b.Follow(t.Context()))
				b.runsOn("/kubepods/podb", "0-3")
				b.must(b.tree.Remove(t.Context(), name("/kubepods/podb/"+id)))
				if i == 1 { // without its sandbox
					b.must(b.tree.Remove(t.Context(), name(path)))
				}
				d.set(func() { d.boxes[id].Phase = runtime.Exited })
				if i == 0 {
					b.update(func(d *ledger.Draft) { d.Unbind(id) }) // the agent reports it
					b.must(b.Follow(t.Context()))
				} else {
					b.pass()
					b.must(b.Follow(t.Context()))
				}
				b.runsOn("/kubepods/podb", "0-1")
				if i == 1 {
					b.runsOn(b.begin("b"), "0-1")
				}
			}
			b.set("/kubepods/podb", cgroup.Values{Cpuset: cgroup.Cpuset{CPUs: cpuset.Range(0, 3)}})
			b.pass()
			b.runsOn("/kubepods/podb", "0-1") // whichever program changed it
			// What is left of it does not hold others up.
			b.commit(exclusivePod("one", "1"))
			b.must(b.prestart("one1", "one"))
			b.runsOn("/kubepods/podb", "0")
			b.must(b.RemovePod(t.Context(), b.ledger.View(), "b"))
			b.update(func(d *ledger.Draft) { d.RemovePod("b") })
			b.must(b.Follow(t.Context()))
			if _, opens := b.sandboxes.opening.pods["b"]; opens {
				t.Error("the pod is removed, and opening")
			}
		})
	}
}
