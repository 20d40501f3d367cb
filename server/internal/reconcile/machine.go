package reconcile

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/berthd/berth/managers/cgroup"
	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/ledger"
)

// machineChanged returns whether a view is on another machine than the last one, and notes the CPUs that
// have come on line. Containers with offline CPUs run on the shared CPUs meanwhile
// (ledger.View.RunsOn). All CPUs of pods may have come back while no berthd ran. The caller holds mu.
func (l *Loop) machineChanged(view *ledger.View) bool {
	last, now := l.machine, view.Machine()
	if last == now {
		return false
	}
	l.machine = now
	if last == nil {
		l.returned = view.SharedCPUs().Union(view.ExclusiveCPUs())
		return false
	}
	l.returned = l.returned.Union(now.CPUs().Minus(last.CPUs()))
	return true
}

// v1 returns whether the kernel removes offline CPUs from all sets and does not restore
// them.
func (l *Loop) v1() bool { return l.QoS.Cgroup.Facts.Version == cgroup.V1 }

// widen removes offline CPUs from the wanted sets, and adds CPUs that came on line to all
// cgroups that have the same set as their parents. v1 accepts no set with an offline CPU,
// or with a CPU that the parent lacks. The cgroups above the pods are written immediately.
// The caller holds mu.
func (l *Loop) widen(ctx context.Context, view *ledger.View, p *plan) error {
	online := view.Machine().CPUs()
	for i := range p.desired {
		p.desired[i].Values.CPUs = p.desired[i].Values.CPUs.Intersect(online)
	}
	back := l.returned.Intersect(online)
	if !l.v1() || back.IsEmpty() {
		return nil
	}
	pods := l.Layout.Pods()
	for depth := 1; depth < len(pods); depth++ {
		above := pods[:depth]
		seen, err := l.Tree.Observe(ctx, above, 0)
		if err != nil {
			return fmt.Errorf("observe cgroup %s: %w", above, err)
		}
		if more, ok := lacking(seen.Find(above), back); ok {
			node := cgroup.Node{Name: above, Values: cgroup.Values{Cpuset: cgroup.Cpuset{CPUs: more}}}
			if _, err := l.Tree.Ensure(ctx, node); err != nil {
				return err
			}
		}
	}
	for i := range p.desired {
		n := &p.desired[i]
		if !n.Values.CPUs.IsEmpty() || !n.Name.Within(pods) {
			continue
		}
		if more, ok := lacking(p.seen.Find(n.Name), back); ok {
			n.Values.CPUs = more
		}
	}
	return nil
}

// lacking returns the CPUs of a cgroup with others added; false if it has them, or does not
// exist.
func lacking(o cgroup.Observed, others cpuset.Set) (more cpuset.Set, ok bool) {
	if o.State != cgroup.Valid || others.IsSubsetOf(o.Values.CPUs) {
		return cpuset.Set{}, false
	}
	return o.Values.CPUs.Union(others), true
}

// gather moves processes back to the cgroups of containers whose CPUs went offline: v1
// moves them to the nearest parent with CPUs, in this hierarchy only. The caller holds mu.
func (l *Loop) gather(ctx context.Context, view *ledger.View, g runtimeContainers) error {
	online := view.Machine().CPUs()
	if !l.v1() || view.ExclusiveCPUs().IsSubsetOf(online) {
		return nil
	}
	lost := func(owner ledger.Owner) bool {
		set, _, _ := view.ContainerCPUs(owner)
		return !set.IsSubsetOf(online)
	}
	var names []cgroup.Name
	for b := range view.Bindings() {
		if b.Own && b.CgroupPath != "" && lost(b.Owner) {
			names = append(names, l.Layout.Driver().Parse(b.CgroupPath))
		}
	}
	for _, c := range g.all {
		if c.runs && lost(c.owner) {
			names = append(names, c.name)
		}
	}
	var errs []error
	for _, name := range slices.CompactFunc(names, cgroup.Name.Equal) {
		pids, err := l.Tree.Procs(ctx, name)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		for _, pid := range pids {
			if err := l.Tree.Move(ctx, name, pid); err != nil && errdefs.ClassOf(err) != errdefs.NotFound {
				errs = append(errs, err)
			}
		}
	}
	return errors.Join(errs...)
}
