package reconcile

import (
	"context"
	"fmt"
	"iter"
	"slices"

	"github.com/berthd/berth/managers/cgroup"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/qos"
	"github.com/berthd/berth/managers/workload"
	"github.com/berthd/berth/server/internal/runtime"
)

// plan has the next ops for some subjects.
type plan struct {
	subjects
	desired []cgroup.Node
	seen    *cgroup.Snapshot
	// held are the memory limits that are left out of desired.
	held []cgroup.HeldLimit
	// differs are the ops that would give the tree its wanted values, ops those that may be applied.
	differs, ops []cgroup.Op
	containers   runtimeContainers
	// unmet is an error about a runtime that does not list its containers.
	unmet error

	// The others are set only for whole subjects: what was found, and an error about missing reserved cgroups.
	drifts   []Drift
	findings []ledger.Finding
	empty    []unbound
	reserved []cgroup.Node
	missing  error
}

// Plan returns the ops of a pass without carrying them out.
func (l *Loop) Plan(ctx context.Context) (ops []cgroup.Op, err error) {
	err = l.Turn(ctx, func(Turn) error {
		p, err := l.plan(ctx, l.View(), subjects{whole: true})
		ops = p.ops
		return err
	})
	return ops, err
}

// plan compares subjects with a view. The caller holds mu. The plan is never nil.
func (l *Loop) plan(ctx context.Context, view *ledger.View, s subjects) (*plan, error) {
	p := &plan{subjects: s}
	if s.whole {
		l.ending.forget() // before the tree is read
	}
	expected := l.expected(view)
	tiers := l.tiers(expected)
	p.containers, p.unmet = l.containersOf(ctx, view, s.ids)
	if s.whole {
		if err := l.look(ctx, view, tiers, p); err != nil {
			return p, err
		}
	} else if synced := l.calls.synced; synced != nil {
		for _, uid := range synced.pods {
			p.uids[uid] = true // its sandbox may just have been found
		}
	}
	desired, err := l.desired(view, expected, tiers, p)
	if err != nil {
		return p, fmt.Errorf("compute the cgroup tree: %w", err)
	}
	if p.desired = desired; s.whole {
		err = l.widen(ctx, view, p)
	} else {
		p.desired = l.names.withChildren(desired, l.drift.changed(desired))
		p.seen, err = l.kernel.observeInside(ctx, p.desired, l.opening.confines)
	}
	if err != nil {
		return p, err
	}
	l.noteSeen(p.containers, p.seen, s.whole)
	if s.whole {
		p.findings = append(p.findings, l.confined.above(l.View().Machine(), l.names, p.seen)...)
	}
	l.compare(p)
	if s.whole {
		p.findings = append(p.findings, l.names.heldFindings(p.held)...)
		p.drifts = l.drift.find(p, l.Now())
	}
	if l.DriftPolicy == ReportDrift && len(p.drifts) > 0 {
		p.ops = cgroup.Diff(withoutDrifted(p.desired, p.drifts), p.seen)
	}
	return p, nil
}

// look observes everything, and stores what can be found only there. The caller holds mu.
func (l *Loop) look(ctx context.Context, view *ledger.View, tiers []cgroup.Node, p *plan) (err error) {
	if p.seen, err = l.Tree.Observe(ctx, l.Layout.Pods(), -1); err != nil {
		return fmt.Errorf("observe the cgroup tree: %w", err)
	}
	l.opening.find(view, p.seen, l.kernel.allowed)
	if p.findings, err = l.kernel.frozenAbove(ctx, tiers); err != nil {
		return err
	}
	found, empty := l.unbound.look(view, p.seen)
	p.findings, p.empty = append(p.findings, found...), empty
	var sandboxes []runtime.Sandbox
	synced := l.calls.synced
	complete := synced != nil && synced.ids == nil
	if complete {
		sandboxes = synced.sandboxes
	}
	l.sharers.note(view, p.seen, sandboxes, complete)
	for _, n := range l.Reserved {
		seen, err := l.Tree.Observe(ctx, n.Name, 0)
		if err != nil {
			return fmt.Errorf("observe a reserved cgroup: %w", err)
		}
		if o := seen.Find(n.Name); o.State != cgroup.Valid {
			what := "the reserved cgroup"
			if l.NoPodCgroups {
				what = "cgroups.root," // nothing is reserved in a cgroup then
			}
			p.missing = errdefs.Preconditionf("limit %s %s: %w", what, n.Name, unusable(o))
			continue
		}
		p.reserved = append(p.reserved, n)
		p.seen.Nodes = append(p.seen.Nodes, seen.Nodes...)
	}
	return l.kernel.elsewhere(ctx, p.containers, p.seen)
}

// compare finds the ops of a plan. The caller holds mu.
func (l *Loop) compare(p *plan) {
	p.desired, p.held = l.shape(&p.containers, p.desired, p.seen)
	p.differs = cgroup.Diff(p.desired, p.seen)
	p.ops = p.differs
}

// desired returns the wanted values of the subjects of a plan in a view. expected is that view with what is not committed yet,
// and tiers are the values of the tiers. The caller holds mu.
func (l *Loop) desired(view, expected *ledger.View, tiers []cgroup.Node, p *plan) ([]cgroup.Node, error) {
	nodes := slices.Clone(tiers)
	for written := range podsOf(expected, p.uids) {
		from := view
		if have, known := view.Pod(written.UID()); !known {
			from = expected
		} else if have != written { // it is being resized
			draft := ledger.NewDraft(view)
			put(draft, written)
			from = draft.View()
		}
		own, _ := from.Pod(written.UID())
		of, err := cgroup.PodNodes(from, own, l.Layout, l.QoS.Cgroup)
		if err != nil {
			return nil, err
		}
		if l.NoPodCgroups {
			of = of[1:] // the pod's own comes first
		}
		nodes = append(nodes, of...)
	}
	l.opening.restrict(view, nodes)
	nodes = slices.Concat(nodes, p.containers.nodes(), l.unbound.nodes(view), l.sharers.nodes(view, p.uids))
	return append(l.withoutLeaving(view, nodes), p.reserved...), nil
}

// podsOf yields some pods of a view; nil means all.
func podsOf(view *ledger.View, uids map[string]bool) iter.Seq[*ledger.Pod] {
	if uids == nil {
		return view.Pods()
	}
	return func(yield func(*ledger.Pod) bool) {
		for uid := range uids {
			if p, ok := view.Pod(uid); ok && !yield(p) {
				return
			}
		}
	}
}

// shape reduces wanted values to those that can be written now, and adds those of cgroups that containers have created. It returns
// the memory limits that are left out. The caller holds mu.
func (l *Loop) shape(g *runtimeContainers, nodes []cgroup.Node, seen *cgroup.Snapshot) ([]cgroup.Node, []cgroup.HeldLimit) {
	if l.NoPodCgroups {
		nodes = made(nodes, seen)
	}
	nodes = l.ending.confine(l.sharers.present(g.present(nodes, seen), seen), seen)
	if l.kernel.v1() {
		nodes = l.names.nested(nodes, seen, l.opening.confines)
	}
	return l.names.hold(nodes, seen)
}

// expected returns a view with the pods whose cgroups were written for an admission or a
// resize that is not committed yet, as they were written. What is written between the two must
// not take from the tiers what the pod needs, or give a resized pod its old values. The caller
// holds mu.
func (l *Loop) expected(view *ledger.View) *ledger.View {
	if len(l.uncommitted) == 0 || l.InFlight == nil {
		return view
	}
	inFlight, draft := l.InFlight(), ledger.NewDraft(view)
	for uid, written := range l.uncommitted {
		reserved, ok := inFlight.Pod(uid)
		have, known := view.Pod(uid)
		// A reservation ends after the commit, so it may still be there.
		committed := known && have.Digest == written.Digest
		if givenUp := !ok || known && have == reserved; committed || givenUp {
			delete(l.uncommitted, uid)
			continue
		}
		own := *written
		if known {
			own.Claims = have.Claims // those of a resize change with its commit
		}
		put(draft, &own)
	}
	return draft.View()
}

// above returns the view from which the tiers of a pod follow that is about to be written:
// what is committed now, the pods that are not committed yet, and this pod. The view of the
// operation on the pod has the pod, but may be older than what was written for other pods.
// The caller holds mu.
func (l *Loop) above(view *ledger.View, p *ledger.Pod) *ledger.View {
	now := l.View()
	alone := len(l.uncommitted) == 0 || len(l.uncommitted) == 1 && l.uncommitted[p.UID()] != nil
	if alone && view.Generation() == now.Generation() && view.EpochID() == now.EpochID() {
		return view
	}
	draft := ledger.NewDraft(l.expected(now))
	put(draft, p)
	return draft.View()
}

func put(draft *ledger.Draft, p *ledger.Pod) {
	own := *p
	own.Claims = slices.Clone(p.Claims)
	draft.PutPod(&own)
}

// tiers returns the wanted values of the cgroup of all pods and of the tiers.
func (l *Loop) tiers(view *ledger.View) []cgroup.Node {
	if l.NoPodCgroups {
		return nil
	}
	return l.enforced(qos.Nodes(view, l.Layout, l.QoS))
}

// enforced adds the limits of all pods together to the values of the tiers.
func (l *Loop) enforced(nodes []cgroup.Node) []cgroup.Node {
	for i := range nodes {
		if nodes[i].Name.Equal(l.Layout.Pods()) {
			nodes[i].Values = l.Pods.Merge(nodes[i].Values)
		}
	}
	return nodes
}

// withoutLeaving removes the nodes of leaving pods, and forgets pods whose removal is
// complete.
func (l *Loop) withoutLeaving(view *ledger.View, nodes []cgroup.Node) []cgroup.Node {
	var gone []cgroup.Name
	for uid := range l.leaving {
		p, ok := view.Pod(uid)
		if !ok {
			delete(l.leaving, uid)
			continue
		}
		if name, err := l.Layout.Pod(p.QoS, uid); err == nil {
			gone = append(gone, name)
		}
	}
	if len(gone) == 0 {
		return nodes
	}
	var out []cgroup.Node
next:
	for _, n := range nodes {
		for _, g := range gone {
			if n.Name.Within(g) {
				continue next
			}
		}
		out = append(out, n)
	}
	return out
}

// ClassesOf returns a function for the classes of the pods of a view.
func ClassesOf(view *ledger.View) func(uid string) (workload.QoSClass, bool) {
	return func(uid string) (workload.QoSClass, bool) {
		p, ok := view.Pod(uid)
		if !ok {
			return "", false
		}
		return p.QoS, true
	}
}
