package memtree

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/berthd/berth/managers/cgroup"
	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/errdefs"
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

var _ cgroup.Tree = (*Tree)(nil)

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

// Observe implements cgroup.Tree.
func (t *Tree) Observe(ctx context.Context, name cgroup.Name, depth int) (*cgroup.Snapshot, error) {
	if err := begin(ctx, "observe", name); err != nil {
		return nil, err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	s := &cgroup.Snapshot{Facts: t.facts}
	if g := t.find(name); g != nil {
		t.observe(g, depth, s)
	} else {
		s.Nodes = []cgroup.Observed{{Name: name}}
	}
	return s, nil
}

func (t *Tree) observe(g *group, depth int, s *cgroup.Snapshot) {
	o := cgroup.Observed{
		Name:             g.name,
		State:            cgroup.Valid,
		Reason:           g.lacks,
		Values:           g.values.Clone(),
		Effective:        g.effective(t.facts),
		MemoryUsageBytes: g.memory,
		Populated:        len(g.procs) > 0,
	}
	if g.lacks != "" {
		o.State = cgroup.Invalid
	}
	s.Nodes = append(s.Nodes, o)
	if depth == 0 {
		return
	}
	for _, c := range slices.Sorted(maps.Keys(g.children)) {
		t.observe(g.children[c], depth-1, s)
	}
}

// Ensure implements cgroup.Tree.
func (t *Tree) Ensure(ctx context.Context, node cgroup.Node) (created bool, err error) {
	if err := begin(ctx, "ensure", node.Name); err != nil {
		return false, err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	g := t.root
	for _, c := range node.Name {
		child := g.children[c]
		created = child == nil
		if created {
			if t.facts.Version == cgroup.V2 && g.parent != nil && len(g.procs) > 0 {
				return false, errdefs.Preconditionf("create cgroup %s: %s holds processes and so cannot hand controllers down: %w",
					node.Name, g.name, errBusy)
			}
			child = newGroup(g, c, t.facts)
			g.children[c] = child
		}
		g = child
		g.lacks = ""
		if t.facts.Version == cgroup.V1 {
			g.inherit()
		}
	}
	before := g.values.Mems
	if err := g.write(node.Values, t.facts, t.machine); err != nil {
		if created {
			delete(g.parent.children, node.Name.Base())
		}
		return false, err
	}
	if g.values.Mems != before {
		t.migrate(g)
	}
	return created, nil
}

// Move implements cgroup.Tree.
func (t *Tree) Move(ctx context.Context, name cgroup.Name, pids ...int) error {
	if err := begin(ctx, "move", name); err != nil {
		return err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	g := t.find(name)
	if g == nil {
		return errdefs.NotFoundf("move processes into cgroup %s: %w", name, errNoEntry)
	}
	if t.facts.Version == cgroup.V2 && g.parent != nil && len(g.children) > 0 {
		return errdefs.Preconditionf("move processes into cgroup %s: it hands controllers to its children: %w", name, errBusy)
	}
	if len(pids) > 0 && (g.effective(t.facts).CPUs.IsEmpty() || g.effective(t.facts).Mems.IsEmpty()) {
		return errdefs.Unavailablef("move processes into cgroup %s: it has no CPUs or memory nodes: %w", name, errNoSpace)
	}
	for _, pid := range pids {
		p := t.procs[pid]
		if p == nil && t.takeAny {
			p = t.adopt(pid)
		}
		if p == nil {
			return errdefs.NotFoundf("move process %d into cgroup %s: no such process", pid, name)
		}
		delete(p.group.procs, pid)
		p.group, p.cpuset = g, nil
		g.procs[pid] = p
	}
	return nil
}

// Procs implements cgroup.Tree.
func (t *Tree) Procs(ctx context.Context, name cgroup.Name) ([]int, error) {
	if err := begin(ctx, "list processes of", name); err != nil {
		return nil, err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.find(name).pids(), nil
}

// Frozen implements cgroup.Tree.
func (t *Tree) Frozen(ctx context.Context, name cgroup.Name) (by cgroup.Name, err error) {
	if err := begin(ctx, "read the freezer of", name); err != nil {
		return nil, err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for g := t.find(name); g != nil; g = g.parent {
		if *g.values.Frozen {
			return g.name, nil
		}
	}
	return nil, nil
}

// CutOff leaves a cgroup as a removal does that was killed half way: frozen, and with
// a limit of no process.
func (t *Tree) CutOff(name cgroup.Name) {
	t.mu.Lock()
	defer t.mu.Unlock()
	g := t.find(name)
	g.values.Frozen, g.values.PIDs = new(true), new(int64(0))
}

// Remove implements cgroup.Tree. A process that refuses to die stands for one
// that outlives the deadline.
func (t *Tree) Remove(ctx context.Context, name cgroup.Name) error {
	if err := begin(ctx, "remove", name); err != nil {
		return err
	}
	if name.IsRoot() {
		return errdefs.Invalidf("remove cgroup %s: the root cannot be removed", name)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	g := t.find(name)
	if g == nil {
		return nil
	}
	t.killAll(g)
	if left := g.pids(); len(left) > 0 {
		return errdefs.Deadlinef("remove cgroup %s: processes %v are still there", name, left)
	}
	delete(g.parent.children, name.Base())
	return nil
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
