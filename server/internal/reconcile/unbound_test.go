package reconcile

import (
	"slices"
	"testing"

	"github.com/berthd/berth/managers/admission"
	"github.com/berthd/berth/managers/cgroup"
	"github.com/berthd/berth/managers/cgroup/memtree"
	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/ledger/ledgertest"
	"github.com/berthd/berth/managers/workload"
)

// A start that was cut off before its commit leaves a process in a cgroup that no
// binding has. It leaves CPUs that others get, from the first pass on; it is a
// finding; and an empty cgroup goes.
func TestUnboundContainers(t *testing.T) {
	t.Parallel()
	for _, facts := range []cgroup.Facts{memtree.V1(), memtree.V2()} {
		b := newBench(t, facts, nil)
		for _, uid := range []string{"a", "b"} {
			b.admit(uid, workload.Burstable, cpus(500))
		}
		b.pass()
		pid := b.tree.Spawn(memtree.Mortal)
		paths := map[string]string{}
		for uid, pid := range map[string]int{"a": pid, "b": 0} {
			s := admission.Start{Binding: ledger.Binding{ID: uid, Owner: ledger.Owner{Pod: uid, Container: "c"}}, PID: pid}
			var err error
			if paths[uid], err = b.EnsureContainer(t.Context(), b.ledger.View(), s); err != nil {
				t.Fatal(err)
			}
		}
		// An agent's own cgroup is ignored.
		b.set("/kubepods/burstable/poda/sandbox", cgroup.Values{})
		b.Loop = New(b.Config) // berthd was killed
		on := func(path string) cpuset.Set { return b.seen(path).Effective.CPUs }
		give := func(uid, list string) {
			t.Helper()
			b.update(func(d *ledger.Draft) {
				d.PutPod(ledgertest.With(ledgertest.Pod(uid, "c"), ledgertest.Exclusive("c", list)))
			})
		}
		give("x", "3")
		b.pass()
		if got := on(paths["a"]); got != cpuset.Range(0, 2) {
			t.Errorf("cgroup v%d: after the first pass it runs on %s", facts.Version, got)
		}
		if found := b.Findings(); len(found) != 0 {
			t.Errorf("a call may be under way: %v", found)
		}
		give("y", "2")
		owner := ledger.Owner{Pod: "y", Container: "c"}
		if _, err := b.EnsureContainer(t.Context(), b.ledger.View(),
			admission.Start{Binding: ledger.Binding{ID: "y", Owner: owner}}); err != nil {
			t.Fatal(err)
		}
		if got := on(paths["a"]); got != cpuset.Range(0, 1) {
			t.Errorf("cgroup v%d: y is started, and it runs on %s", facts.Version, got)
		}
		b.pass()
		if found := b.Findings(); len(found) != 1 || found[0].Rule != ruleUnbound || found[0].Owner.Pod != "a" {
			t.Errorf("findings %v", found)
		}
		if b.seen(paths["b"]).State != cgroup.Absent {
			t.Error("an empty cgroup stays")
		}
		if procs, err := b.tree.Procs(t.Context(), name(paths["a"])); err != nil || !slices.Equal(procs, []int{pid}) {
			t.Errorf("processes %v, %v; want %d", procs, err, pid)
		}
		if _, err := b.startIn("a", "again"); err != nil {
			t.Fatal(err)
		}
		// A pass that began before may end now: what it found does not hold any more.
		if found := b.Findings(); len(found) != 0 {
			t.Errorf("it is bound, and no pass has looked since: %v", found)
		}
		b.pass()
		if found := b.Findings(); len(found) != 0 {
			t.Errorf("it is bound: %v", found)
		}
		if b.seen("/kubepods/burstable/poda/sandbox").State == cgroup.Absent {
			t.Error("a cgroup that is no container's was removed")
		}
	}
}
