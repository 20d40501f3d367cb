package reconcile

import (
	"context"
	"fmt"

	"github.com/berthd/berth/managers/cgroup"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/ledger/check"
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
	findings []check.Finding
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
	expected := l.wanted.expected(view)
	tiers := l.wanted.tiers(expected)
	p.containers, p.unmet = l.lister.containersOf(ctx, view, s.ids)
	if s.whole {
		if err := l.look(ctx, view, tiers, p); err != nil {
			return p, err
		}
	} else if synced := l.calls.synced; synced != nil {
		for _, uid := range synced.pods {
			p.uids[uid] = true // its sandbox may just have been found
		}
	}
	desired, err := l.wanted.desired(view, expected, tiers, p)
	if err != nil {
		return p, fmt.Errorf("compute the cgroup tree: %w", err)
	}
	if p.desired = desired; s.whole {
		err = l.hotplug.widen(ctx, view, p)
	} else {
		p.desired = l.names.withChildren(desired, l.drift.changed(desired))
		p.seen, err = l.kernel.observeInside(ctx, p.desired, l.sandboxes.opening.confines)
	}
	if err != nil {
		return p, err
	}
	l.lister.noteSeen(p.containers, p.seen, s.whole)
	if s.whole {
		p.findings = append(p.findings, l.confined.above(l.View().Machine(), l.names, p.seen)...)
	}
	l.wanted.compare(p)
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
	l.sandboxes.opening.find(view, p.seen, l.kernel.allowed)
	if p.findings, err = l.kernel.frozenAbove(ctx, tiers); err != nil {
		return err
	}
	found, empty := l.lister.unbound.look(view, p.seen)
	p.findings, p.empty = append(p.findings, found...), empty
	var sandboxes []runtime.Sandbox
	synced := l.calls.synced
	complete := synced != nil && synced.ids == nil
	if complete {
		sandboxes = synced.sandboxes
	}
	l.sandboxes.sharers.note(view, p.seen, sandboxes, complete)
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
