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
	"github.com/berthd/berth/managers/placement"
	"github.com/berthd/berth/managers/workload"
	"github.com/berthd/berth/server/internal/runtime"
)

// A running container that the runtime has lost still counts: no container
// starts on its CPUs, and it does not count as resized.
func TestLostContainers(t *testing.T) {
	t.Parallel()
	for _, path := range []string{"/kubepods/poda/a1", "/kubepods/poda/cri-containerd-a1.scope", "/kubepods/poda/crio-a1",
		"/elsewhere/a1"} {
		t.Run(path, func(t *testing.T) {
			t.Parallel()
			b, d := newFakeRuntime(t, memtree.V1())
			b.at(d, "a1", path)
			b.admit("b", workload.Guaranteed, cpus(100))
			b.pass()
			b.own()
			d.set(func() { d.hidden = map[string]bool{"a1": true} })
			err := b.prestart("own1", "own")
			if !errors.Is(err, errUnlisted) || errdefs.ClassOf(err) != errdefs.Unavailable ||
				!strings.Contains(err.Error(), path+" on CPUs 0-3 and not 0-1") {
				t.Errorf("a container of its own: %v", err)
			}
			b.must(b.Resize(t.Context(), b.ledger.View(), "b"))
			// Who shares needs no place that another program has to leave.
			d.create("b1", "b", "0-3")
			b.must(b.prestart("b1", "b"))
			if got := d.boxes["b1"].values.CPUs.String(); got != "0-1" {
				t.Errorf("a container that shares starts on %s", got)
			}
			d.start(t, "b1")
			if err := b.prestart("own1", "own"); !errors.Is(err, errUnlisted) {
				t.Errorf("a container of its own, after one that shares: %v", err)
			}
			if err := b.CheckResize(t.Context(), b.ledger.View(), "a"); !errors.Is(err, errUnlisted) {
				t.Errorf("its pod is resized: %v", err)
			}
			if lives, err := b.lives(t.Context(), box("a1", "a")); !lives || err != nil {
				t.Errorf("it lives: %v, %v", lives, err)
			}
			// Another one with a similar name is not it, nor is what watches one, nor a pod
			// that is called so, nor is one of a pod that has gone.
			watch := name("/kubepods/poda/crio-conmon-watched.scope")
			b.set(watch.String(), cgroup.Values{})
			b.must(b.tree.Move(t.Context(), watch, b.tree.Spawn(memtree.Mortal)))
			for _, other := range []ledger.Binding{box("1", "a"), box("watched", "a"), box("poda", "a"), box("a1", "gone")} {
				if lives, err := b.lives(t.Context(), other); lives || err != nil {
					t.Errorf("%+v lives: %v, %v", other, lives, err)
				}
			}

			// It is found again.
			d.set(func() { clear(d.hidden) })
			b.must(b.prestart("own1", "own"))
			if got := b.seen(path).Values.CPUs.String(); got != "0-1" {
				t.Errorf("it has CPUs %s", got)
			}
			// If it is on its CPUs, no start waits.
			d.set(func() { d.hidden["a1"] = true })
			b.update(func(d *ledger.Draft) { d.Unbind("own1") })
			b.must(b.Pass(t.Context()))
			b.must(b.prestart("own2", "own"))
			// Nor does anybody where it could have more.
			b.update(func(d *ledger.Draft) { d.Unbind("own2"); d.RemovePod("own") })
			b.pass()
			if got := b.seen(path).Values.CPUs.String(); got != "0-1" {
				t.Errorf("it has CPUs %s", got)
			}
			b.own()
			b.must(b.prestart("own3", "own"))
			b.update(func(d *ledger.Draft) { d.Unbind("own3"); d.RemovePod("own") })
			// It has ended.
			b.must(b.tree.Remove(t.Context(), name(path)))
			b.pass()
			if lives, err := b.lives(t.Context(), box("a1", "a")); lives || err != nil {
				t.Errorf("it lives: %v, %v", lives, err)
			}
			b.must(b.CheckResize(t.Context(), b.ledger.View(), "a"))
		})
	}
}

// No start waits for a container that has exited. One that was let start and that
// the runtime does not list yet may run any moment.
func TestUnlistedStarts(t *testing.T) {
	t.Parallel()
	b, d := newFakeRuntime(t, memtree.V1())
	b.at(d, "a1", "/kubepods/poda/a1")
	b.must(b.prestart("coming", "a"))
	b.own()
	d.set(func() { d.boxes["a1"].Phase = runtime.Exited })
	own := admission.Start{Binding: box("own1", "own")}
	b.mustWait(own, "2-3")
	// It has come.
	d.create("coming", "a", "0-3")
	d.start(t, "coming")
	b.must(b.tryToStart(b.ledger.View(), own))
	b.on("a", "coming", "0-1")
	// Another one never comes.
	b.update(func(d *ledger.Draft) { d.RemovePod("own") })
	b.pass()
	b.must(b.prestart("never", "a"))
	b.own()
	b.mustWait(own, "2-3")
	b.wait(placement.StartTime)
	b.must(b.tryToStart(b.ledger.View(), own))
}

// Missing kernel data about a container that the runtime has lost is an error,
// and one that ends while it is looked for is not lost.
func TestLookForTheLost(t *testing.T) {
	t.Parallel()
	const path = "/kubepods/poda/a1"
	for what, row := range map[string]struct {
		meanwhile func(*bench)
		want      error
	}{
		"unseen":            {func(b *bench) { b.blind[path] = errRefused }, errRefused},
		"uncounted":         {func(b *bench) { b.blind[path+"/cgroup.procs"] = errRefused }, errRefused},
		"its pod is unseen": {func(b *bench) { b.blind["/kubepods/poda"] = errRefused }, errRefused},
		"ends": {func(b *bench) {
			b.counted = func(at string) { b.must(b.tree.Remove(b.t.Context(), name(at))) }
		}, nil},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			b, d := newFakeRuntime(t, memtree.V1())
			b.at(d, "a1", path)
			b.pass()
			b.own()
			d.set(func() { d.hidden = map[string]bool{"a1": true} })
			row.meanwhile(b)
			if err := b.prestart("own1", "own"); !errors.Is(err, row.want) || errors.Is(err, errUnlisted) != (row.want != nil) {
				t.Errorf("got %v, want %v", err, row.want)
			}
			if err := b.CheckResize(t.Context(), b.ledger.View(), "a"); (err == nil) != (row.want == nil) {
				t.Errorf("its pod is resized: %v", err)
			}
		})
	}
}
