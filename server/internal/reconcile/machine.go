package reconcile

import (
	"context"
	"errors"
	"fmt"

	"github.com/berthd/berth/managers/cgroup"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/placement"
)

// machineChanged returns whether a view is on another machine than the last one, and notes the CPUs and
// NUMA nodes that have come online. Containers with offline CPUs run on the shared CPUs meanwhile
// (ledger.View.RunsOn). All CPUs of pods and all nodes may have come, or come back, while no berthd ran. The caller holds mu.
func (l *Loop) machineChanged(view *ledger.View) bool {
	last, now := l.machine, view.Machine()
	if last == now {
		return false
	}
	l.machine = now
	if last == nil {
		l.returned = cgroup.Cpuset{CPUs: view.SharedCPUs().Union(view.ExclusiveCPUs()), Mems: now.MemoryNodeMask()}
		return false
	}
	if !last.CPUs().IsSubsetOf(now.CPUs()) || !last.MemoryNodeMask().IsSubsetOf(now.MemoryNodeMask()) {
		l.emptied()
	}
	l.returned.CPUs = l.returned.CPUs.Union(now.CPUs().Minus(last.CPUs()))
	l.returned.Mems = l.returned.Mems.Union(now.MemoryNodeMask().Minus(last.MemoryNodeMask()))
	return true
}

// v1 returns whether the kernel removes offline CPUs from all sets and does not restore
// them.
func (l *Loop) v1() bool { return l.QoS.Cgroup.Facts.Version == cgroup.V1 }

// widen removes offline CPUs from the wanted sets, and adds CPUs and NUMA nodes that came online
// to all cgroups that have the same set as their parents. v1 accepts no set with an offline CPU,
// or with a CPU or node that the parent lacks. The cgroups above the pods are written immediately.
// The caller holds mu.
func (l *Loop) widen(ctx context.Context, view *ledger.View, p *plan) error {
	m := view.Machine()
	for i := range p.desired {
		p.desired[i].Values.CPUs = p.desired[i].Values.CPUs.Intersect(m.CPUs())
	}
	back := cgroup.Cpuset{CPUs: l.returned.CPUs.Intersect(m.CPUs()), Mems: l.returned.Mems.Intersect(m.MemoryNodeMask())}
	if !l.v1() || back == (cgroup.Cpuset{}) {
		return nil
	}
	pods := l.Layout.Pods()
	for depth := 1; depth < len(pods); depth++ {
		above := pods[:depth]
		seen, err := l.Tree.Observe(ctx, above, 0)
		if err != nil {
			return fmt.Errorf("observe cgroup %s: %w", above, err)
		}
		if more := lacking(seen.Find(above), back); more != (cgroup.Cpuset{}) {
			node := cgroup.Node{Name: above, Values: cgroup.Values{Cpuset: more}}
			if _, err := l.Tree.Ensure(ctx, node); err != nil {
				return err
			}
		}
	}
	for i := range p.desired {
		n := &p.desired[i]
		if !n.Name.Within(pods) {
			continue
		}
		more := lacking(p.seen.Find(n.Name), back)
		if n.Values.CPUs.IsEmpty() {
			n.Values.CPUs = more.CPUs
		}
		if n.Values.Mems.IsEmpty() {
			n.Values.Mems = more.Mems
		}
	}
	return nil
}

// lacking returns the CPUs and nodes of a cgroup with others added; empty if it has them, or does
// not exist.
func lacking(o cgroup.Observed, others cgroup.Cpuset) (more cgroup.Cpuset) {
	if o.State != cgroup.Valid {
		return more
	}
	if !others.CPUs.IsSubsetOf(o.Values.CPUs) {
		more.CPUs = o.Values.CPUs.Union(others.CPUs)
	}
	if !others.Mems.IsSubsetOf(o.Values.Mems) {
		more.Mems = o.Values.Mems.Union(others.Mems)
	}
	return more
}

// scattered is a cgroup out of which v1 may have moved processes: to the nearest parent with
// CPUs, in this hierarchy only.
type scattered struct {
	name cgroup.Name
	// settled means that the processes were moved back once, or could not be. The kernel moves
	// them in the background, so the next pass moves them back again.
	settled bool
}

// noteScattered notes a cgroup of a container or a sandbox whose CPUs or NUMA nodes went offline,
// although all may be online again. The kernel may not have emptied the sets yet: it does that in the
// background. The caller holds mu.
func (l *Loop) noteScattered(g runtimeContainers, o *cgroup.Observed) {
	if !l.v1() || l.machine == nil || o.Values.CPUs.Overlaps(l.machine.CPUs()) && o.Values.Mems.Overlaps(l.machine.MemoryNodeMask()) {
		return
	}
	key := o.Name.String()
	_, runs := g.at(key)
	if c, known := l.tracker.Get(ofCgroup(o.Name)); runs || known && c.Phase != placement.Planned {
		l.scattered[key] = scattered{name: o.Name}
	}
}

// emptied requests that the next pass moves the processes of all containers back: the kernel may have moved them out of a
// set without CPUs or NUMA nodes that berthd has filled again since, before a look at it. The caller holds mu.
func (l *Loop) emptied() { l.gathered, l.justLost = false, true }

// scatterAll notes the cgroups of all containers and sandboxes: an earlier berthd may have ended
// after it wrote their CPUs, and before it moved their processes back. The caller holds mu.
func (l *Loop) scatterAll(g runtimeContainers) {
	note := func(name cgroup.Name) { l.scattered[name.String()] = scattered{name, !l.justLost} }
	for b := range l.tracker.view.Bindings() {
		if b.Own && b.CgroupPath != "" {
			note(l.Layout.Driver().Parse(b.CgroupPath))
		}
	}
	for _, c := range g.all {
		if c.runs {
			note(c.name)
		}
	}
	for _, s := range l.sharers.all(nil) {
		note(s.name)
	}
}

// gather moves processes back to scattered cgroups that have CPUs again. whole is true in a pass,
// which has observed all of them. The caller holds mu.
func (l *Loop) gather(ctx context.Context, g runtimeContainers, whole bool) error {
	if !l.v1() {
		return nil
	}
	if whole && !l.gathered {
		l.scatterAll(g)
		l.gathered, l.justLost = true, false
	}
	var errs []error
	for key, s := range l.scattered {
		if s.settled && !whole {
			continue
		}
		seen, err := l.Tree.Observe(ctx, s.name, 0)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		switch o := seen.Find(s.name); {
		case o.State == cgroup.Absent:
			delete(l.scattered, key)
			continue
		case o.Values.CPUs.IsEmpty() || o.Values.Mems.IsEmpty():
			l.scattered[key] = scattered{s.name, true} // no process can be moved there
			continue
		}
		if err := l.gatherOne(ctx, s.name); err != nil {
			errs = append(errs, err)
			l.tracker.elsewhereOnV1(g, key)
			continue
		}
		if s.settled {
			delete(l.scattered, key)
		} else {
			l.scattered[key] = scattered{s.name, true}
		}
	}
	return errors.Join(errs...)
}

func (l *Loop) gatherOne(ctx context.Context, name cgroup.Name) error {
	pids, err := l.Tree.Procs(ctx, name)
	if err != nil {
		return err
	}
	for _, pid := range pids {
		if err := l.Tree.Move(ctx, name, pid); err != nil && errdefs.ClassOf(err) != errdefs.NotFound {
			return err
		}
	}
	return nil
}
