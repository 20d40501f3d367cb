package reconcile

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/berthd/berth/managers/cgroup"
	"github.com/berthd/berth/managers/ledger"
)

// Follow writes the values that have changed in the ledger since they were last written,
// and reads nothing else. Changes by other programs are left to the next pass. Its time
// grows with the change, not with the tree.
func (l *Loop) Follow(ctx context.Context) error {
	if err := l.enter(ctx); err != nil {
		return err
	}
	defer l.mu.Unlock()
	return l.follow(ctx, l.View(), nil)
}

// follow follows a view. It also compares the containers with the ids in also, whose values
// have not changed. The caller holds mu.
func (l *Loop) follow(ctx context.Context, view *ledger.View, also []string) error {
	if l.machineChanged(view) || l.drift.kept == nil {
		return l.pass(ctx, view) // sets of cgroups above pods may be wrong, too
	}
	start := l.Now()
	l.trackChanges()
	t, err := l.touched(view)
	if err != nil {
		return fmt.Errorf("compute the cgroup tree: %w", err)
	}
	ids, pods, lost := l.changes.take(view)
	if ids = few(slices.Concat(t.ids, also, ids)); lost {
		ids = nil
	}
	l.calls.pods = pods
	g, unmet := l.containersOf(ctx, view, ids)
	if synced := l.calls.synced; synced != nil {
		for _, uid := range synced.pods {
			t.uids[uid] = true // its sandbox may just have been found
		}
	}
	l.removeEnded(ctx, view)
	defer l.tracker.countPhases()
	desired := l.withoutLeaving(view, slices.Concat(t.desired, g.nodes(), l.unbound.nodes(view), l.sharers.nodes(view, t.uids)))
	nodes := l.withChildren(desired, l.drift.changed(desired))
	seen, err := l.kernel.observeInside(ctx, nodes, l.opening.confines)
	if err != nil {
		return err
	}
	// A held limit was not written, so it is tried again; the next pass reports it.
	l.noteSeen(g, seen, false)
	nodes, held := l.shape(&g, nodes, seen)
	ops := cgroup.Diff(nodes, seen)
	done := l.applyTo(ctx, g, ops)
	done.err = errors.Join(done.err, unmet, l.gather(ctx, g, false))
	l.drift.stale = t.later
	l.drift.follow(view, nodes, done.failed)
	for _, h := range held {
		l.drift.recheck(h.Name)
	}
	l.records.Follow(ctx, view)
	if l.Observe != nil {
		l.Observe(Outcome{Ops: ops, Orphans: len(l.orphans), Took: l.Now().Sub(start), Err: done.err})
	}
	return done.err
}

// touched is the part of a view that may differ from the view followed last: changed pods,
// stale pods, and, if the shared CPUs have changed, all pods with a container or sandbox.
type touched struct {
	uids map[string]bool
	// desired are the wanted values of the tiers and of these pods.
	desired []cgroup.Node
	// ids are the containers that a runtime created in these pods, and those whose start may
	// be in progress.
	ids []string
	// later are stale cgroups of leaving pods.
	later map[string]cgroup.Name
}

// touched compares a view with the one followed last. The caller holds mu.
func (l *Loop) touched(view *ledger.View) (t touched, err error) {
	expected := l.expected(view)
	t = touched{uids: map[string]bool{}, desired: l.tiers(expected), later: map[string]cgroup.Name{}}
	last := l.drift.view
	for _, c := range ledger.Changes(last, view) {
		if c.Pod != nil {
			t.uids[c.Pod.UID()] = true
		} else {
			t.uids[c.Binding.Owner.Pod] = true
		}
	}
	if last.CommonCPUs() != view.CommonCPUs() || last.Machine() != view.Machine() {
		for b := range view.Bindings() {
			t.uids[b.Owner.Pod] = true
		}
		for uid := range l.sharers.pods {
			t.uids[uid] = true
		}
		for uid := range l.opening.pods {
			t.uids[uid] = true
		}
	}
	for key, name := range l.drift.stale {
		if uid := l.names.inPod(name); uid != "" {
			if t.uids[uid] = true; l.leaving[uid] {
				t.later[key] = name
			}
		}
	}
	for uid := range t.uids {
		p, ok := view.Pod(uid)
		if !ok {
			continue
		}
		from := view
		if written, _ := expected.Pod(uid); written != p { // it is being resized
			draft := ledger.NewDraft(view)
			put(draft, written)
			from = draft.View()
			p, _ = from.Pod(uid)
		}
		own, err := l.podNodes(from, p)
		if err != nil {
			return t, err
		}
		t.desired = append(t.desired, own...)
		for b := range view.BindingsOf(uid) {
			if !b.Own {
				t.ids = append(t.ids, b.ID)
			}
		}
	}
	for _, c := range l.tracker.Starts() {
		if c.ID != "" && !slices.Contains(t.ids, c.ID) {
			t.ids = append(t.ids, c.ID)
		}
	}
	return t, nil
}

// withChildren adds the children of changed pods, because parents and children must be
// written in order. Tiers do not restrict their pods' values. The result may share its
// array with changed, never with desired.
func (l *Loop) withChildren(desired, changed []cgroup.Node) []cgroup.Node {
	names := make(map[string]bool, len(changed))
	for _, n := range changed {
		names[n.Name.String()] = true
	}
	for _, n := range desired {
		parent := n.Name.Parent()
		if _, ok := l.Layout.PodUID(parent); ok && names[parent.String()] && !names[n.Name.String()] {
			changed = append(changed, n)
		}
	}
	return changed
}
