package reconcile

import (
	"context"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/berthd/berth/managers/cgroup"
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
	// kept are the values that were wanted of each cgroup, by name, when they were
	// last in force.
	kept map[string]cgroup.Values
	// present are the drifts of the last pass.
	present map[driftKey]Drift
	// past are drifts in the order in which they were found, the newest last.
	past []Drift
}

// keep notes what is in force after a pass.
func (b *driftBook) keep(desired []cgroup.Node, failed map[string]bool) {
	b.kept = make(map[string]cgroup.Values, len(desired))
	for _, n := range desired {
		if name := n.Name.String(); !failed[name] {
			b.kept[name] = n.Values
		}
	}
}

// add notes what is in force of some cgroups, and drops those that are not wanted
// any more.
func (b *driftBook) add(desired, written []cgroup.Node, failed map[string]bool) {
	b.hold(written, failed)
	if len(b.kept) <= len(desired) {
		return
	}
	wanted := make(map[string]bool, len(desired))
	for _, n := range desired {
		wanted[n.Name.String()] = true
	}
	maps.DeleteFunc(b.kept, func(name string, _ cgroup.Values) bool { return !wanted[name] })
}

// hold notes what is in force of some cgroups; of those that failed nobody knows. Before
// the first pass nothing is noted.
func (b *driftBook) hold(written []cgroup.Node, failed map[string]bool) {
	if b.kept == nil {
		return
	}
	for _, n := range written {
		if name := n.Name.String(); failed[name] {
			delete(b.kept, name)
		} else {
			b.kept[name] = n.Values
		}
	}
}

// changed lists the nodes that are wanted otherwise than they were last in force.
func (b *driftBook) changed(desired []cgroup.Node) []cgroup.Node {
	var out []cgroup.Node
	for i := range desired {
		if kept, ok := b.kept[desired[i].Name.String()]; !ok || !kept.Equal(&desired[i].Values) {
			out = append(out, desired[i])
		}
	}
	return out
}

// forget drops a cgroup whose values are being written outside of a pass.
func (b *driftBook) forget(name cgroup.Name) { delete(b.kept, name.String()) }

// forgetAll drops a cgroup that is gone, with those below it.
func (b *driftBook) forgetAll(name cgroup.Name) {
	below := name.String() + "/"
	maps.DeleteFunc(b.kept, func(have string, _ cgroup.Values) bool { return have+"/" == below || strings.HasPrefix(have, below) })
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
		name := op.Name.String()
		kept, ok := b.kept[name]
		if want := wanted[name]; !ok || !kept.Equal(&want) {
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
