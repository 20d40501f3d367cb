package reconcile

import (
	"iter"
	"slices"

	"github.com/berthd/berth/managers/cgroup"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/qos"
)

// wanted computes the values that cgroups should have, from a view and the configuration. It does no I/O. Guarded by Loop.mu.
type wanted struct {
	shared
	opening *openings
	unbound *unbounds
	sharers *sharers
	// leaving are the uids of leaving pods.
	leaving map[string]bool
	// uncommitted are pods by uid, as they were written; see expected.
	uncommitted map[string]*ledger.Pod
}

// desired returns the wanted values of the subjects of a plan in a view. expected is that view with what is not committed yet,
// and tiers are the values of the tiers.
func (w *wanted) desired(view, expected *ledger.View, tiers []cgroup.Node, p *plan) ([]cgroup.Node, error) {
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
		of, err := cgroup.PodNodes(from, own, w.cfg.Layout, w.cfg.QoS.Cgroup)
		if err != nil {
			return nil, err
		}
		if w.cfg.NoPodCgroups {
			of = of[1:] // the pod's own comes first
		}
		nodes = append(nodes, of...)
	}
	w.opening.restrict(view, nodes)
	nodes = slices.Concat(nodes, p.containers.nodes(), w.unbound.nodes(view), w.sharers.nodes(view, p.uids))
	return append(w.withoutLeaving(view, nodes), p.reserved...), nil
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

// compare finds the ops of a plan. It reduces the wanted values to those that can be written now, which leaves out some memory
// limits, and adds those of cgroups that containers have created.
func (w *wanted) compare(p *plan) {
	nodes := p.desired
	if w.cfg.NoPodCgroups {
		nodes = made(nodes, p.seen)
	}
	nodes = w.ending.confine(w.sharers.present(p.containers.present(nodes, p.seen), p.seen), p.seen)
	if w.kernel.v1() {
		nodes = w.names.nested(nodes, p.seen, w.opening.confines)
	}
	p.desired, p.held = w.names.hold(nodes, p.seen)
	p.differs = cgroup.Diff(p.desired, p.seen)
	p.ops = p.differs
}

// expected returns a view with the pods whose cgroups were written for an admission or a
// resize that is not committed yet, as they were written. What is written between the two must
// not take from the tiers what the pod needs, or give a resized pod its old values.
func (w *wanted) expected(view *ledger.View) *ledger.View {
	if len(w.uncommitted) == 0 || w.cfg.InFlight == nil {
		return view
	}
	inFlight, draft := w.cfg.InFlight(), ledger.NewDraft(view)
	for uid, written := range w.uncommitted {
		reserved, ok := inFlight.Pod(uid)
		have, known := view.Pod(uid)
		// A reservation ends after the commit, so it may still be there.
		committed := known && have.Digest == written.Digest
		if givenUp := !ok || known && have == reserved; committed || givenUp {
			delete(w.uncommitted, uid)
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
func (w *wanted) above(view *ledger.View, p *ledger.Pod) *ledger.View {
	now := w.cfg.View()
	alone := len(w.uncommitted) == 0 || len(w.uncommitted) == 1 && w.uncommitted[p.UID()] != nil
	if alone && view.Generation() == now.Generation() && view.EpochID() == now.EpochID() {
		return view
	}
	draft := ledger.NewDraft(w.expected(now))
	put(draft, p)
	return draft.View()
}

func put(draft *ledger.Draft, p *ledger.Pod) {
	own := *p
	own.Claims = slices.Clone(p.Claims)
	draft.PutPod(&own)
}

// tiers returns the wanted values of the cgroup of all pods and of the tiers.
func (w *wanted) tiers(view *ledger.View) []cgroup.Node {
	if w.cfg.NoPodCgroups {
		return nil
	}
	return w.enforced(qos.Nodes(view, w.cfg.Layout, w.cfg.QoS))
}

// enforced adds the limits of all pods together to the values of the tiers.
func (w *wanted) enforced(nodes []cgroup.Node) []cgroup.Node {
	for i := range nodes {
		if nodes[i].Name.Equal(w.cfg.Layout.Pods()) {
			nodes[i].Values = w.cfg.Pods.Merge(nodes[i].Values)
		}
	}
	return nodes
}

// endLeaving ends the leaving of a pod, and returns whether it was leaving. The pod's cgroup has
// to get its wanted values again.
func (w *wanted) endLeaving(uid string, name cgroup.Name) bool {
	if !w.leaving[uid] {
		return false
	}
	delete(w.leaving, uid)
	w.drift.recheck(name)
	return true
}

// withoutLeaving removes the nodes of leaving pods, and forgets pods whose removal is
// complete.
func (w *wanted) withoutLeaving(view *ledger.View, nodes []cgroup.Node) []cgroup.Node {
	var gone []cgroup.Name
	for uid := range w.leaving {
		p, ok := view.Pod(uid)
		if !ok {
			delete(w.leaving, uid)
			continue
		}
		if name, err := w.cfg.Layout.Pod(p.QoS, uid); err == nil {
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
