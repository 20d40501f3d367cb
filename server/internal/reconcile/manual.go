package reconcile

import (
	"context"
	"fmt"

	"github.com/berthd/berth/managers/cgroup"
)

// UpdateTiers writes the values of tiers that differ, and returns the ops.
func (l *Loop) UpdateTiers(ctx context.Context) ([]cgroup.Op, error) {
	if err := l.mu.enter(ctx); err != nil {
		return nil, err
	}
	defer l.mu.Unlock()
	nodes := l.wanted.tiers(l.wanted.expected(l.View()))
	seen, err := l.kernel.observe(ctx, nodes)
	if err != nil {
		return nil, err
	}
	ops := cgroup.Diff(nodes, seen)
	for _, op := range ops {
		l.drift.forget(op.Name)
	}
	return ops, l.writer.apply(ctx, runtimeContainers{}, ops, nil).err
}

// Entry is a cgroup in a Report.
type Entry struct {
	cgroup.Observed
	// Managed cgroups have values from the ledger or the configuration.
	Managed bool
	// Pending are the ops that would give the cgroup its wanted values.
	Pending []cgroup.Op
}

// Report compares the tree with its wanted values.
type Report struct {
	// Entries, parents before children; the reserved cgroups come last. They include
	// missing cgroups.
	Entries []Entry
	// Drifts, the newest last.
	Drifts []Drift
}

// Report compares the tree with the current view. It changes nothing.
func (l *Loop) Report(ctx context.Context) (Report, error) {
	if err := l.mu.enter(ctx); err != nil {
		return Report{}, err
	}
	defer l.mu.Unlock()
	p, err := l.plan(ctx, l.View(), subjects{whole: true})
	if err != nil {
		return Report{}, fmt.Errorf("report on cgroups: %w", err)
	}
	pending := map[string][]cgroup.Op{}
	for _, op := range p.differs {
		pending[op.Name.String()] = append(pending[op.Name.String()], op)
	}
	wanted := make(map[string]bool, len(p.desired))
	for _, n := range p.desired {
		wanted[n.Name.String()] = true
	}
	out := Report{Drifts: l.drift.found(l.whose)}
	seen := make(map[string]bool, len(p.seen.Nodes))
	for _, o := range p.seen.Nodes {
		key := o.Name.String()
		if l.NoPodCgroups && o.State == cgroup.Absent && !wanted[key] {
			continue // the cgroup of all pods, which is not created
		}
		seen[key] = true
		out.Entries = append(out.Entries, Entry{Observed: o, Managed: wanted[key], Pending: pending[key]})
	}
	for _, n := range p.desired {
		if key := n.Name.String(); !seen[key] {
			out.Entries = append(out.Entries, Entry{Observed: cgroup.Observed{Name: n.Name}, Managed: true, Pending: pending[key]})
		}
	}
	return out, nil
}
