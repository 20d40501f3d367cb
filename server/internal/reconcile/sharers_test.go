package reconcile

import (
	"testing"

	"github.com/berthd/berth/managers/cgroup"
	"github.com/berthd/berth/managers/cgroup/memtree"
	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/ledger/ledgertest"
	"github.com/berthd/berth/managers/placement"
)

// sandbox has the runtime make the sandbox of a pod: its process may run on all CPUs.
func (b *bench) sandbox(uid string) string {
	b.t.Helper()
	path := "/kubepods/pod" + uid + "/" + uid + "-sandbox"
	b.set(path, cgroup.Values{Cpuset: cgroup.Cpuset{CPUs: cpuset.Range(0, 3)}})
	b.must(b.tree.Move(b.t.Context(), name(path), b.tree.Spawn(memtree.Mortal)))
	return path
}

func (b *bench) shows(path, want string) {
	b.t.Helper()
	if got := b.seen(path).Values.CPUs.String(); got != want {
		b.t.Errorf("%s is on %s, want %s", path, got, want)
	}
}

// The process of a sandbox leaves the own CPUs of a container before that starts, and shares
// what is shared afterwards, whichever program made it.
func TestSandboxesShare(t *testing.T) {
	t.Parallel()
	b, _ := newFakeRuntime(t, memtree.V1())
	path := b.sandbox("a")
	b.set("/kubepods/poda/nobody", cgroup.Values{Cpuset: cgroup.Cpuset{CPUs: cpuset.Range(0, 3)}})
	b.pass()
	b.shows(path, "0-3")
	b.own()
	b.must(b.prestart("own1", "own"))
	b.shows(path, "0-1")
	b.shows("/kubepods/poda/nobody", "0-3") // berthd does not know what it is
	b.must(b.RemovePod(t.Context(), b.ledger.View(), "own"))
	b.update(func(d *ledger.Draft) { d.RemovePod("own") })
	b.must(b.Follow(t.Context()))
	b.shows(path, "0-3")
	b.set(path, cgroup.Values{Cpuset: cgroup.Cpuset{CPUs: cpuset.Of(3)}})
	b.pass()
	b.shows(path, "0-3")
}

// Where no CPU is shared, a sandbox delays no start: there is nowhere to move it,
// but to the reserved CPUs.
func TestSandboxesWithoutSharedCPUs(t *testing.T) {
	t.Parallel()
	for _, reserved := range []string{"", "0"} {
		t.Run("reserved "+reserved, func(t *testing.T) {
			t.Parallel()
			b, _ := newFakeRuntime(t, memtree.V1())
			cpus, err := cpuset.Parse(reserved)
			b.must(err)
			rules := b.ledger.View().Rules()
			rules.ReservedCPUs, rules.StrictReservation = cpus, true
			_, err = b.ledger.SetRules(t.Context(), rules)
			b.must(err)
			path := b.sandbox("a")
			b.pass()
			all := cpuset.Range(0, 3).Minus(cpus)
			b.update(func(d *ledger.Draft) {
				d.PutPod(ledgertest.With(ledgertest.Pod("own", "c"), ledgertest.Exclusive("c", all.String())))
			})
			b.must(b.prestart("own1", "own"))
			want := reserved
			if want == "" {
				want = "0-3"
			}
			b.shows(path, want)
			b.pass()
			b.shows(path, want)
		})
	}
}

// A sandbox is found when the first container of its pod starts, and forgotten with it.
func TestSandboxesAreFoundWithAStart(t *testing.T) {
	t.Parallel()
	b, d := newFakeRuntime(t, memtree.V1())
	b.own()
	b.pass()
	path := b.sandbox("a")
	b.must(b.Follow(t.Context()))
	b.shows(path, "0-3")
	d.create("a1", "a", "0-1")
	b.must(b.prestart("a1", "a"))
	b.must(b.Follow(t.Context()))
	b.shows(path, "0-1")
	d.start(t, "a1")
	b.must(b.prestart("own1", "own"))
	b.must(b.tree.Remove(t.Context(), name(path)))
	b.pass()
	if _, known := b.tracker.Get(placement.Key{Cgroup: path}); known || len(b.sandboxes.sharers.pods) > 0 {
		t.Errorf("known is %v of %v", known, b.sandboxes.sharers.pods)
	}
	b.shows("/kubepods/poda/a-sandbox", "")
}
