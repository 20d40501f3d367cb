package reconcile

import (
	"testing"

	"github.com/berthd/berth/managers/cgroup"
	"github.com/berthd/berth/managers/cgroup/memtree"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/workload"
	"github.com/berthd/berth/server/internal/runtime"
)

// at has a container of pod a run in a cgroup.
func (b *bench) at(d *fakeRuntime, id, path string) {
	b.t.Helper()
	b.set(name(path).Parent().String(), cgroup.Values{})
	d.create(id, "a", "0-3")
	d.boxes[id].Cgroup = name(path)
	b.must(b.prestart(id, "a"))
	d.start(b.t, id)
}

// procs counts the processes of a cgroup.
func (b *bench) procs(path string) int {
	b.t.Helper()
	pids, err := b.tree.Procs(b.t.Context(), name(path))
	b.must(err)
	return len(pids)
}

// A pod's containers end with it, wherever their runtime runs them.
func TestRemovalEndsContainersOutside(t *testing.T) {
	t.Parallel()
	away := errdefs.Unavailablef("nobody there")
	for what, row := range map[string]struct {
		path      string
		meanwhile func(*bench, *fakeRuntime)
		want      errdefs.Class
		left      int
	}{
		"not looked at yet": {"/elsewhere/a1", func(*bench, *fakeRuntime) {}, -1, 0},
		"a scope":           {"/system.slice/cri-containerd-a1.scope", func(*bench, *fakeRuntime) {}, -1, 0},
		"while the runtime is away": {"/elsewhere/a1", func(b *bench, d *fakeRuntime) {
			b.must(b.Follow(b.t.Context()))
			d.set(func() { d.fail = away })
		}, -1, 0},
		"that the runtime has lost": {"/elsewhere/a1", func(b *bench, d *fakeRuntime) {
			b.must(b.Follow(b.t.Context()))
			d.set(func() { d.hidden = map[string]bool{"a1": true} })
			b.must(b.Follow(b.t.Context()))
		}, -1, 0},
		"of which the runtime does not tell any more where": {"/elsewhere/a1", func(b *bench, d *fakeRuntime) {
			b.must(b.Follow(b.t.Context()))
			d.set(func() { d.boxes["a1"].Cgroup = nil })
			b.must(b.Follow(b.t.Context()))
		}, -1, 0},
		"while it is being removed, and the runtime goes away then": {"/elsewhere/a1", func(b *bench, d *fakeRuntime) {
			b.must(b.Follow(b.t.Context()))
			b.wanted.leaving["a"] = true
			b.must(b.Follow(b.t.Context()))
			delete(b.wanted.leaving, "a") // it could not be removed
			d.set(func() { d.fail = away })
		}, -1, 0},
		"that ends while it is being removed": {"/elsewhere/all", func(b *bench, d *fakeRuntime) {
			b.must(b.Follow(b.t.Context()))
			b.wanted.leaving["a"] = true
			d.set(func() { d.boxes["a1"].Phase = runtime.Exited })
			b.must(b.Follow(b.t.Context()))
			delete(b.wanted.leaving, "a")
		}, -1, 1},
		"among others": {"/elsewhere/all", func(b *bench, _ *fakeRuntime) {
			b.must(b.tree.Move(b.t.Context(), name("/elsewhere/all"), b.tree.Spawn(memtree.Mortal)))
		}, errdefs.Precondition, 2},
		"that is not there": {"/elsewhere/all", func(b *bench, _ *fakeRuntime) {
			b.must(b.tree.Remove(b.t.Context(),
				name("/elsewhere/all")))
		}, -1, 0},
		"that does not end": {"/elsewhere/a1", func(b *bench, _ *fakeRuntime) { b.refuse["/elsewhere/a1"] = errRefused },
			errdefs.Internal, 1},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			b, d := newFakeRuntime(t, memtree.V1())
			b.at(d, "a1", row.path)
			d.create("a2", "a", "0-3")
			b.must(b.prestart("a2", "a"))
			d.start(t, "a2")
			b.admit("b", workload.Guaranteed, cpus(100))
			b.pass()
			d.create("b1", "b", "0-3")
			d.boxes["b1"].Cgroup = name("/elsewhere/b1")
			b.set("/elsewhere", cgroup.Values{})
			b.must(b.prestart("b1", "b"))
			d.start(t, "b1")
			row.meanwhile(b, d)
			err := b.RemovePod(t.Context(), b.ledger.View(), "a")
			if (err == nil) != (row.want < 0) || err != nil && row.want != errdefs.Internal && errdefs.ClassOf(err) != row.want {
				t.Errorf("got %v", err)
			}
			if code, _ := errdefs.CodeOf(err, errdefs.Precondition); row.want == errdefs.Precondition && code != "PRECONDITION_FAILED" {
				t.Errorf("the reason is %s", code)
			}
			if got := b.procs(row.path); got != row.left {
				t.Errorf("%d processes in %s, want %d", got, row.path, row.left)
			}
			// What cannot be done at all is not begun.
			if got := b.procs("/kubepods/poda"); (got > 0) != (row.want == errdefs.Precondition) {
				t.Errorf("%d processes in the pod", got)
			}
			if b.procs("/elsewhere/b1") != 1 || b.wanted.leaving["a"] != (row.want < 0) {
				t.Errorf("another pod's container: %d processes; leaving: %v", b.procs("/elsewhere/b1"), b.wanted.leaving)
			}
		})
	}
}
