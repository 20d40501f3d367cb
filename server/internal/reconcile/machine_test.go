package reconcile

import (
	"testing"

	"github.com/berthd/berth/managers/admission"
	"github.com/berthd/berth/managers/cgroup"
	"github.com/berthd/berth/managers/cgroup/memtree"
	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/ledger/check"
	"github.com/berthd/berth/managers/ledger/ledgertest"
	"github.com/berthd/berth/managers/workload"
)

// Who loses the CPUs of its own, because they go offline, runs on those that are
// shared, never on others' own; that is a finding, and no CPU of these is given; who
// shares leaves them; and all get them back.
func TestCPUsGoOffline(t *testing.T) {
	t.Parallel()
	for name, facts := range map[string]cgroup.Facts{"v1": memtree.V1(), "v2": memtree.V2()} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, facts, func(c *Config) {
				c.Layout, _ = cgroup.NewLayout("/node", facts.Driver)
			})
			whole := b.ledger.View().Machine()
			b.admit("s", workload.Burstable, cpus(500))
			for uid, list := range map[string]string{"x": "3", "y": "1"} {
				b.update(func(d *ledger.Draft) {
					d.PutPod(ledgertest.With(ledgertest.Pod(uid, "c"), ledgertest.Exclusive("c", list)))
				})
			}
			pids := map[string]int{}
			for _, uid := range []string{"s", "x", "y"} {
				pids[uid] = b.tree.Spawn(memtree.Mortal)
				bound := ledger.Binding{ID: uid, Owner: ledger.Owner{Pod: uid, Container: "c"}, Own: true}
				var err error
				if bound.CgroupPath, err = b.EnsureContainer(t.Context(), b.ledger.View(),
					admission.Start{Binding: bound, PID: pids[uid]}); err != nil {
					t.Fatal(err)
				}
				b.update(func(d *ledger.Draft) { d.Bind(bound) })
			}
			b.pass()
			step := func(list string, findings int, on map[string]string) {
				t.Helper()
				online, err := cpuset.Parse(list)
				if err != nil {
					t.Fatal(err)
				}
				b.tree.SetOnline(online)
				rules := b.ledger.View().Rules()
				if rules.Machine, err = whole.Without(whole.CPUs().Minus(online)); err != nil {
					t.Fatal(err)
				}
				if _, err := b.ledger.SetRules(t.Context(), rules); err != nil {
					t.Fatal(err)
				}
				if err := b.Follow(t.Context()); err != nil {
					t.Fatal(err)
				}
				if len(b.last.Drifts) != 0 {
					t.Errorf("online are %s: drifts %v", list, b.last.Drifts)
				}
				for uid, want := range on {
					if got := b.tree.RunsOn(pids[uid]); got.String() != want {
						t.Errorf("online are %s: %s runs on %s, want %s", list, uid, got, want)
					}
				}
				found := check.View(b.ledger.View())
				if len(found) != findings || findings > 0 && (found[0].Rule != check.RuleOffline || found[0].Owner.Pod != "x") {
					t.Errorf("online are %s: findings %v", list, found)
				}
				b.pass()
				if len(b.last.Ops) != 0 {
					t.Errorf("online are %s: a second pass does %v", list, b.last.Ops)
				}
			}
			step("0-2", 1, map[string]string{"s": "0,2", "x": "0,2", "y": "1"})
			step("0-1", 1, map[string]string{"s": "0", "x": "0", "y": "1"})
			step("0-3", 0, map[string]string{"s": "0,2", "x": "3", "y": "1"})
			step("0,1,3", 0, map[string]string{"s": "0", "x": "3", "y": "1"})

			// CPU 2 is shared. It comes back while no berthd runs, and berthd starts after that.
			b.tree.SetOnline(whole.CPUs())
			rules := b.ledger.View().Rules()
			rules.Machine = whole
			if _, err := b.ledger.SetRules(t.Context(), rules); err != nil {
				t.Fatal(err)
			}
			b.Loop = New(b.Config)
			b.pass()
			for uid, want := range map[string]string{"s": "0,2", "x": "3", "y": "1"} {
				if got := b.tree.RunsOn(pids[uid]); got.String() != want {
					t.Errorf("after a start: %s runs on %s, want %s", uid, got, want)
				}
			}
		})
	}
}

// TestCPUsGoOfflineBetween: v1 empties the set of a container, and moves its processes, after berthd has observed the set
// and before it writes another one.
func TestCPUsGoOfflineBetween(t *testing.T) {
	t.Parallel()
	b := newBench(t, memtree.V1(), func(c *Config) {
		c.Layout, _ = cgroup.NewLayout("/node", memtree.V1().Driver)
	})
	whole := b.ledger.View().Machine()
	pids := map[string]int{}
	for uid, list := range map[string]string{"x": "3", "y": "1"} {
		b.update(func(d *ledger.Draft) {
			d.PutPod(ledgertest.With(ledgertest.Pod(uid, "c"), ledgertest.Exclusive("c", list)))
		})
		pids[uid] = b.tree.Spawn(memtree.Mortal)
		bound := ledger.Binding{ID: uid, Owner: ledger.Owner{Pod: uid, Container: "c"}, Own: true}
		var err error
		if bound.CgroupPath, err = b.EnsureContainer(t.Context(), b.ledger.View(),
			admission.Start{Binding: bound, PID: pids[uid]}); err != nil {
			t.Fatal(err)
		}
		b.update(func(d *ledger.Draft) { d.Bind(bound) })
	}
	b.pass()
	rules := b.ledger.View().Rules()
	var err error
	if rules.Machine, err = whole.Without(cpuset.Of(3)); err != nil {
		t.Fatal(err)
	}
	if _, err := b.ledger.SetRules(t.Context(), rules); err != nil {
		t.Fatal(err)
	}
	b.update(func(d *ledger.Draft) { // another CPU for the one that is gone
		d.PutPod(ledgertest.With(ledgertest.Pod("x", "c"), ledgertest.Exclusive("c", "2")))
	})
	b.observed = func() { b.tree.SetOnline(cpuset.Range(0, 2)) }
	if err := b.Follow(t.Context()); err != nil {
		t.Fatal(err)
	}
	b.pass()
	for uid, want := range map[string]string{"x": "2", "y": "1"} {
		if got := b.tree.RunsOn(pids[uid]); got.String() != want {
			t.Errorf("%s runs on %s, want %s", uid, got, want)
		}
	}
}
