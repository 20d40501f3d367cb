package reconcile

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/berthd/berth/managers/cgroup"
	"github.com/berthd/berth/managers/ledger"
)

// OnDrift says what happens to values that somebody else changed.
type OnDrift string

const (
	// Heal writes them again.
	Heal OnDrift = "heal"
	// Alarm only reports them. They are written again when berth itself has
	// another value for the cgroup.
	Alarm OnDrift = "alarm"
)

// Drift is a value of a cgroup that a pass had put in force and that somebody
// else changed since. The kernel does not tell who: a daemon-reload of systemd,
// another agent, a person.
type Drift struct {
	Name cgroup.Name
	// File is the control file; empty if the cgroup itself is gone or lacks a
	// controller.
	File        string
	Want, Found string
	// Since is when it was seen first.
	Since time.Time
}

// key tells drifts apart.
func (d Drift) key() driftKey { return driftKey{d.Name.String(), d.File, d.Found} }

type driftKey struct{ name, file, found string }

// keptDrifts is how many drifts are remembered for those who ask.
const keptDrifts = 100

// driftBook remembers what was put in force. The zero value remembers nothing.
type driftBook struct {
	// kept are the values that were wanted of each cgroup when they were last in force;
	// nil before the first pass.
	kept *branch
	// view is the one that was followed last: what it wants is kept, but for what is
	// stale since, or failed, and has to be looked at though the view wants nothing else.
	view  *ledger.View
	stale map[string]cgroup.Name
	// present are the drifts of the last pass.
	present map[driftKey]Drift
	// past are drifts in the order in which they were found, the newest last.
	past []Drift
}

// branch has the values of a cgroup, nil where they are not known, and those below it.
type branch struct {
	values *cgroup.Values
	below  map[string]*branch
}

// at finds a cgroup; nil if there is none, unless it is to be made.
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

// of returns what is in force in a cgroup; nil where that is not known.
func (b *driftBook) of(name cgroup.Name) *cgroup.Values {
	if at := b.kept.at(name, false); at != nil {
		return at.values
	}
	return nil
}

// keep notes what is in force after a pass for a view.
func (b *driftBook) keep(view *ledger.View, desired []cgroup.Node, failed map[string]bool) {
	b.kept, b.stale = new(branch), nil
	b.follow(view, desired, failed)
}

// follow notes what is in force after some cgroups were written for a view.
func (b *driftBook) follow(view *ledger.View, written []cgroup.Node, failed map[string]bool) {
	b.hold(written, failed)
	b.view = view
}

// hold notes what is in force of some cgroups; of those that failed nobody knows. Before
// the first pass nothing is noted.
func (b *driftBook) hold(written []cgroup.Node, failed map[string]bool) {
	if b.kept == nil {
		return
	}
	for _, n := range written {
		if failed[n.Name.String()] {
			b.forget(n.Name)
		} else {
			b.kept.at(n.Name, true).values = &n.Values
		}
	}
}

// changed lists the nodes that are wanted otherwise than they were last in force.
func (b *driftBook) changed(desired []cgroup.Node) []cgroup.Node {
	var out []cgroup.Node
	for i := range desired {
		if kept := b.of(desired[i].Name); kept == nil || !kept.Equal(&desired[i].Values) {
			out = append(out, desired[i])
		}
	}
	return out
}

// forget drops a cgroup whose values are being written outside of a pass.
func (b *driftBook) forget(name cgroup.Name) {
	if at := b.kept.at(name, false); at != nil {
		at.values = nil
	}
	b.recheck(name)
}

// forgetAll drops a cgroup that is gone, with those below it.
func (b *driftBook) forgetAll(name cgroup.Name) {
	if above := b.kept.at(name.Parent(), false); above != nil {
		delete(above.below, name.Base())
	}
	b.recheck(name)
}

// recheck marks a cgroup for comparison in the next pass.
func (b *driftBook) recheck(name cgroup.Name) {
	if b.stale == nil {
		b.stale = make(map[string]cgroup.Name)
	}
	b.stale[name.String()] = name
}

// find lists the drifts behind what differs: of cgroups whose wanted values are
// the same as when they were in force.
func (b *driftBook) find(p *plan, now time.Time) []Drift {
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

// drifts says what an op would heal.
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

// news notes the drifts of a pass and returns those that the pass before did not
// find.
func (b *driftBook) news(found []Drift) []Drift {
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

// withoutDrifted drops the cgroups that drifted, so that nothing is written
// there.
func withoutDrifted(nodes []cgroup.Node, drifts []Drift) []cgroup.Node {
	drifted := make(map[string]bool, len(drifts))
	for _, d := range drifts {
		drifted[d.Name.String()] = true
	}
	return slices.DeleteFunc(slices.Clone(nodes), func(n cgroup.Node) bool { return drifted[n.Name.String()] })
}

func (l *Loop) reportDrift(ctx context.Context, drifts []Drift) {
	for _, d := range drifts {
		l.Log.WarnContext(ctx, "a cgroup was changed by somebody else",
			"name", d.Name.String(), "file", d.File, "want", d.Want, "found", d.Found, "action", string(l.onDrift()))
	}
}

func (l *Loop) onDrift() OnDrift {
	if l.OnDrift == "" {
		return Heal
	}
	return l.OnDrift
}

// Drifts lists the drifts that were found, the newest last, at most the last 100.
func (l *Loop) Drifts() []Drift {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.drift.past)
}
