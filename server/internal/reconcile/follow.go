package reconcile

import (
	"context"
	"errors"
	"slices"

	"github.com/berthd/berth/managers/cgroup"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/qos"
)

// subjects are what one operation makes equal to a view.
type subjects struct {
	// whole means everything, also what other programs have changed.
	whole bool
	// uids are the pods whose values may differ from those written last; nil means all.
	uids map[string]bool
	// ids are the runtime's containers that are listed; nil means all.
	ids []string
	// later are cgroups that stay stale: those of leaving pods.
	later map[string]cgroup.Name
}

// Pass makes the tree equal to the current view.
func (l *Loop) Pass(ctx context.Context) error {
	return l.Turn(ctx, func(Turn) error {
		l.lister.takeOver(ctx)
		return l.pass(ctx, l.View())
	})
}

// Follow writes the values that have changed in the ledger since they were last written,
// and reads nothing else. Changes by other programs are left to the next pass. Its time
// grows with the change, not with the tree.
func (l *Loop) Follow(ctx context.Context) error {
	return l.Turn(ctx, func(Turn) error { return l.follow(ctx, l.View(), nil) })
}

// pass makes everything equal to a view. The caller holds mu.
func (l *Loop) pass(ctx context.Context, view *ledger.View) error {
	l.hotplug.machineChanged(view)
	l.lister.trackChanges()
	return l.makeEqual(ctx, view, subjects{whole: true})
}

// follow makes equal to a view what may differ from it, and compares the containers with the ids in also, whose values have not
// changed. The caller holds mu.
func (l *Loop) follow(ctx context.Context, view *ledger.View, also []string) error {
	if l.hotplug.machineChanged(view) || l.drift.kept == nil {
		return l.pass(ctx, view) // sets of cgroups above pods may be wrong, too
	}
	l.lister.trackChanges()
	return l.makeEqual(ctx, view, l.touched(view, also))
}

// makeEqual makes subjects equal to a view. The package comment has the order of its effects. The caller holds mu, and has
// updated the tracker to the current view.
func (l *Loop) makeEqual(ctx context.Context, view *ledger.View, s subjects) error {
	start := l.Now()
	defer l.tracker.countPhases()
	l.lister.removeEnded(ctx, view)
	if s.whole {
		l.sandboxes.endOpenings(ctx, view)
	}
	p, err := l.plan(ctx, view, s)
	var fresh []Drift
	if err == nil {
		if s.whole {
			fresh = l.finish(ctx, view, p)
		}
		err = l.carryOut(ctx, view, p)
		if s.whole {
			l.records.Repair(ctx, view)
		} else {
			l.records.Follow(ctx, view)
		}
	}
	if l.Observe != nil {
		l.Observe(Outcome{Ops: p.ops, Drifts: fresh, Orphans: len(l.orphans), Took: l.Now().Sub(start), Err: err})
	}
	return err
}

// finish reports what the plan of a pass has found, and returns the new drifts. The caller holds mu.
func (l *Loop) finish(ctx context.Context, view *ledger.View, p *plan) (fresh []Drift) {
	if !l.NoPodCgroups {
		l.orphans = l.Layout.Orphans(p.seen, ClassesOf(view))
	}
	l.findings.report(ctx, l.Log, p.findings)
	l.lister.unbound.outlived(l.View(), p.empty, func(u unbound) bool {
		err := l.Tree.Remove(ctx, u.name)
		if err != nil {
			l.Log.ErrorContext(ctx, "removing the cgroup of a container that was not started failed", "owner", u.owner.String(), "error", err)
		}
		return err == nil
	})
	fresh = l.drift.news(p.drifts)
	l.DriftPolicy.report(ctx, l.Log, fresh, l.whose)
	return fresh
}

// carryOut applies a plan, and stores what was written. If the kernel refuses the limit of a tier that uses more, the
// limit is set to the use, as the kubelet does. The caller holds mu.
func (l *Loop) carryOut(ctx context.Context, view *ledger.View, p *plan) error {
	done := l.writer.applyTo(ctx, p.containers, p.ops)
	scattered := l.hotplug.gather(ctx, p.containers, p.whole)
	if done.err != nil && l.QoS.ReservedMemory > 0 {
		seen, err := l.kernel.observe(ctx, p.desired)
		if err != nil {
			return errors.Join(done.err, scattered, err)
		}
		desired := p.containers.present(qos.AboveUsage(p.desired, seen), seen)
		done = l.writer.applyTo(ctx, p.containers, cgroup.Diff(desired, seen))
	}
	l.drift.follow(view, p, done.failed)
	return errors.Join(done.err, scattered, p.missing, p.unmet)
}

// touched returns what in a view may differ from the one followed last: changed pods, stale pods, those with an event, and, if the
// shared CPUs have changed, all with a container or sandbox. It also lists the containers whose start may be in progress, and
// those in also. The caller holds mu.
func (l *Loop) touched(view *ledger.View, also []string) subjects {
	s := subjects{uids: map[string]bool{}, later: map[string]cgroup.Name{}}
	last := l.drift.view
	for _, c := range ledger.Changes(last, view) {
		if c.Pod != nil {
			s.uids[c.Pod.UID()] = true
		} else {
			s.uids[c.Binding.Owner.Pod] = true
		}
	}
	if last.CommonCPUs() != view.CommonCPUs() || last.Machine() != view.Machine() {
		for b := range view.Bindings() {
			s.uids[b.Owner.Pod] = true
		}
		for uid := range l.sandboxes.sharers.pods {
			s.uids[uid] = true
		}
		for uid := range l.sandboxes.opening.pods {
			s.uids[uid] = true
		}
	}
	for key, name := range l.drift.stale {
		if uid := l.names.inPod(name); uid != "" {
			if s.uids[uid] = true; l.wanted.leaving[uid] {
				s.later[key] = name
			}
		}
	}
	ids, pods, lost := l.lister.changes.take(view)
	ids = append(ids, also...)
	for uid := range s.uids {
		for b := range view.BindingsOf(uid) {
			if !b.Own {
				ids = append(ids, b.ID)
			}
		}
	}
	for _, c := range l.tracker.Starts() {
		if c.ID != "" {
			ids = append(ids, c.ID)
		}
	}
	slices.Sort(ids)
	if s.ids = few(slices.Compact(ids)); lost {
		s.ids = nil
	}
	l.calls.pods = pods
	return s
}

// withChildren adds the children of changed pods, because parents and children must be
// written in order. Tiers do not restrict their pods' values. The result may share its
// array with changed, never with desired.
func (ns names) withChildren(desired, changed []cgroup.Node) []cgroup.Node {
	names := make(map[string]bool, len(changed))
	for _, n := range changed {
		names[n.Name.String()] = true
	}
	for _, n := range desired {
		parent := n.Name.Parent()
		if _, ok := ns.PodUID(parent); ok && names[parent.String()] && !names[n.Name.String()] {
			changed = append(changed, n)
		}
	}
	return changed
}
