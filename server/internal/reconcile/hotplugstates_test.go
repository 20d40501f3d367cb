package reconcile

import (
	"fmt"
	"testing"

	"github.com/berthd/berth/managers/admission"
	"github.com/berthd/berth/managers/cgroup"
	"github.com/berthd/berth/managers/cgroup/memtree"
	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/ledger/check"
	"github.com/berthd/berth/managers/ledger/ledgertest"
	"github.com/berthd/berth/managers/machine"
	"github.com/berthd/berth/managers/machine/machinetest"
	"github.com/berthd/berth/managers/workload"
)

type rv struct {
	*bench
	pids map[string]int
}

func newRV(t *testing.T, facts cgroup.Facts) *rv {
	b := newBench(t, facts, func(c *Config) { c.Layout, _ = cgroup.NewLayout("/node", facts.Driver) })
	r := &rv{b, map[string]int{}}
	r.fill()
	return r
}

// fill starts s on the shared CPUs, x on CPU 3 and y on CPU 1.
func (r *rv) fill() {
	b := r.bench
	b.admit("s", workload.Burstable, cpus(500))
	for uid, list := range map[string]string{"x": "3", "y": "1"} {
		b.update(func(d *ledger.Draft) {
			d.PutPod(ledgertest.With(ledgertest.Pod(uid, "c"), ledgertest.Exclusive("c", list)))
		})
	}
	for _, uid := range []string{"s", "x", "y"} {
		r.start(uid)
	}
	b.pass()
}

func (r *rv) start(uid string) {
	r.t.Helper()
	r.pids[uid] = r.tree.Spawn(memtree.Mortal)
	bound := ledger.Binding{ID: uid, Owner: ledger.Owner{Pod: uid, Container: "c"}, Own: true}
	var err error
	if bound.CgroupPath, err = r.EnsureContainer(r.t.Context(), r.ledger.View(),
		admission.Start{Binding: bound, PID: r.pids[uid]}); err != nil {
		r.t.Errorf("start %s: %v", uid, err)
		return
	}
	r.update(func(d *ledger.Draft) { d.Bind(bound) })
}

func (r *rv) on(want map[string]string) {
	r.t.Helper()
	for uid, w := range want {
		if got := r.tree.RunsOn(r.pids[uid]).String(); got != w {
			r.t.Errorf("%s runs on %s, want %s", uid, got, w)
		}
	}
}

func (r *rv) online(list string) {
	s, err := cpuset.Parse(list)
	if err != nil {
		r.t.Fatal(err)
	}
	r.tree.SetOnline(s)
}

func (r *rv) machineIs(list string) {
	r.t.Helper()
	online, _ := cpuset.Parse(list)
	rules := r.ledger.View().Rules()
	whole := rules.Machine
	if online.Len() == 4 {
		whole = newWhole(r.t)
	}
	m, err := whole.Without(whole.CPUs().Minus(online))
	if err != nil {
		r.t.Fatal(err)
	}
	rules.Machine = m
	if _, err := r.ledger.SetRules(r.t.Context(), rules); err != nil {
		r.t.Fatal(err)
	}
	if err := r.Follow(r.t.Context()); err != nil {
		r.t.Logf("follow: %v", err)
	}
}

func (r *rv) restart() {
	cfg := r.Config
	r.Loop = New(cfg)
	if err := r.Begin(r.t.Context()); err != nil {
		r.t.Logf("begin: %v", err)
	}
}

func (r *rv) tryPass(what string) {
	for range 2 {
		if err := r.Pass(r.t.Context()); err != nil {
			r.t.Logf("%s: pass: %v", what, err)
		}
	}
}

var all = map[string]string{"s": "0,2", "x": "3", "y": "1"}

// v1: CPU 3 goes and comes back between two comparisons.
func TestCPUFlapsUnseen(t *testing.T) {
	for name, facts := range map[string]cgroup.Facts{"v1": memtree.V1(), "v2": memtree.V2()} {
		t.Run(name, func(t *testing.T) {
			r := newRV(t, facts)
			r.on(all)
			r.online("0-2")
			r.online("0-3")
			r.tryPass("after")
			r.on(all)
		})
	}
}

// v1: exclusive CPU went and came while no berthd ran.
func TestV1ExclusiveCPUCameBackUnseen(t *testing.T) {
	r := newRV(t, memtree.V1())
	r.online("0-2")
	r.online("0-3")
	r.restart()
	r.tryPass("after")
	r.on(all)
}

// v1: shared CPU went and came while no berthd ran.
func TestV1SharedCPUCameBackUnseen(t *testing.T) {
	r := newRV(t, memtree.V1())
	r.online("0,1,3")
	r.online("0-3")
	r.restart()
	r.tryPass("after")
	r.on(all)
	r.update(func(d *ledger.Draft) {
		d.PutPod(ledgertest.With(ledgertest.Pod("z", "c"), ledgertest.Exclusive("c", "2")))
	})
	r.start("z")
	r.tryPass("z")
	r.on(map[string]string{"s": "0", "x": "3", "y": "1", "z": "2"})
}

// v1: all shared CPUs go, and come back.
func TestAllSharedCPUsGoAndComeBack(t *testing.T) {
	for name, facts := range map[string]cgroup.Facts{"v1": memtree.V1(), "v2": memtree.V2()} {
		t.Run(name, func(t *testing.T) {
			r := newRV(t, facts)
			r.online("1,3")
			r.machineIs("1,3")
			r.tryPass("gone")
			t.Logf("gone: s runs on %s", r.tree.RunsOn(r.pids["s"]))
			r.online("0-3")
			r.machineIs("0-3")
			r.tryPass("back")
			r.on(all)
		})
	}
}

func newWhole(t *testing.T) *machine.Topology { return machinetest.Build("4c") }

// The last shared CPU goes offline. With strict reservation the reserved CPU 0 is left: containers that
// share run there, as sandboxes do, and never on others' exclusive CPUs; and the check finds it.
func TestNoSharedCPULeft(t *testing.T) {
	for name, facts := range map[string]cgroup.Facts{"v1": memtree.V1(), "v2": memtree.V2()} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, facts, func(c *Config) { c.Layout, _ = cgroup.NewLayout("/node", facts.Driver) })
			rules := b.ledger.View().Rules()
			rules.ReservedCPUs, rules.StrictReservation = cpuset.Of(0), true
			if _, err := b.ledger.SetRules(t.Context(), rules); err != nil {
				t.Fatal(err)
			}
			r := &rv{b, map[string]int{}}
			r.fill()
			r.on(map[string]string{"s": "2", "x": "3", "y": "1"})
			r.online("0,1,3")
			r.machineIs("0,1,3")
			r.tryPass("gone")
			r.on(map[string]string{"s": "0", "x": "3", "y": "1"})
			found := check.View(b.ledger.View())
			if len(found) != 1 || found[0].Rule != check.RuleShared || found[0].Owner.Pod != "s" {
				t.Errorf("findings: %v", found)
			}
		})
	}
}

// v1: a CPU goes and comes back between two comparisons of the machine. berthd had started before
// there were pods.
func TestV1CPUFlapsUnseenLate(t *testing.T) {
	for _, lost := range []string{"0-2", "0,1,3"} {
		b := newBench(t, memtree.V1(), func(c *Config) { c.Layout, _ = cgroup.NewLayout("/node", memtree.V1().Driver) })
		b.pass()
		r := &rv{b, map[string]int{}}
		r.fill()
		r.online(lost)
		r.online("0-3")
		r.tryPass("after")
		r.on(all)
	}
}

// v2: a set without a CPU online means all CPUs of the parent: another container must not start on
// its exclusive CPUs before it has left them.
func TestV2OfflineSetBlocksStarts(t *testing.T) {
	r := newRV(t, memtree.V2())
	r.on(all)
	r.online("0-2")
	var path string
	for b := range r.ledger.View().BindingsOf("x") {
		path = b.CgroupPath
	}
	t.Log("x now runs on", r.tree.RunsOn(r.pids["x"]))
	r.refuse[cgroup.ParseCgroupfs(path).String()] = errRefused
	r.machineIs("0-2")
	r.tryPass("offline")
	r.update(func(d *ledger.Draft) {
		d.PutPod(ledgertest.With(ledgertest.Pod("z", "c"), ledgertest.Exclusive("c", "2")))
	})
	start := admission.Start{Binding: ledger.Binding{ID: "z", Owner: ledger.Owner{Pod: "z", Container: "c"}, Own: true},
		PID: r.tree.Spawn(memtree.Mortal)}
	if _, err := r.EnsureContainer(t.Context(), r.ledger.View(), start); err == nil {
		t.Errorf("z was started on %s, and x runs on %s", r.tree.RunsOn(start.PID), r.tree.RunsOn(r.pids["x"]))
	}
	delete(r.refuse, cgroup.ParseCgroupfs(path).String())
	r.online("0-3")
	r.machineIs("0-3")
}

// A container with memory of NUMA nodes of which one is gone is started again on the others.
func TestStartWithAGoneNode(t *testing.T) {
	for name, facts := range map[string]cgroup.Facts{"v1": memtree.V1(), "v2": memtree.V2()} {
		t.Run(name, func(t *testing.T) {
			r := newRV(t, facts)
			for uid, nodes := range map[string]string{"m": "0-1", "n": "1"} {
				r.update(func(d *ledger.Draft) {
					d.PutPod(ledgertest.With(ledgertest.Pod(uid, "c"), ledgertest.Memory("c", "memory", nodes, 1<<20)))
				})
				r.start(uid)
			}
			r.tryPass("mems")
			r.update(func(d *ledger.Draft) { d.RemovePod("m"); d.RemovePod("n") })
		})
	}
}

// TestNodeGoesAndComesBack: a NUMA node goes and comes back, and with it memory of containers. All have
// memory nodes meanwhile, and those of before afterwards.
func TestNodeGoesAndComesBack(t *testing.T) {
	for name, facts := range map[string]cgroup.Facts{"v1": memtree.V1(), "v2": memtree.V2()} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, facts, func(c *Config) { c.Layout, _ = cgroup.NewLayout("/node", facts.Driver) })
			whole, half := machinetest.Build("1s2n2c1t,mem=1Gi"), machinetest.Build("1s1n4c1t,mem=1Gi")
			use := func(m *machine.Topology) {
				t.Helper()
				b.tree.SetNodes(m.NodeMask())
				rules := b.ledger.View().Rules()
				rules.Machine = m
				if _, err := b.ledger.SetRules(t.Context(), rules); err != nil {
					t.Fatal(err)
				}
				r := &rv{bench: b}
				r.tryPass("machine")
			}
			use(whole)
			r := &rv{b, map[string]int{}}
			want := map[string]string{"both": "0-1", "first": "0", "second": "1"}
			for uid, nodes := range want {
				r.update(func(d *ledger.Draft) {
					d.PutPod(ledgertest.With(ledgertest.Pod(uid, "c"), ledgertest.Memory("c", "memory", nodes, 1<<20)))
				})
				r.start(uid)
			}
			r.tryPass("started")
			check := func(when string, want map[string]string) {
				t.Helper()
				for bound := range r.ledger.View().Bindings() {
					name := cgroup.ParseCgroupfs(bound.CgroupPath)
					seen, err := r.tree.Observe(t.Context(), name, 0)
					if err != nil {
						t.Fatal(err)
					}
					if got := seen.Find(name).Effective.Mems.String(); got != want[bound.ID] {
						t.Errorf("%s: %s has nodes %q, want %s", when, bound.ID, got, want[bound.ID])
					}
					if pids, err := r.tree.Procs(t.Context(), name); err != nil || len(pids) != 1 || r.tree.RunsOn(pids[0]).IsEmpty() {
						t.Errorf("%s: %s has processes %v, %v", when, bound.ID, pids, err)
					}
				}
			}
			check("started", want)
			use(half)
			check("gone", map[string]string{"both": "0", "first": "0", "second": "0"})
			use(whole)
			check("back", want)
			use(half)
			r.restart()
			r.tryPass("restarted")
			use(whole)
			check("back after a start", want)
		})
	}
}

// TestMemoryOfANodeComesAndGoes: a NUMA node appears without memory, gets memory, and loses it again, while its CPUs stay. The
// kernel takes only nodes with memory: all containers have those, whether or not berthd runs meanwhile.
func TestMemoryOfANodeComesAndGoes(t *testing.T) {
	small, bare := machinetest.Build("1s1n4c1t,mem=1Gi"), machinetest.Build("1s2n2c1t,mem=1Gi", machinetest.Memory(1, 0))
	whole := machinetest.Build("1s2n2c1t,mem=1Gi")
	for name, facts := range map[string]cgroup.Facts{"v1": memtree.V1(), "v2": memtree.V2()} {
		for _, restarts := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, restarts %v", name, restarts), func(t *testing.T) {
				b := newBench(t, facts, func(c *Config) { c.Layout, _ = cgroup.NewLayout("/node", facts.Driver) })
				r := &rv{b, map[string]int{}}
				use := func(m *machine.Topology, shared, own string) {
					t.Helper()
					b.tree.SetNodes(m.MemoryNodeMask())
					rules := b.ledger.View().Rules()
					rules.Machine = m
					if _, err := b.ledger.SetRules(t.Context(), rules); err != nil {
						t.Fatal(err)
					}
					if restarts {
						r.restart()
					}
					for range 3 {
						if err := b.Pass(t.Context()); err != nil {
							t.Errorf("nodes %s with memory: %v", m.MemoryNodeMask(), err)
						}
					}
					for bound := range b.ledger.View().Bindings() {
						name, want := cgroup.ParseCgroupfs(bound.CgroupPath), shared
						if bound.ID == "own" {
							want = own
						}
						seen, err := b.tree.Observe(t.Context(), name, 0)
						if err != nil {
							t.Fatal(err)
						}
						if got := seen.Find(name).Effective.Mems.String(); got != want {
							t.Errorf("nodes %s with memory: %s has nodes %s, want %s", m.MemoryNodeMask(), bound.ID, got, want)
						}
					}
				}
				use(small, "0", "")
				b.admit("shared", workload.Burstable, cpus(500))
				r.start("shared")
				use(bare, "0", "")
				use(whole, "0-1", "")
				b.update(func(d *ledger.Draft) {
					d.PutPod(ledgertest.With(ledgertest.Pod("own", "c"), ledgertest.Memory("c", "memory", "1", 1<<20)))
				})
				r.start("own")
				use(whole, "0-1", "1")
				use(bare, "0", "0")
				use(whole, "0-1", "1")
				b.update(func(d *ledger.Draft) { d.RemovePod("own") })
			})
		}
	}
}

// TestV1EmptiedSetIsFilledUnseen: a NUMA node goes, and the kernel moves a process out of its container. Before berthd sees that,
// a start of another container makes berthd write the set. The process comes back when berthd has seen the machine.
func TestV1EmptiedSetIsFilledUnseen(t *testing.T) {
	whole, half := machinetest.Build("1s2n2c1t,mem=1Gi"), machinetest.Build("1s2n2c1t,mem=1Gi", machinetest.Memory(1, 0))
	for name, event := range map[string]bool{"by a poll": false, "by an event": true} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, memtree.V1(), func(c *Config) { c.Layout, _ = cgroup.NewLayout("/node", memtree.V1().Driver) })
			r := &rv{b, map[string]int{}}
			see := func(m *machine.Topology) {
				t.Helper()
				rules := b.ledger.View().Rules()
				rules.Machine = m
				if _, err := b.ledger.SetRules(t.Context(), rules); err != nil {
					t.Fatal(err)
				}
				r.tryPass("machine")
			}
			b.tree.SetNodes(whole.MemoryNodeMask())
			see(whole)
			p := ledgertest.With(ledgertest.Pod("m", "c"), ledgertest.Memory("c", "memory", "1", 1<<20))
			b.update(func(d *ledger.Draft) { d.PutPod(p) })
			r.start("m")
			r.on(map[string]string{"m": "0-3"})
			b.tree.SetNodes(half.MemoryNodeMask())
			b.update(func(d *ledger.Draft) {
				d.PutPod(ledgertest.With(ledgertest.Pod("z", "c"), ledgertest.Exclusive("c", "3")))
			})
			r.start("z")
			if event { // the node is back when berthd looks
				b.tree.SetNodes(whole.MemoryNodeMask())
				b.CPUsMayHaveChanged()
				r.tryPass("event")
			} else {
				see(half)
			}
			r.tryPass("again")
			r.on(map[string]string{"m": "0-2", "z": "3"})
			b.update(func(d *ledger.Draft) { d.RemovePod("m") })
		})
	}
}
