package reconcile

import (
	"context"
	"fmt"
	"slices"

	"github.com/berthd/berth/managers/cgroup"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/workload"
)

// Manual implements manual operations on single cgroups.
type Manual struct {
	Loop *Loop
	// Alone excludes the pod to which the cgroup belongs: a pod during its admission has a
	// cgroup before it is in the ledger.
	Alone Alone
}

// Change writes the values of a cgroup that differ. With create, a missing cgroup is
// created, with a limit of 0 for huge pages that are not mentioned, and an invalid one is
// repaired. Without create, a missing cgroup is an error of class NotFound. It returns the
// ops carried out.
func (m *Manual) Change(ctx context.Context, node cgroup.Node, create bool) (done []cgroup.Op, err error) {
	err = m.alone(ctx, node.Name, func(ctx context.Context) (err error) {
		done, err = m.Loop.change(ctx, node, create)
		return err
	})
	return done, err
}

// Destroy kills the processes in a cgroup, and removes it.
func (m *Manual) Destroy(ctx context.Context, name cgroup.Name) error {
	return m.alone(ctx, name, func(ctx context.Context) error { return m.Loop.destroy(ctx, name) })
}

// alone runs do while no operation on the pod of a cgroup is in progress; immediately if
// the cgroup belongs to no pod.
func (m *Manual) alone(ctx context.Context, name cgroup.Name, do func(context.Context) error) error {
	for n := name; len(n) > 0; n = n.Parent() {
		if uid, ok := m.Loop.Layout.PodUID(n); ok {
			return m.Alone(ctx, uid, func(ctx context.Context, _ *ledger.View) error { return do(ctx) })
		}
	}
	return do(ctx)
}

// managed returns why a cgroup must not be written by hand; empty if it may. The caller
// holds mu.
func (l *Loop) managed(view *ledger.View, name cgroup.Name) string {
	for _, class := range workload.QoSClasses {
		if name.Equal(l.Layout.Tier(class)) {
			return "it is the parent of pods; its values follow from them and from the configuration"
		}
	}
	if slices.ContainsFunc(l.Reserved, func(n cgroup.Node) bool { return n.Name.Equal(name) }) {
		return "its limits follow from the configuration (node.enforceNodeAllocatable)"
	}
	for id, at := range l.cgroups {
		if name.Within(at) {
			return "it belongs to container " + id + " of the container runtime"
		}
	}
	if uid, ok := l.Layout.PodUID(name); ok {
		if p, here := view.Pod(uid); here && name.Parent().Equal(l.Layout.Tier(p.QoS)) {
			return "it belongs to an admitted pod: use Resize or Remove"
		}
	}
	for b := range view.Bindings() {
		if b.Own && l.Layout.Driver().Parse(b.CgroupPath).Equal(name) {
			return "it belongs to a container of an admitted pod: use Resize or Remove"
		}
	}
	return ""
}

// mine refuses cgroups that must not be written by hand. The caller holds mu.
func (l *Loop) mine(name cgroup.Name) error {
	if err := l.inside(name); err != nil {
		return err
	}
	if why := l.managed(l.View(), name); why != "" {
		return errdefs.Preconditionf("cgroup %s cannot be written: %s", name, why)
	}
	return nil
}

// Look observes a cgroup of berth, or one named in the configuration.
func (l *Loop) Look(ctx context.Context, name cgroup.Name) (cgroup.Observed, error) {
	if err := l.inside(name); err != nil {
		return cgroup.Observed{}, err
	}
	seen, err := l.treeOf(name).Observe(ctx, name, 0)
	if err != nil {
		return cgroup.Observed{}, err
	}
	return seen.Find(name), nil
}

// Procs returns the processes of a cgroup and of those below it, ascending.
func (l *Loop) Procs(ctx context.Context, name cgroup.Name) ([]int, error) {
	if err := l.inside(name); err != nil {
		return nil, err
	}
	return l.treeOf(name).Procs(ctx, name)
}

// change is Manual's Change; the caller excludes the pod.
func (l *Loop) change(ctx context.Context, node cgroup.Node, create bool) ([]cgroup.Op, error) {
	if err := l.enter(ctx); err != nil {
		return nil, err
	}
	defer l.mu.Unlock()
	ops, err := l.planChange(ctx, node, create)
	if err != nil {
		return nil, err
	}
	return ops, l.apply(ctx, ops).err
}

// PlanChange returns the ops of Manual's Change without carrying them out.
func (l *Loop) PlanChange(ctx context.Context, node cgroup.Node, create bool) ([]cgroup.Op, error) {
	if err := l.enter(ctx); err != nil {
		return nil, err
	}
	defer l.mu.Unlock()
	return l.planChange(ctx, node, create)
}

func (l *Loop) planChange(ctx context.Context, node cgroup.Node, create bool) ([]cgroup.Op, error) {
	if err := l.mine(node.Name); err != nil {
		return nil, err
	}
	seen, err := l.observe(ctx, []cgroup.Node{node})
	if err != nil {
		return nil, err
	}
	switch o := seen.Find(node.Name); {
	case create && o.State == cgroup.Absent:
		none := make(map[int64]int64, len(seen.Facts.HugePageSizes))
		for _, size := range seen.Facts.HugePageSizes {
			none[size] = 0
		}
		node.Values = cgroup.Values{HugePages: none}.Merge(node.Values)
	case o.State == cgroup.Absent:
		return nil, errdefs.NotFoundf("cgroup %s is absent", node.Name).Coded(errdefs.CgroupNotFound)
	case !create && o.State == cgroup.Invalid:
		return nil, errdefs.Preconditionf("cgroup %s %s", node.Name, o.Reason)
	}
	return cgroup.Diff([]cgroup.Node{node}, seen), nil
}

// destroy is Manual's Destroy; the caller excludes the pod.
func (l *Loop) destroy(ctx context.Context, name cgroup.Name) error {
	if err := l.removable(ctx, name); err != nil {
		return err
	}
	return l.remove(ctx, name)
}

// UpdateTiers writes the values of tiers that differ, and returns the ops.
func (l *Loop) UpdateTiers(ctx context.Context) ([]cgroup.Op, error) {
	if err := l.enter(ctx); err != nil {
		return nil, err
	}
	defer l.mu.Unlock()
	nodes := l.tiers(l.expected(l.View()))
	seen, err := l.observe(ctx, nodes)
	if err != nil {
		return nil, err
	}
	ops := cgroup.Diff(nodes, seen)
	for _, op := range ops {
		l.drift.forget(op.Name)
	}
	return ops, l.apply(ctx, ops).err
}

// Entry is a cgroup in a Report.
type Entry struct {
	cgroup.Observed
	// Managed cgroups have values from the ledger or the configuration.
	Managed bool
	// Pending are the ops that would give the cgroup its wanted values.
	Pending []cgroup.Op
}

// Report compares the tree with its wanted values.
type Report struct {
	// Entries, parents before children; the reserved cgroups come last. They include
	// missing cgroups.
	Entries []Entry
	// Drifts, the newest last.
	Drifts []Drift
}

// Report compares the tree with the current view. It changes nothing.
func (l *Loop) Report(ctx context.Context) (Report, error) {
	if err := l.enter(ctx); err != nil {
		return Report{}, err
	}
	defer l.mu.Unlock()
	p, err := l.plan(ctx, l.View())
	if err != nil {
		return Report{}, fmt.Errorf("report on cgroups: %w", err)
	}
	pending := map[string][]cgroup.Op{}
	for _, op := range p.differs {
		pending[op.Name.String()] = append(pending[op.Name.String()], op)
	}
	wanted := make(map[string]bool, len(p.desired))
	for _, n := range p.desired {
		wanted[n.Name.String()] = true
	}
	out := Report{Drifts: l.drifts()}
	seen := make(map[string]bool, len(p.seen.Nodes))
	for _, o := range p.seen.Nodes {
		key := o.Name.String()
		if l.NoPodCgroups && o.State == cgroup.Absent && !wanted[key] {
			continue // the cgroup of all pods, which is not created
		}
		seen[key] = true
		out.Entries = append(out.Entries, Entry{Observed: o, Managed: wanted[key], Pending: pending[key]})
	}
	for _, n := range p.desired {
		if key := n.Name.String(); !seen[key] {
			out.Entries = append(out.Entries, Entry{Observed: cgroup.Observed{Name: n.Name}, Managed: true, Pending: pending[key]})
		}
	}
	return out, nil
}
