package reconcile

import (
	"context"
	"fmt"
	"slices"

	"github.com/berthd/berth/managers/cgroup"
	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/ledger/check"
)

// kernel reads cgroups, and knows what their values mean. It has no state. The only values that it writes are those without
// which no process runs.
type kernel struct {
	cfg   *Config // its Limits are guarded by Loop.mu
	names names
}

// treeOf returns the tree through which a cgroup is accessed.
func (k kernel) treeOf(name cgroup.Name) cgroup.Tree {
	if k.cfg.Plain != nil && slices.ContainsFunc(k.cfg.Listed, func(o Listed) bool { return o.Plain && o.Name.Equal(name) }) {
		return k.cfg.Plain
	}
	return k.cfg.Tree
}

// v1 returns whether the kernel removes offline CPUs from all sets and does not restore
// them.
func (k kernel) v1() bool { return k.cfg.QoS.Cgroup.Facts.Version == cgroup.V1 }

// allowed returns the CPUs on which the processes of a cgroup may run. On v2 a set without a CPU
// online means the CPUs of the parent. On v1 the kernel moves the processes of such a cgroup to a
// parent, in this hierarchy only.
func (k kernel) allowed(o cgroup.Observed) cpuset.Set {
	switch set := o.Values.CPUs.Union(o.Effective.CPUs); {
	case !set.IsEmpty():
		return set
	case k.v1() && !o.Populated:
		return cpuset.Set{} // no process can be in it
	}
	return k.cfg.View().Machine().CPUs()
}

// observe observes the cgroups of nodes and none below.
func (k kernel) observe(ctx context.Context, nodes []cgroup.Node) (*cgroup.Snapshot, error) {
	all := &cgroup.Snapshot{Facts: k.cfg.QoS.Cgroup.Facts}
	for _, n := range nodes {
		seen, err := k.treeOf(n.Name).Observe(ctx, n.Name, 0)
		if err != nil {
			return nil, fmt.Errorf("observe cgroup %s: %w", n.Name, err)
		}
		all.Nodes = append(all.Nodes, seen.Nodes...)
	}
	return all, nil
}

// observeInside observes the cgroups of nodes, and on v1 also everything below those
// that confine it.
func (k kernel) observeInside(ctx context.Context, nodes []cgroup.Node, confines func(cgroup.Name) bool) (*cgroup.Snapshot, error) {
	if !k.v1() {
		return k.observe(ctx, nodes)
	}
	all := &cgroup.Snapshot{Facts: k.cfg.QoS.Cgroup.Facts}
	for _, n := range nodes {
		depth := 0
		if confines(n.Name) {
			depth = -1
		}
		seen, err := k.cfg.Tree.Observe(ctx, n.Name, depth)
		if err != nil {
			return nil, fmt.Errorf("observe cgroup %s: %w", n.Name, err)
		}
		all.Nodes = append(all.Nodes, seen.Nodes...)
	}
	return all, nil
}

// elsewhere observes containers outside the pods' cgroups.
func (k kernel) elsewhere(ctx context.Context, g runtimeContainers, seen *cgroup.Snapshot) error {
	for _, c := range g.all {
		if !c.runs || c.name.Within(k.cfg.Layout.Pods()) {
			continue
		}
		o, err := k.cfg.Tree.Observe(ctx, c.name, 0)
		if err != nil {
			return fmt.Errorf("observe the cgroup of container %s: %w", c.owner, err)
		}
		seen.Nodes = append(seen.Nodes, o.Nodes...)
	}
	return nil
}

// revive repairs an existing cgroup, which may be left from an interrupted removal.
func (k kernel) revive(ctx context.Context, node cgroup.Node) error {
	seen, err := k.cfg.Tree.Observe(ctx, node.Name, 0)
	if err != nil {
		return err
	}
	return cgroup.Apply(ctx, k.cfg.Tree, cgroup.Diff([]cgroup.Node{node}, seen))
}

// thawed makes sure that a process moved into a cgroup of a pod can run. It thaws the
// cgroups up to the pod's own. A frozen one above is an error of class Precondition.
func (k kernel) thawed(ctx context.Context, pod, name cgroup.Name) error {
	var by cgroup.Name
	for range len(name) - len(pod) + 2 {
		var err error
		if by, err = k.cfg.Tree.Frozen(ctx, name); err != nil || by == nil {
			return err
		}
		if !by.Within(pod) {
			break
		}
		frozen := false
		if _, err := k.cfg.Tree.Ensure(ctx, cgroup.Node{Name: by, Values: cgroup.Values{Frozen: &frozen}}); err != nil {
			return err
		}
	}
	return errdefs.Preconditionf("cgroup %s is frozen, so no process in it runs: thaw it", k.names.pathOf(by))
}

// frozenAbove returns findings for frozen cgroups above pods. Diff thaws the pods' own
// cgroups.
func (k kernel) frozenAbove(ctx context.Context, tiers []cgroup.Node) ([]check.Finding, error) {
	var out []check.Finding
	var last cgroup.Name
	for _, tier := range tiers {
		by, err := k.cfg.Tree.Frozen(ctx, tier.Name)
		if err != nil {
			return nil, err
		}
		if by == nil || by.Equal(last) {
			continue
		}
		last = by
		out = append(out, check.Finding{Kind: kindKernel, Rule: ruleFrozen, Text: fmt.Sprintf(
			"cgroup %s is frozen, so no pod in it runs, and none is started: thaw it", k.names.pathOf(by))})
	}
	return out, nil
}

// alive returns the cgroup of a container that a runtime created, if it has processes,
// without a call to the runtime; nil if none is visible. last is where it was, nil if unknown.
func (k kernel) alive(ctx context.Context, view *ledger.View, b ledger.Binding, last cgroup.Name) (cgroup.Name, error) {
	var candidates []cgroup.Name
	if last != nil {
		candidates = append(candidates, last)
	}
	_, pod, err := k.names.pod(view, b.Owner.Pod)
	if err != nil {
		return nil, err
	}
	inside, err := k.cfg.Tree.Observe(ctx, pod, 1)
	if err != nil {
		return nil, err
	}
	for _, o := range inside.Nodes {
		if !o.Name.Equal(pod) && isCalled(o.Name, b.ID) {
			candidates = append(candidates, o.Name)
		}
	}
	for _, name := range candidates {
		pids, err := k.cfg.Tree.Procs(ctx, name)
		if err != nil {
			return nil, err
		}
		if len(pids) > 0 {
			return name, nil
		}
	}
	return nil, nil
}
