package reconcile

import (
	"testing"

	"github.com/berthd/berth/managers/cgroup/memtree"
	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/errdefs"
)

// A container that was moved in the kernel, while the runtime was away, stays there when a resize
// sends its amounts to the runtime: with each update a runtime writes all its values.
func TestResizeKeepsCPUsOfTheKernel(t *testing.T) {
	t.Parallel()
	b, d := newFakeRuntime(t, memtree.V1())
	d.create("old", "a", "0-3")
	b.must(b.prestart("old", "a"))
	d.start(t, "old")
	d.create("a1", "a", "0-3")
	d.start(t, "a1")
	b.bind("a1", "a")
	b.commit(exclusivePod("own", "2-3"))
	b.set("/kubepods/poda/a1", cpusetOf(cpuset.Range(0, 1))) // by a pass of an earlier berthd that could not call the runtime
	b.Loop = New(b.Config)
	d.fail = errdefs.Unavailablef("nobody there")
	_ = b.Follow(t.Context())
	d.fail = nil
	b.must(b.Follow(t.Context()))
	b.runsOn("/kubepods/poda/a1", "0-1")
	b.must(b.Resize(t.Context(), b.ledger.View(), "a"))
	b.runsOn("/kubepods/poda/a1", "0-1")
}
