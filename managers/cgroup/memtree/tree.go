package memtree

import (
	"context"
	"fmt"
	"sync"

	"github.com/berthd/berth/managers/cgroup"
	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/numa"
)

// Tree is a cgroup.Tree in memory. It is safe for concurrent use.
type Tree struct {
	facts   cgroup.Facts
	machine cgroup.Cpuset

	mu      sync.Mutex // guards all below
	takeAny bool
	root    *group
	procs   map[int]*process
	lastPID int
	free    cgroup.HugeBytes // huge pages
}

// New returns a tree with nothing but its root, on a machine with the given
// CPUs and memory nodes.
func New(f cgroup.Facts, cpus cpuset.Set, mems numa.Mask) *Tree {
	t := &Tree{
		facts:   f,
		machine: cgroup.Cpuset{CPUs: cpus, Mems: mems},
		root:    newGroup(nil, "", f),
		procs:   map[int]*process{},
		lastPID: 1000,
	}
	t.root.values.Cpuset = t.machine
	return t
}

// TakeAny makes Move accept processes that the tree has not spawned, such as a
// caller's real ones, and returns the tree. They are noted and not confined, and
// Remove forgets them where a kernel would kill them.
func (t *Tree) TakeAny() *Tree {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.takeAny = true
	return t
}

// V1 gives the facts of a machine with cgroup v1, V2 those of one with v2; both
// have huge pages of 2 MiB and 1 GiB.
func V1() cgroup.Facts { return facts(cgroup.V1) }

// V2 is described at V1.
func V2() cgroup.Facts { return facts(cgroup.V2) }

func facts(v cgroup.Version) cgroup.Facts {
	return cgroup.Facts{
		Version:       v,
		Driver:        cgroup.Cgroupfs,
		PageBytes:     4096,
		HugePageSizes: []int64{2 << 20, 1 << 30},
		Controllers:   []string{"cpu", "cpuset", "freezer", "hugetlb", "memory", "pids"},
		SwapLimits:    true,
		MovesMemory:   true,
	}
}

// Facts returns what the tree was made with.
func (t *Tree) Facts() cgroup.Facts { return t.facts }

// find returns a group, nil if there is none of that name.
func (t *Tree) find(name cgroup.Name) *group {
	g := t.root
	for _, c := range name {
		if g = g.children[c]; g == nil {
			return nil
		}
	}
	return g
}

// CutOff leaves a cgroup as a removal does that was killed half way: frozen, and with
// a limit of no process.
func (t *Tree) CutOff(name cgroup.Name) {
	t.mu.Lock()
	defer t.mu.Unlock()
	g := t.find(name)
	g.values.Frozen, g.values.PIDs = new(true), new(int64(0))
}

// Break makes a cgroup invalid, as when a controller is taken from it.
func (t *Tree) Break(name cgroup.Name, reason string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.find(name).lacks = reason
}

// SetOnline sets the CPUs of the machine that are online. On v1 the kernel takes the others
// out of all sets permanently, and moves the processes of a set that is empty to the nearest
// one above, in that hierarchy; on v2 sets stay as they are written, and one without a CPU that is online
// means all that its parent has.
func (t *Tree) SetOnline(cpus cpuset.Set) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.machine.CPUs, t.root.values.CPUs = cpus, cpus
	if t.facts.Version == cgroup.V1 {
		for _, g := range t.root.children {
			g.takeOffline(t.machine)
		}
	}
}

// SetNodes sets the memory nodes that the machine has. On v1 the kernel takes the others out of all
// sets permanently, as SetOnline does with CPUs.
func (t *Tree) SetNodes(nodes numa.Mask) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.machine.Mems, t.root.values.Mems = nodes, nodes
	if t.facts.Version == cgroup.V1 {
		for _, g := range t.root.children {
			g.takeOffline(t.machine)
		}
	}
}

// RunsOn reports where a process may run.
func (t *Tree) RunsOn(pid int) cpuset.Set {
	t.mu.Lock()
	defer t.mu.Unlock()
	if moved := t.procs[pid].cpuset; moved != nil {
		return moved.effective(t.facts).CPUs
	}
	return t.procs[pid].group.effective(t.facts).CPUs
}

// UseMemory sets what a cgroup uses.
func (t *Tree) UseMemory(name cgroup.Name, bytes int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.find(name).memory = bytes
}

// begin holds the arguments that all calls share against the port's contract.
func begin(ctx context.Context, doing string, name cgroup.Name) error {
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("%s cgroup %s: %w", doing, name, err)
	}
	if err := name.Check(); err != nil {
		return fmt.Errorf("%s: %w", doing, err)
	}
	return nil
}
