package memtree

import (
	"context"
	"maps"
	"slices"

	"github.com/berthd/berth/managers/cgroup"
	"github.com/berthd/berth/managers/errdefs"
)

var _ cgroup.Tree = (*Tree)(nil)

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
