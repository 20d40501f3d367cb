package reconcile

import (
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/berthd/berth/managers/admission"
	"github.com/berthd/berth/managers/cgroup"
	"github.com/berthd/berth/managers/cgroup/memtree"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/ledger/ledgertest"
	"github.com/berthd/berth/managers/placement"
	"github.com/berthd/berth/managers/workload"
	"github.com/berthd/berth/server/internal/runtime"
)

// A start that has taken too long is given up, whatever has happened meanwhile: no container
// waits for it any more.
func TestOldStartsAreGivenUp(t *testing.T) {
	t.Parallel()
	for name, meanwhile := range map[string]func(*bench, *fakeRuntime){
		"another pod is resized": func(b *bench, _ *fakeRuntime) {
			b.must(b.Resize(b.t.Context(), b.ledger.View(), "b"))
		},
		"the runtime is away": func(b *bench, d *fakeRuntime) {
			d.set(func() { d.fail = errdefs.Unavailablef("nobody there") })
			if err := b.Follow(b.t.Context()); err == nil {
				b.t.Error("nobody noticed")
			}
			d.set(func() { d.fail = nil })
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b, d := newFakeRuntime(t, memtree.V1())
			b.admit("b", workload.Guaranteed, cpus(100))
			d.create("a1", "a", "0-3")
			b.must(b.prestart("a1", "a"))
			b.must(b.Follow(t.Context()))
			meanwhile(b, d)
			b.own()
			own := admission.Start{Binding: box("own1", "own")}
			b.mustWait(own, "2-3")
			b.wait(placement.StartTime)
			meanwhile(b, d)
			b.must(b.tryToStart(b.ledger.View(), own))
			if got := d.boxes["a1"].values.CPUs.String(); got != "0-1" {
				t.Errorf("it would start on %s", got)
			}
		})
	}
}

// A start that was answered and not observed keeps others from its CPUs only as long
// as it may come: without a container in the list and a sandbox it does not.
func TestStartsWithoutASandbox(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		listed, open, bound bool
	}{
		"nothing is left":     {bound: true},
		"it was never bound":  {},
		"a sandbox":           {open: true, bound: true},
		"it is listed, still": {listed: true, bound: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b, d := newFakeRuntime(t, memtree.V1())
			d.closed = map[string]bool{"a": !row.open}
			if row.listed {
				d.create("a1", "a", "0-3")
			}
			if row.bound {
				b.must(b.prestart("a1", "a"))
			} else {
				_, err := b.EnsureContainer(t.Context(), b.ledger.View(), admission.Start{Binding: box("a1", "a")})
				b.must(err)
			}
			// A list that began before the answer is no evidence.
			_ = b.Follow(t.Context())
			if !b.tracker.mayRun(ofID("a1")) {
				t.Error("the start was given up at the moment when it was allowed")
			}
			b.wait(time.Second)
			_ = b.Follow(t.Context())
			if got, want := b.tracker.mayRun(ofID("a1")), row.listed || row.open; got != want {
				t.Errorf("it counts as one that may run: %v, want %v", got, want)
			}
			if _, bound := b.ledger.View().Binding("a1"); bound != (row.bound && (row.listed || row.open)) {
				t.Errorf("bound: %v", bound)
			}
		})
	}
}

// After one container's event the runtime is called for that container only.
func TestAnEventListsWhoItIsAbout(t *testing.T) {
	t.Parallel()
	b, d := newFakeRuntime(t, memtree.V1())
	for _, id := range []string{"a1", "a2", "a3"} {
		d.create(id, "a", "0-3")
		b.must(b.prestart(id, "a"))
		d.start(t, id)
	}
	b.pass()
	asked := func(what func()) (lists [][]string) {
		d.asked = nil
		what()
		return d.asked
	}
	follow := func() { b.must(b.Follow(t.Context())) }
	if got := asked(follow); got != nil {
		t.Errorf("nothing has happened, and %q were listed", got)
	}
	b.admit("b", workload.Guaranteed, cpus(100))
	if got := asked(follow); got != nil {
		t.Errorf("a pod has come, and %q were listed", got)
	}
	d.create("b1", "b", "0-3")
	b.must(b.prestart("b1", "b"))
	if got := asked(follow); !slices.EqualFunc(got, [][]string{{"b1"}}, slices.Equal) {
		t.Errorf("a container starts, and %q were listed", got)
	}
	d.start(t, "b1")
	b.must(b.Follow(t.Context()))
	if c, _ := b.tracker.Get(ofID("b1")); c.Phase != placement.Running {
		t.Errorf("it is %s", c.Phase)
	}
	b.own() // other CPUs are shared: it is about all
	b.must(b.Follow(t.Context()))
	for _, id := range []string{"a1", "a2", "a3"} {
		b.on("a", id, "0-1")
	}
	b.on("b", "b1", "0-1")
}

// A write that the runtime carries out although it returns an error is not taken
// for undone.
func TestFailedWritesAreNotInForce(t *testing.T) {
	t.Parallel()
	b, d := asked(t)
	d.start(t, "a1")
	b.own()
	b.must(b.Follow(t.Context()))
	b.on("a", "a1", "0-1")

	late := errdefs.Deadlinef("the answer comes too late")
	d.set(func() { d.late = late })
	b.update(func(d *ledger.Draft) { d.RemovePod("own") })
	if err := b.Follow(t.Context()); !errors.Is(err, late) {
		t.Errorf("got %v", err)
	}
	b.on("a", "a1", "0-3")
	d.set(func() { d.late = nil })
	b.own()
	b.must(b.prestart("own1", "own"))
	b.on("a", "a1", "0-1")
}

// A container that the runtime was found to have, and that was bound without being
// placed, has left the CPUs of another one before that one starts.
func TestFoundContainersAreCleared(t *testing.T) {
	t.Parallel()
	b, d := newFakeRuntime(t, memtree.V1())
	b.own()
	b.pass()
	d.create("a1", "a", "0-3")
	d.start(t, "a1")
	b.bind("a1", "a")
	b.must(b.prestart("own1", "own"))
	b.on("a", "a1", "0-1")
}

// A start that is under way may have read anything that was sent before it.
func TestStartsUnderWayHaveReadAnything(t *testing.T) {
	t.Parallel()
	for name, between := range map[string]func(*bench, *fakeRuntime){
		"other CPUs for a moment": func(b *bench, _ *fakeRuntime) {
			b.update(func(d *ledger.Draft) { d.RemovePod("own") })
			b.must(b.Follow(b.t.Context()))
		},
		"an error about other CPUs": func(b *bench, d *fakeRuntime) {
			b.update(func(d *ledger.Draft) { d.RemovePod("own") })
			late := errdefs.Deadlinef("the answer comes too late")
			d.set(func() { d.late = late })
			if err := b.Follow(b.t.Context()); !errors.Is(err, late) {
				b.t.Errorf("between: %v", err)
			}
			d.set(func() { d.late = nil })
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b, d := newFakeRuntime(t, memtree.V1())
			b.own()
			b.pass()
			d.create("a1", "a", "0-3")
			b.must(b.prestart("a1", "a"))
			between(b, d)
			b.own()
			own := admission.Start{Binding: box("own1", "own")}
			b.mustWait(own, "2-3")
			d.start(t, "a1")
			b.must(b.tryToStart(b.ledger.View(), own))
			b.on("a", "a1", "0-1")
		})
	}
}

// Calls of PreStart without an answer do not delay others: neither
// they for themselves, nor two of them for each other.
func TestNobodyWaitsForThoseThatAsk(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b, d := newFakeRuntime(t, memtree.V1())
		b.Now = time.Now
		b.admit("b", workload.Guaranteed, cpus(100))
		ensure := func(id, pod string) error {
			_, err := b.EnsureContainer(t.Context(), b.ledger.View(), admission.Start{Binding: box(id, pod)})
			b.bind(id, pod)
			return err
		}
		for _, pod := range []string{"a", "b"} {
			d.create(pod+"1", pod, "0-3")
			b.must(ensure(pod+"1", pod))
		}
		// An admission comes between the container and its binding, so that the engine
		// repeats the call.
		b.own()
		took(t, 0, func() {
			done := make(chan error)
			go func() { done <- ensure("a1", "a") }()
			synctest.Wait()
			b.must(ensure("b1", "b"))
			b.must(<-done)
		})
		for _, id := range []string{"a1", "b1"} {
			if got := d.boxes[id].values.CPUs.String(); got != "0-1" {
				t.Errorf("%s starts on %s", id, got)
			}
		}
		if len(b.tracker.starting) > 0 {
			t.Errorf("still asked for: %v", b.tracker.starting)
		}
	})
}

// A PreStart that is repeated because the outcome of a start is unknown, as one that took
// too long, may have a start under way: it is waited for as without the repetition.
func TestRepeatedStartsMayBeUnderWay(t *testing.T) {
	t.Parallel()
	for name, meanwhile := range map[string]func(*bench){
		"no look between": func(*bench) {},
		"a look between":  func(b *bench) { b.must(b.Follow(b.t.Context())) },
		"another berthd":  func(b *bench) { b.Loop = New(b.Config) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b, d := asked(t)
			read := d.boxes["a1"].values
			b.own()
			meanwhile(b)
			d.create("own1", "own", "2-3")
			// A sharer does not wait, and a container with exclusive CPUs waits for the one that may be
			// under way to them.
			b.must(b.tryToStart(b.ledger.View(), admission.Start{Binding: box("a1", "a"), Again: true}))
			b.mustWait(admission.Start{Binding: box("own1", "own")}, "2-3")
			d.set(func() { b.must(d.run(t.Context(), "a1", read)) })
			b.must(b.prestart("own1", "own"))
			b.on("a", "a1", "0-1")
		})
	}
}

// The same where a count had lost the container in between, so that it was not observed.
func TestRepeatedStartsOfLostContainers(t *testing.T) {
	t.Parallel()
	b, d := asked(t)
	read := d.boxes["a1"].values
	b.own()
	b.update(func(d *ledger.Draft) { d.Unbind("a1") })
	b.must(b.tryToStart(b.ledger.View(), admission.Start{Binding: box("a1", "a"), Again: true}))
	b.bind("a1", "a")
	d.create("own1", "own", "2-3")
	b.mustWait(admission.Start{Binding: box("own1", "own")}, "2-3")
	d.set(func() { b.must(d.run(t.Context(), "a1", read)) })
	b.must(b.prestart("own1", "own"))
	b.on("a", "a1", "0-1")
}

// The same where what was sent with the repetition may be in force or not.
func TestRepeatedStartsWithLateAnswers(t *testing.T) {
	t.Parallel()
	b, d := newFakeRuntime(t, memtree.V1())
	low := ledgertest.With(ledgertest.Pod("low", "c"), ledgertest.Exclusive("c", "0-1"))
	b.update(func(d *ledger.Draft) { d.PutPod(low) })
	d.create("a1", "a", "0-3")
	b.must(b.prestart("a1", "a"))
	b.update(func(d *ledger.Draft) { d.Unbind("a1"); d.RemovePod("low") })
	b.own()
	late := errdefs.Deadlinef("the answer comes too late")
	d.set(func() { d.late = late })
	if err := b.tryToStart(b.ledger.View(), admission.Start{Binding: box("a1", "a"), Again: true}); !errors.Is(err, late) {
		t.Errorf("got %v", err)
	}
	read := d.boxes["a1"].values
	d.set(func() { d.late = nil })
	b.update(func(d *ledger.Draft) { d.RemovePod("own"); d.PutPod(low); d.Bind(box("a1", "a")) })
	d.create("low1", "low", "0-1")
	b.mustWait(admission.Start{Binding: box("low1", "low")}, read.CPUs.String())
	d.set(func() { b.must(d.run(t.Context(), "a1", read)) })
	b.must(b.prestart("low1", "low"))
	b.on("a", "a1", "2-3")
}

// A container that was found and bound before its PreStart may be started
// by its creator: others wait for it, and it does not wait.
func TestFoundContainersMayStart(t *testing.T) {
	t.Parallel()
	b, d := newFakeRuntime(t, memtree.V1())
	d.create("a1", "a", "0-3")
	b.bind("a1", "a")
	b.own()
	own := admission.Start{Binding: box("own1", "own")}
	b.mustWait(own, "2-3")
	b.must(b.tryToStart(b.ledger.View(), admission.Start{Binding: box("a1", "a"), Again: true}))
	if got := d.boxes["a1"].values.CPUs.String(); got != "0-1" {
		t.Errorf("it starts on %s", got)
	}
	d.start(t, "a1")
	b.must(b.tryToStart(b.ledger.View(), own))
}

// TestStartsAfterAResize: a container that was created with the amounts from before a resize starts with the new ones. If
// the call is repeated while the container runs, a limit below its use is not sent, because the kernel might end it.
func TestStartsAfterAResize(t *testing.T) {
	t.Parallel()
	for name, facts := range map[string]cgroup.Facts{"v1": memtree.V1(), "v2": memtree.V2()} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b, d := newFakeRuntime(t, facts)
			limit := func(id string) int64 {
				d.mu.Lock()
				defer d.mu.Unlock()
				if v := d.boxes[id].values.MemoryBytes; v != nil {
					return *v
				}
				return 0
			}
			size := func(bytes int64) {
				p := ledgertest.With(ledgertest.Pod("own", "c"), ledgertest.Exclusive("c", "2-3"))
				p.Pod.Containers[0].Requests = workload.Quantities{workload.CPU: 2000, workload.Memory: bytes}
				p.Pod.Containers[0].Limits = p.Pod.Containers[0].Requests
				b.update(func(d *ledger.Draft) { d.PutPod(p) })
				b.pass()
			}
			const small, large = 8 << 20, 64 << 20
			size(small)
			for _, bound := range []bool{false, true} { // a pass may have found the container
				id := "own1"
				if bound {
					id = "own2"
				}
				d.create(id, "own", "2")
				d.set(func() { v := int64(small); d.boxes[id].values.MemoryBytes = &v })
				size(large)
				if bound {
					b.bind(id, "own")
				}
				b.must(b.prestart(id, "own"))
				if got := limit(id); got != large {
					t.Errorf("bound %v: it starts with %d bytes", bound, got)
				}
				d.start(t, id)
				b.must(b.Follow(t.Context()))
				at := cgroup.ParseCgroupfs("/kubepods/podown/" + id)
				more := int64(4 * large)
				b.set(at.String(), cgroup.Values{MemoryBytes: &more, MemorySwapBytes: &more})
				d.set(func() { d.boxes[id].values.MemoryBytes, d.boxes[id].values.MemorySwapBytes = &more, &more })
				b.tree.UseMemory(at, large)
				b.must(b.prestart(id, "own"))
				if got := limit(id); got != more {
					t.Errorf("bound %v: while it uses %d bytes, its limit becomes %d bytes", bound, large, got)
				}
				b.tree.UseMemory(at, large-1)
				b.must(b.prestart(id, "own"))
				if got := limit(id); got != large {
					t.Errorf("bound %v: while it uses less, its limit becomes %d bytes", bound, got)
				}
				d.set(func() { d.boxes[id].Phase = runtime.Exited })
				b.update(func(d *ledger.Draft) { d.Unbind(id) })
				b.pass()
			}
		})
	}
}
