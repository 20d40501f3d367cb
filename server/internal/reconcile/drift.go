package reconcile

import (
	"cmp"
	"context"
	"log/slog"
	"maps"
	"slices"
	"time"

	"github.com/berthd/berth/managers/cgroup"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/server/internal/logs"
)

// DriftPolicy is the reaction to values that another program changed.
type DriftPolicy string

const (
	// RepairDrift writes the values again.
	RepairDrift DriftPolicy = "repair"
	// ReportDrift only reports the values. They are written again when berth's own value for the
	// cgroup changes.
	ReportDrift DriftPolicy = "report"
)

// Drift is a value of a cgroup that a pass had written, and that another program changed
// since. The kernel does not record the program: it may be a daemon-reload of systemd,
// another agent, or a person.
type Drift struct {
	Name cgroup.Name
	// Owner is whose cgroup it is, as far as that is known; only in reports.
	Owner ledger.Owner
	// File is the control file; empty if the cgroup is gone or lacks a controller.
	File        string
	Want, Found string
	// Since is when it was found first.
	Since time.Time
}

// key identifies a drift.
func (d Drift) key() driftKey { return driftKey{d.Name.String(), d.File, d.Found} }

type driftKey struct{ name, file, found string }

// keptDrifts is the number of drifts that are kept for reports.
const keptDrifts = 100

// driftLog stores the values that were written. The zero value is empty.
type driftLog struct {
	// kept are the wanted values of each cgroup when it last had them; nil before the first
	// pass.
	kept *branch
	// view is the last followed view. Its values are in kept, except those of stale or
	// failed cgroups, which have to be compared although the view has not changed.
	view  *ledger.View
	stale map[string]cgroup.Name
	// present are the drifts of the last pass.
	present map[driftKey]Drift
	// past are the found drifts, the newest last.
	past []Drift
}

// branch has the values of a cgroup, nil if unknown, and its child cgroups.
type branch struct {
	values *cgroup.Values
	below  map[string]*branch
}

// at finds a cgroup; nil if there is none. With grow it is added.
func (b *branch) at(name cgroup.Name, grow bool) *branch {
	for _, component := range name {
		if b == nil {
			return nil
		}
		next := b.below[component]
		if next == nil && grow {
			next = new(branch)
			if b.below == nil {
				b.below = make(map[string]*branch)
			}
			b.below[component] = next
		}
		b = next
	}
	return b
}

// of returns the last written values of a cgroup; nil if unknown.
func (b *driftLog) of(name cgroup.Name) *cgroup.Values {
	if at := b.kept.at(name, false); at != nil {
		return at.values
	}
	return nil
}

// follow stores the values after a plan was carried out for a view, and marks again what it could not or must not write.
func (b *driftLog) follow(view *ledger.View, p *plan, failed map[string]bool) {
	if p.whole {
		b.kept = new(branch)
	}
	b.stale, b.view = p.later, view
	b.hold(p.desired, failed)
	if p.whole {
		return
	}
	for _, h := range p.held { // the next pass reports it
		b.recheck(h.Name)
	}
}

// hold stores the values of some cgroups; those of failed cgroups are unknown. Before the
// first pass it stores nothing.
func (b *driftLog) hold(written []cgroup.Node, failed map[string]bool) {
	if b.kept == nil {
		return
	}
	for _, n := range written {
		if len(failed) > 0 && failed[n.Name.String()] {
			b.forget(n.Name)
		} else {
			b.kept.at(n.Name, true).values = &n.Values
		}
	}
}

// changed returns the nodes whose wanted values differ from the stored ones.
func (b *driftLog) changed(desired []cgroup.Node) []cgroup.Node {
	var out []cgroup.Node
	for i := range desired {
		if kept := b.of(desired[i].Name); kept == nil || !kept.Equal(&desired[i].Values) {
			out = append(out, desired[i])
		}
	}
	return out
}

// forget removes a cgroup whose values are being written outside a pass.
func (b *driftLog) forget(name cgroup.Name) {
	if at := b.kept.at(name, false); at != nil {
		at.values = nil
	}
	b.recheck(name)
}

// forgetAll removes a deleted cgroup, with the cgroups below it.
func (b *driftLog) forgetAll(name cgroup.Name) {
	if above := b.kept.at(name.Parent(), false); above != nil {
		delete(above.below, name.Base())
	}
	b.recheck(name)
}

// recheck marks a cgroup for comparison in the next pass.
func (b *driftLog) recheck(name cgroup.Name) {
	if b.stale == nil {
		b.stale = make(map[string]cgroup.Name)
	}
	b.stale[name.String()] = name
}

// find returns the drifts in a plan: differences in cgroups whose wanted values have not
// changed.
func (b *driftLog) find(p *plan, now time.Time) []Drift {
	wanted := make(map[string]cgroup.Values, len(p.differs))
	for _, op := range p.differs {
		wanted[op.Name.String()] = cgroup.Values{}
	}
	for _, n := range p.desired {
		if _, ok := wanted[n.Name.String()]; ok {
			wanted[n.Name.String()] = n.Values
		}
	}
	found := map[driftKey]Drift{}
	for _, op := range p.differs {
		kept := b.of(op.Name)
		if want := wanted[op.Name.String()]; kept == nil || !kept.Equal(&want) {
			continue
		}
		for _, d := range drifts(op, p.seen, now) {
			if have, ok := b.present[d.key()]; ok {
				d.Since = have.Since
			}
			found[d.key()] = d
		}
	}
	return slices.SortedFunc(maps.Values(found), func(a, b Drift) int {
		if c := a.Name.Compare(b.Name); c != 0 {
			return c
		}
		return slices.Compare([]string{a.File}, []string{b.File})
	})
}

// drifts returns the drifts that an op would repair.
func drifts(op cgroup.Op, seen *cgroup.Snapshot, now time.Time) []Drift {
	if op.Kind == cgroup.Create {
		o := seen.Find(op.Name)
		found := o.State.String()
		if o.Reason != "" {
			found += ": " + o.Reason
		}
		return []Drift{{Name: op.Name, Want: cgroup.Valid.String(), Found: found, Since: now}}
	}
	var out []Drift
	for _, w := range op.Writes {
		out = append(out, Drift{Name: op.Name, File: w.File, Want: w.New, Found: w.Old, Since: now})
	}
	return out
}

// news stores the drifts of a pass, and returns those that the previous pass did not find.
func (b *driftLog) news(found []Drift) []Drift {
	present := make(map[driftKey]Drift, len(found))
	var fresh []Drift
	for _, d := range found {
		present[d.key()] = d
		if _, known := b.present[d.key()]; !known {
			fresh = append(fresh, d)
		}
	}
	b.present = present
	b.past = append(b.past, fresh...)
	if old := len(b.past) - keptDrifts; old > 0 {
		b.past = slices.Delete(b.past, 0, old)
	}
	return fresh
}

// withoutDrifted removes the cgroups with drifts, so that nothing is written there.
func withoutDrifted(nodes []cgroup.Node, drifts []Drift) []cgroup.Node {
	drifted := make(map[string]bool, len(drifts))
	for _, d := range drifts {
		drifted[d.Name.String()] = true
	}
	return slices.DeleteFunc(slices.Clone(nodes), func(n cgroup.Node) bool { return drifted[n.Name.String()] })
}

// report logs drifts. whose returns the container of a cgroup.
func (p DriftPolicy) report(ctx context.Context, log *slog.Logger, drifts []Drift, whose func(cgroup.Name) ledger.Owner) {
	for _, d := range drifts {
		of := whose(d.Name)
		log.WarnContext(ctx, "a cgroup was changed by another program",
			logs.Repaired(logs.Cgroup, "pod", of.Pod, "container", of.Container,
				"name", d.Name.String(), "file", d.File, "want", d.Want, "found", d.Found, "action", string(cmp.Or(p, RepairDrift)))...)
	}
}

// Drifts returns the found drifts, the newest last, at most the last 100.
func (l *Loop) Drifts() []Drift {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.drift.found(l.whose)
}

// found returns the found drifts with their owners.
func (b *driftLog) found(whose func(cgroup.Name) ledger.Owner) []Drift {
	out := slices.Clone(b.past)
	for i := range out {
		out[i].Owner = whose(out[i].Name)
	}
	return out
}

// whose returns the pod and the container to which a cgroup belongs now. The caller holds mu.
func (l *Loop) whose(name cgroup.Name) ledger.Owner {
	return l.names.whose(l.View(), l.tracker.cgroups, name)
}
