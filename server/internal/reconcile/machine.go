package reconcile

import (
	"context"
	"fmt"

	"github.com/berthd/berth/managers/cgroup"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/machine"
	"github.com/berthd/berth/managers/placement"
)

// hotplug follows CPUs and NUMA nodes that go offline and come online. Guarded by Loop.mu.
type hotplug struct {
	shared
	sharers *sharers
	// machine is the machine of the last view, and returned are CPUs and NUMA nodes that have
	// come online since the first one.
	machine  *machine.Topology
	returned cgroup.Cpuset
	scatter  scatter
}

// machineChanged returns whether a view is on another machine than the last one, and notes the CPUs and
// NUMA nodes that have come online. Containers with offline CPUs run on the shared CPUs meanwhile
// (ledger.View.RunsOn). All CPUs of pods and all nodes may have come, or come back, while no berthd ran.
func (h *hotplug) machineChanged(view *ledger.View) bool {
	last, now := h.machine, view.Machine()
	if last == now {
		return false
	}
	h.machine = now
	if last == nil {
		h.returned = cgroup.Cpuset{CPUs: view.SharedCPUs().Union(view.ExclusiveCPUs()), Mems: now.MemoryNodeMask()}
		return false
	}
	if !last.CPUs().IsSubsetOf(now.CPUs()) || !last.MemoryNodeMask().IsSubsetOf(now.MemoryNodeMask()) {
		h.scatter.emptied()
	}
	h.returned.CPUs = h.returned.CPUs.Union(now.CPUs().Minus(last.CPUs()))
	h.returned.Mems = h.returned.Mems.Union(now.MemoryNodeMask().Minus(last.MemoryNodeMask()))
	return true
}

// widen removes offline CPUs from the wanted sets, and adds CPUs and NUMA nodes that came online
// to all cgroups that have the same set as their parents. v1 accepts no set with an offline CPU,
// or with a CPU or node that the parent lacks. The cgroups above the pods are written immediately.
func (h *hotplug) widen(ctx context.Context, view *ledger.View, p *plan) error {
	m := view.Machine()
	for i := range p.desired {
		p.desired[i].Values.CPUs = p.desired[i].Values.CPUs.Intersect(m.CPUs())
	}
	back := cgroup.Cpuset{CPUs: h.returned.CPUs.Intersect(m.CPUs()), Mems: h.returned.Mems.Intersect(m.MemoryNodeMask())}
	if !h.kernel.v1() || back == (cgroup.Cpuset{}) {
		return nil
	}
	pods := h.cfg.Layout.Pods()
	for depth := 1; depth < len(pods); depth++ {
		above := pods[:depth]
		seen, err := h.cfg.Tree.Observe(ctx, above, 0)
		if err != nil {
			return fmt.Errorf("observe cgroup %s: %w", above, err)
		}
		if more := lacking(seen.Find(above), back); more != (cgroup.Cpuset{}) {
			node := cgroup.Node{Name: above, Values: cgroup.Values{Cpuset: more}}
			if _, err := h.cfg.Tree.Ensure(ctx, node); err != nil {
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

// noteScattered notes a cgroup of a container or a sandbox whose CPUs or NUMA nodes went offline,
// although all may be online again. The kernel may not have emptied the sets yet: it does that in the
// background.
func (h *hotplug) noteScattered(g runtimeContainers, o *cgroup.Observed) {
	if !h.kernel.v1() || h.machine == nil ||
		o.Values.CPUs.Overlaps(h.machine.CPUs()) && o.Values.Mems.Overlaps(h.machine.MemoryNodeMask()) {
		return
	}
	_, runs := g.at(o.Name.String())
	if c, known := h.tracker.Get(ofCgroup(o.Name)); runs || known && c.Phase != placement.Planned {
		h.scatter.note(o.Name, false)
	}
}

// gather moves processes back to scattered cgroups that have CPUs again. whole is true in a pass,
// which has observed all of them.
func (h *hotplug) gather(ctx context.Context, g runtimeContainers, whole bool) error {
	if !h.kernel.v1() {
		return nil
	}
	if whole {
		h.scatter.noteAll(func(note func(cgroup.Name)) {
			for b := range h.tracker.view.Bindings() {
				if b.Own && b.CgroupPath != "" {
					note(h.cfg.Layout.Driver().Parse(b.CgroupPath))
				}
			}
			for _, c := range g.all {
				if c.runs {
					note(c.name)
				}
			}
			for _, s := range h.sharers.all(nil) {
				note(s.name)
			}
		})
	}
	return h.scatter.gather(ctx, h.cfg.Tree, whole, func(name string) { h.tracker.elsewhereOnV1(g, name) })
}
