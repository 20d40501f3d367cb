package reconcile

import (
	"slices"
	"testing"

	"github.com/berthd/berth/managers/admission"
	"github.com/berthd/berth/managers/cgroup/memtree"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/ledger/ledgertest"
	"github.com/berthd/berth/managers/placement"
	"github.com/berthd/berth/server/internal/runtime"
)

// bound expects which ids are bound.
func (b *bench) bound(want ...string) {
	b.t.Helper()
	var got []string
	for b := range b.ledger.View().Bindings() {
		got = append(got, b.ID)
	}
	if slices.Sort(got); !slices.Equal(got, want) {
		b.t.Errorf("bound are %q, want %q", got, want)
	}
}

// A runtime that does not answer at the start does not keep what ended before it, and who
// is bound meanwhile stays.
func TestBindingsAfterABadStart(t *testing.T) {
	t.Parallel()
	b, d := newFakeRuntime(t, memtree.V1())
	d.create("runs", "a", "0-3")
	d.start(t, "runs")
	b.bind("ended", "a")
	b.bind("runs", "a")
	b.Loop = New(b.Config)
	away := func() {
		d.set(func() { d.fail = errdefs.Unavailablef("nobody there") })
		if err := b.Pass(t.Context()); err == nil {
			t.Error("nobody noticed")
		}
		d.set(func() { d.fail = nil })
	}
	away()
	b.must(b.prestartAway(d, "coming", "a")) // the runtime is about to make it
	away()
	b.bound("coming", "ended", "runs")
	b.pass()
	b.bound("coming", "runs")
	d.create("coming", "a", "0-3")
	b.pass()
	b.must(b.tree.Remove(t.Context(), name("/kubepods/poda/runs")))
	d.set(func() { delete(d.boxes, "runs") })
	b.pass()
	b.bound("coming")
	d.set(func() { d.boxes["coming"].Phase = runtime.Exited })
	b.pass()
	b.bound()
}

// A container that was started in place of another one while berthd was away is bound by
// the first pass.
func TestBindingsOfASuccessor(t *testing.T) {
	t.Parallel()
	b, d := newFakeRuntime(t, memtree.V1())
	d.create("first", "a", "0-3")
	b.must(b.prestart("first", "a"))
	d.set(func() { d.boxes["first"].Phase = runtime.Exited })
	d.create("second", "a", "0-3")
	d.start(t, "second")
	b.Loop = New(b.Config)
	b.pass()
	b.bound("second")
}

// prestartAway is prestart of a container that the runtime does not list yet.
func (b *bench) prestartAway(d *fakeRuntime, id, pod string) error {
	err := b.prestart(id, pod)
	if d.boxes[id] != nil {
		b.t.Errorf("container %s is there", id)
	}
	return err
}

// What a runtime does not list, as one that has lost its records or not read them yet,
// stays bound for as long as it has processes: at a start and later.
func TestBindingsOfWhatLives(t *testing.T) {
	t.Parallel()
	const path = "/kubepods/poda/lives"
	b, d := newFakeRuntime(t, memtree.V1())
	d.hidden = map[string]bool{}
	d.create("lives", "a", "0-3")
	d.start(t, "lives")
	b.bind("ended", "a")
	b.bind("lives", "a")
	b.Loop = New(b.Config)
	d.set(func() { d.hidden["lives"] = true })
	b.blind[path+"/cgroup.procs"] = errRefused // who knows
	_ = b.Pass(t.Context())
	b.bound("lives")
	delete(b.blind, path+"/cgroup.procs")
	b.pass()
	b.bound("lives")
	d.set(func() { clear(d.hidden) })
	b.pass()
	d.set(func() { d.hidden["lives"] = true })
	b.pass()
	b.bound("lives")
	b.must(b.tree.Remove(t.Context(), name(path)))
	b.pass()
	b.bound()
}

// A list that lacks some containers, or all, is followed by another list before anything changes:
// neither bindings nor CPUs are given up for it.
func TestPartialListsAreRepeated(t *testing.T) {
	t.Parallel()
	b, d := newFakeRuntime(t, memtree.V1())
	d.hidden = map[string]bool{}
	d.create("a1", "a", "0-3")
	b.must(b.prestart("a1", "a"))
	b.pass()
	lists := 0
	d.set(func() {
		d.hidden["a1"] = true
		d.listed = func() { lists++; delete(d.hidden, "a1") }
	})
	b.own()
	b.mustWait(admission.Start{Binding: box("own1", "own")}, "2-3")
	b.bound("a1")
	if c, _ := b.tracker.Get(ofID("a1")); c.Phase != placement.Created || lists != 2 {
		t.Errorf("it is %s after %d lists", c.Phase, lists)
	}
}

// What ends while a list is on its way is not taken over from it.
func TestBindingsOfAnOldList(t *testing.T) {
	t.Parallel()
	unbind := func(id string) func(*ledger.Draft) { return func(d *ledger.Draft) { d.Unbind(id) } }
	for name, during := range map[string]func(*bench){
		"unbound": func(b *bench) { b.update(unbind("short")) },
		"bound and unbound": func(b *bench) {
			b.update(unbind("short"))
			b.bind("shorter", "a")
			b.update(unbind("shorter"))
		},
		"removed and back": func(b *bench) {
			b.update(func(d *ledger.Draft) { d.RemovePod("a") })
			b.update(func(d *ledger.Draft) { d.PutPod(ledgertest.Pod("a", "c")) })
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b, d := newFakeRuntime(t, memtree.V1())
			b.bind("short", "a")
			for _, id := range []string{"short", "shorter"} {
				d.create(id, "a", "0-3")
				d.start(t, id)
			}
			d.set(func() { d.listed = func() { d.listed = nil; during(b) } })
			b.pass()
			b.bound()
			d.set(func() { clear(d.boxes) })
			d.create("found", "a", "0-3")
			d.start(t, "found")
			b.pass()
			b.bound("found")
		})
	}
}
