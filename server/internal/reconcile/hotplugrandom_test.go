package reconcile

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/berthd/berth/managers/admission"
	"github.com/berthd/berth/managers/cgroup"
	"github.com/berthd/berth/managers/cgroup/memtree"
	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/ledger/journal"
	"github.com/berthd/berth/managers/ledger/ledgertest"
	"github.com/berthd/berth/managers/machine"
	"github.com/berthd/berth/managers/machine/machinetest"
	"github.com/berthd/berth/managers/numa"
	"github.com/berthd/berth/managers/placement"
	"github.com/berthd/berth/managers/workload"
)

// unplugged are containers on a machine of which CPUs and NUMA nodes come and go.
type unplugged struct {
	*rv
	r   *rapid.T
	log []string
}

func (u *unplugged) note(format string, args ...any) {
	u.log = append(u.log, fmt.Sprintf(format, args...))
}

func (u *unplugged) fatalf(format string, args ...any) {
	u.r.Fatalf("%s\n%s", fmt.Sprintf(format, args...), strings.Join(u.log, "\n"))
}

// draw draws a machine of up to three NUMA nodes with two CPUs each; CPU 0 is always there.
func (u *unplugged) draw() *machine.Topology {
	var gone []int
	for _, id := range []int{1, 2} {
		if rapid.IntRange(0, 2).Draw(u.r, "node is gone") == 0 {
			gone = append(gone, id)
		}
	}
	var offline cpuset.Builder
	for _, cpu := range []int{1, 2, 3, 4, 5} {
		if !slices.Contains(gone, cpu/2) && rapid.IntRange(0, 2).Draw(u.r, "CPU is offline") == 0 {
			offline.Add(cpu)
		}
	}
	memory := machinetest.Memory(rapid.IntRange(1, 2).Draw(u.r, "node without memory"), 0)
	if rapid.Bool().Draw(u.r, "all have memory") {
		memory = machinetest.Named("")
	}
	m := machinetest.Build("1s3n2c1t,mem=1Gi", memory, machinetest.WithoutNodes(gone...), machinetest.Offline(offline.Set().String()))
	u.note("machine: CPUs %s, nodes %s, with memory %s", m.CPUs(), m.NodeMask(), m.MemoryNodeMask())
	u.tree.SetOnline(m.CPUs())
	u.tree.SetNodes(m.MemoryNodeMask())
	return m
}

// sees makes a machine the one of the ledger.
func (u *unplugged) sees(m *machine.Topology) {
	rules := u.ledger.View().Rules()
	rules.Machine = m
	if _, err := u.ledger.SetRules(u.t.Context(), rules); err != nil {
		u.fatalf("%v", err)
	}
}

// comeOrGo starts a pod, or removes it.
func (u *unplugged) comeOrGo() {
	uid := rapid.SampledFrom([]string{"a", "b", "c", "d"}).Draw(u.r, "pod")
	view := u.ledger.View()
	if _, here := view.Pod(uid); here {
		u.note("removal of %s: %v", uid, u.RemovePod(u.t.Context(), view, uid))
		u.update(func(d *ledger.Draft) { d.RemovePod(uid) })
		return
	}
	m := view.Machine()
	p := ledgertest.Pod(uid, "c")
	p.QoS, p.Pod.QoS = workload.Guaranteed, workload.Guaranteed
	if free := m.CPUs().Minus(view.ExclusiveCPUs()).Minus(cpuset.Of(0)); !free.IsEmpty() && rapid.Bool().Draw(u.r, "its own CPUs") {
		p = ledgertest.With(p, ledgertest.Exclusive("c", free.Lowest(rapid.IntRange(1, free.Len()).Draw(u.r, "CPUs")).String()))
	} else {
		p.Pod.Containers[0].Requests, p.Pod.Containers[0].Limits = cpus(100), cpus(100)
	}
	if rapid.Bool().Draw(u.r, "its own memory") {
		nodes := numa.Mask(rapid.Uint64Range(1, 7).Draw(u.r, "nodes")).Intersect(m.MemoryNodeMask())
		if nodes.IsEmpty() {
			nodes = numa.Of(0)
		}
		p = ledgertest.With(p, ledgertest.Memory("c", "memory", nodes.String(), 1<<20))
	}
	u.update(func(d *ledger.Draft) { d.PutPod(p) })
	u.pids[uid] = u.tree.Spawn(memtree.Mortal)
	bound := ledger.Binding{ID: uid, Owner: ledger.Owner{Pod: uid, Container: "c"}, Own: true}
	bound.CgroupPath = "/node/kubepods/pod" + uid + "/c"
	// As EnsureContainer, which waits for others to leave.
	u.beginStart(placement.Key{Cgroup: bound.CgroupPath})
	err := u.ensureContainer(u.t.Context(), u.ledger.View(), admission.Start{Binding: bound, PID: u.pids[uid]})
	u.endStart(placement.Key{Cgroup: bound.CgroupPath}, bound.ID)
	if u.note("start of %s: %v", uid, err); err != nil { // it leaves
		u.must(u.RemovePod(u.t.Context(), u.ledger.View(), uid))
		u.update(func(d *ledger.Draft) { d.RemovePod(uid) })
		return
	}
	u.update(func(d *ledger.Draft) { d.Bind(bound) })
}

// check compares the containers with the ledger.
func (u *unplugged) check() {
	view := u.ledger.View()
	present := view.Machine().MemoryNodeMask()
	for bound := range view.Bindings() {
		pod, _ := view.Pod(bound.Owner.Pod)
		name := cgroup.ParseCgroupfs(bound.CgroupPath)
		seen, err := u.tree.Observe(u.t.Context(), name, 0)
		if err != nil {
			u.fatalf("%v", err)
		}
		nodes := pod.MemoryNodes("c").Intersect(present)
		if nodes.IsEmpty() {
			nodes = present
		}
		if got := seen.Find(name).Effective.Mems; got != nodes {
			u.fatalf("%s uses memory of nodes %s, want %s", bound.ID, got, nodes)
		}
		if got, want := u.tree.RunsOn(u.pids[bound.ID]), view.RunsOn(bound.Owner); got != want {
			u.fatalf("%s runs on %s, want %s", bound.ID, got, want)
		}
	}
}

// TestRandomNodesComeAndGo: CPUs and NUMA nodes come and go, seen by berthd or not, while pods come and go and berthd starts
// again. As soon as berthd has seen the present machine, each container has the CPUs and the memory nodes of the ledger.
func TestRandomNodesComeAndGo(t *testing.T) {
	t.Parallel()
	for name, facts := range map[string]cgroup.Facts{"v1": memtree.V1(), "v2": memtree.V2()} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rapid.Check(t, func(r *rapid.T) {
				b := newBench(t, facts, func(c *Config) { c.Layout, _ = cgroup.NewLayout("/node", facts.Driver) })
				b.ledger, _ = ledgertest.OpenChanging(r, journal.Options{Journal: ledgertest.NewJournal(), Rules: b.ledger.View().Rules()})
				b.View = b.ledger.View
				u := &unplugged{rv: &rv{b, map[string]int{}}, r: r}
				u.sees(u.draw())
				u.pass()
				for range rapid.IntRange(2, 20).Draw(r, "operations") {
					switch rapid.IntRange(0, 5).Draw(r, "operation") {
					case 0, 1:
						u.comeOrGo()
					case 2:
						u.sees(u.draw())
						u.note("follow: %v", u.Follow(t.Context()))
					case 3:
						u.draw() // unseen
					case 4:
						u.restart()
						u.note("restart")
					default:
						u.note("pass: %v", u.Pass(t.Context()))
						continue
					}
					if rapid.IntRange(0, 2).Draw(r, "all is seen") == 0 {
						u.sees(u.draw())
						for range 3 {
							u.note("pass: %v", u.Pass(t.Context()))
						}
						u.check()
					}
				}
			})
		})
	}
}
