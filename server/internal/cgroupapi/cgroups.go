package cgroupapi

import (
	"context"

	"github.com/berthd/berth/managers/cgroup"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/server/internal/reconcile"
)

// Cgroups are the calls for single cgroups.
type Cgroups struct {
	*reconcile.Loop
	// Alone excludes the pod to which the cgroup belongs: a pod during its admission has a
	// cgroup before it is in the ledger.
	Alone reconcile.Alone
	// Unseen means that the tree is not the kernel's, so it shows no processes.
	Unseen bool
}

// Change writes the values of a cgroup that differ. With create, a missing cgroup is
// created, with a limit of 0 for huge pages that are not mentioned, and an invalid one is
// repaired. Without create, a missing cgroup is an error of class NotFound. It returns the
// ops carried out.
func (c *Cgroups) Change(ctx context.Context, node cgroup.Node, create bool) (done []cgroup.Op, err error) {
	err = c.alone(ctx, node.Name, func(ctx context.Context) (err error) {
		done, err = c.change(ctx, node, create)
		return err
	})
	return done, err
}

// change is Change; the caller excludes the pod.
func (c *Cgroups) change(ctx context.Context, node cgroup.Node, create bool) (ops []cgroup.Op, err error) {
	err = c.Turn(ctx, func(t reconcile.Turn) error {
		if ops, err = c.plan(ctx, t, node, create); err != nil {
			return err
		}
		return t.Apply(ctx, ops)
	})
	return ops, err
}

// PlanChange returns the ops of Change without carrying them out.
func (c *Cgroups) PlanChange(ctx context.Context, node cgroup.Node, create bool) (ops []cgroup.Op, err error) {
	err = c.Turn(ctx, func(t reconcile.Turn) error { ops, err = c.plan(ctx, t, node, create); return err })
	return ops, err
}

func (c *Cgroups) plan(ctx context.Context, t reconcile.Turn, node cgroup.Node, create bool) ([]cgroup.Op, error) {
	if err := c.mine(t, node.Name); err != nil {
		return nil, err
	}
	seen, err := t.Observe(ctx, []cgroup.Node{node})
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

// Destroy kills the processes in a cgroup, and removes it.
func (c *Cgroups) Destroy(ctx context.Context, name cgroup.Name) error {
	return c.alone(ctx, name, func(ctx context.Context) error { return c.destroy(ctx, name) })
}

// destroy is Destroy; the caller excludes the pod.
func (c *Cgroups) destroy(ctx context.Context, name cgroup.Name) error {
	if err := c.removable(ctx, name); err != nil {
		return err
	}
	return c.RemoveCgroup(ctx, name)
}

// alone runs do while no operation on the pod of a cgroup is in progress; immediately if
// the cgroup belongs to no pod.
func (c *Cgroups) alone(ctx context.Context, name cgroup.Name, do func(context.Context) error) error {
	for n := name; len(n) > 0; n = n.Parent() {
		if uid, ok := c.Layout.PodUID(n); ok {
			return c.Alone(ctx, uid, func(ctx context.Context, _ *ledger.View) error { return do(ctx) })
		}
	}
	return do(ctx)
}

// Look observes a cgroup of berth, or one named in the configuration.
func (c *Cgroups) Look(ctx context.Context, name cgroup.Name) (cgroup.Observed, error) {
	if err := c.inside(name); err != nil {
		return cgroup.Observed{}, err
	}
	seen, err := c.TreeOf(name).Observe(ctx, name, 0)
	if err != nil {
		return cgroup.Observed{}, err
	}
	return seen.Find(name), nil
}

// Procs returns the processes of a cgroup and of those below it, ascending.
func (c *Cgroups) Procs(ctx context.Context, name cgroup.Name) ([]int, error) {
	if err := c.inside(name); err != nil {
		return nil, err
	}
	return c.TreeOf(name).Procs(ctx, name)
}
