package reconcile

import (
	"testing"

	"github.com/berthd/berth/hack/pending"
	"github.com/berthd/berth/managers/admission"
	"github.com/berthd/berth/managers/cgroup"
	"github.com/berthd/berth/managers/cgroup/memtree"
	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/ledger/ledgertest"
)

// Who loses the CPUs of its own, because they go off line, runs on those that are
// shared, never on others' own; that is a finding; and it gets them back.
func TestCPUsGoOffline(t *testing.T) {
	t.Parallel()
	for name, facts := range map[string]cgroup.Facts{"v1": memtree.V1(), "v2": memtree.V2()} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, facts, nil)
			pids := map[string]int{}
			for uid, list := range map[string]string{"x": "3", "y": "1"} {
				b.update(func(d *ledger.Draft) {
					d.PutPod(ledgertest.With(ledgertest.Pod(uid, "c"), ledgertest.Exclusive("c", list)))
				})
				pids[uid] = b.tree.Spawn(memtree.Mortal)
				owner := ledger.Owner{Pod: uid, Container: "c"}
				bound := ledger.Binding{ID: uid, Owner: owner, Own: true}
				var err error
				if bound.CgroupPath, err = b.EnsureContainer(t.Context(), b.ledger.View(), admission.Start{Binding: bound, PID: pids[uid]}); err != nil {
					t.Fatal(err)
				}
				b.update(func(d *ledger.Draft) { d.Bind(bound) })
			}
			b.pass()
			b.tree.SetOnline(cpuset.Range(0, 2))
			pending.Fails(t, pending.CPUOffline, func(t testing.TB) {
				_ = b.Pass(t.Context()) // v1 takes no CPU that is off line
				if got := b.tree.RunsOn(pids["x"]); got != cpuset.Of(0, 2) {
					t.Errorf("who lost CPU 3 runs on %s, and CPU 1 is another's", got)
				}
			})
			pending.Fails(t, pending.CPUOffline, func(t testing.TB) {
				if found := b.Findings(); len(found) != 1 || found[0].Owner.Pod != "x" {
					t.Errorf("findings %v", found)
				}
			})
			b.tree.SetOnline(cpuset.Range(0, 3))
			if name == "v2" {
				// v2 does this by itself.
				b.pass()
				if got := b.tree.RunsOn(pids["x"]); got != cpuset.Of(3) {
					t.Errorf("CPU 3 is back, and its owner runs on %s", got)
				}
				return
			}
			pending.Fails(t, pending.CPUOffline, func(t testing.TB) {
				_ = b.Pass(t.Context())
				if got := b.tree.RunsOn(pids["x"]); got != cpuset.Of(3) {
					t.Errorf("CPU 3 is back, and its owner runs on %s", got)
				}
			})
		})
	}
}
