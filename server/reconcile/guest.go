package reconcile

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/berthd/berth/managers/cgroup"
	"github.com/berthd/berth/managers/fault"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/server/runtime"
)

// Runtime is a container runtime, which makes its containers' cgroups itself and
// is told what to write there; *runtime.Client is the one there is.
type Runtime interface {
	List(ctx context.Context) ([]runtime.Container, error)
	// Update does nothing to a container that has exited or is not known.
	Update(ctx context.Context, id string, v cgroup.Values) error
}

const (
	// youth is how long a created container is expected to start any moment.
	youth = 10 * time.Second
	// glance is how soon one is looked at again.
	glance = 50 * time.Millisecond
)

// guest is a bound container that a runtime has made.
type guest struct {
	id    string
	owner ledger.Owner
	// name is nil where the runtime does not tell.
	name   cgroup.Name
	values cgroup.Values
	// runs says that it has a process, and that the kernel can be asked where, created
	// that it has none as far as the runtime shows.
	runs, created bool
}

// start is what is known about the start of a guest.
type start struct {
	// since is when PreStartContainer was answered, or the container first seen.
	since time.Time
	// sent is what the runtime may have read for the start; empty if that may be one
	// of several, or is not known.
	sent cgroup.Cpuset
	// created says that the runtime shows the container, and no process of it.
	created bool
}

// soon tells whether the container is expected to start any moment.
func (s start) soon(now time.Time) bool { return s.created && now.Sub(s.since) < youth }

// errStarting is why another container has to wait: one that is about to start, or
// is starting, was sent CPUs before that are not its own any more.
var errStarting = errors.New("a container is just being started")

// guests are those of a view; the zero value is none.
type guests []guest

// meet asks the runtime for the containers of a view that it has made, with the
// CPUs and memory nodes that they should have. The caller holds mu.
func (l *Loop) meet(ctx context.Context, view *ledger.View) (guests, error) {
	if l.Runtime == nil {
		return nil, nil
	}
	l.waited = 0
	if !hasGuests(view) {
		l.recall(nil)
		return nil, nil
	}
	listed, err := l.Runtime.List(ctx)
	if err != nil {
		return nil, err
	}
	var out guests
	for _, c := range listed {
		b, bound := view.Binding(c.ID)
		if !bound || b.Own || c.Phase == runtime.Exited || l.leaving[b.Owner.Pod] {
			continue
		}
		out = append(out, guest{
			id: c.ID, owner: b.Owner, name: c.Cgroup,
			values: cgroup.Values{Cpuset: cgroup.ContainerCpuset(view, b.Owner)},
			runs:   c.Phase == runtime.Running && c.Cgroup != nil, created: c.Phase == runtime.Created,
		})
	}
	l.recall(out)
	return out, nil
}

// recall forgets starts that nothing is heard of any more, when all guests of a view
// are known. One that is young may not be bound yet. The caller holds mu.
func (l *Loop) recall(all guests) {
	now := l.Now()
	for id, s := range l.waiting {
		switch {
		case slices.ContainsFunc(all, func(g guest) bool { return g.id == id }):
		case now.Sub(s.since) < youth:
			s.created = false
			l.waiting[id] = s
		default:
			delete(l.waiting, id)
		}
	}
	maps.DeleteFunc(l.slow, func(id string, _ bool) bool {
		return !slices.ContainsFunc(all, func(g guest) bool { return g.id == id })
	})
}

func hasGuests(view *ledger.View) bool {
	for b := range view.Bindings() {
		if !b.Own {
			return true
		}
	}
	return false
}

// nodes gives the cgroups of those that run.
func (g guests) nodes() []cgroup.Node {
	var out []cgroup.Node
	for i := range g {
		if g[i].runs {
			out = append(out, cgroup.Node{Name: g[i].name, Values: g[i].values})
		}
	}
	return out
}

// at finds the one that runs in a cgroup.
func (g guests) at(name cgroup.Name) (guest, bool) {
	i := g.index(name)
	if i < 0 {
		return guest{}, false
	}
	return g[i], true
}

func (g guests) index(name cgroup.Name) int {
	return slices.IndexFunc(g, func(g guest) bool { return g.runs && g.name.Equal(name) })
}

// present drops nodes of theirs that were not seen: the container has just exited, or
// is somewhere else than the runtime says, and so counts as out of sight from here on.
// What a runtime's cgroup lacks is not berth's to repair, so it counts as valid. The
// nodes share their array with the result.
func (g guests) present(nodes []cgroup.Node, seen *cgroup.Snapshot) []cgroup.Node {
	if len(g) == 0 {
		return nodes
	}
	there := make(map[string]bool, len(seen.Nodes))
	for i := range seen.Nodes {
		o := &seen.Nodes[i]
		if o.State == cgroup.Absent {
			continue
		}
		there[o.Name.String()] = true
		if _, ok := g.at(o.Name); ok {
			o.State = cgroup.Valid
		}
	}
	return slices.DeleteFunc(nodes, func(n cgroup.Node) bool {
		i := g.index(n.Name)
		if i < 0 || there[n.Name.String()] {
			return false
		}
		g[i].runs = false
		return true
	})
}

// elsewhere observes those that do not lie among the pods.
func (l *Loop) elsewhere(ctx context.Context, g guests, seen *cgroup.Snapshot) error {
	for i := range g {
		if !g[i].runs || g[i].name.Within(l.Layout.Pods()) {
			continue
		}
		o, err := l.Tree.Observe(ctx, g[i].name, 0)
		if err != nil {
			return fmt.Errorf("observe the cgroup of container %s: %w", g[i].owner, err)
		}
		seen.Nodes = append(seen.Nodes, o.Nodes...)
	}
	return nil
}

// prepare lets those that do not run yet start with what the ledger has for them
// now. An error means that one may come to run where it must not: a runtime that is
// in the middle of a start has read what it was sent before, and shows a process only
// when that has begun. The guests may be some of those that there are. The caller
// holds mu.
func (l *Loop) prepare(ctx context.Context, g guests) error {
	var errs []error
	for i := range g {
		if g[i].runs {
			delete(l.waiting, g[i].id)
			continue
		}
		s, known := l.waiting[g[i].id]
		if !known {
			s.since = l.Now()
		}
		s.created = g[i].created
		err := l.tell(ctx, g[i].id, g[i].values)
		same := err == nil && s.sent == g[i].values.Cpuset
		switch {
		case same, err == nil && !s.soon(l.Now()):
			s.sent = g[i].values.Cpuset
			err = l.agrees(ctx, g[i])
		case err == nil:
			err = fault.Unavailablef("%w: container %s, which may have other CPUs than %s", errStarting, g[i].owner, g[i].values.CPUs)
			fallthrough
		default:
			s.sent = cgroup.Cpuset{}
		}
		l.note(g[i].id, s)
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// note remembers a start. The caller holds mu.
func (l *Loop) note(id string, s start) {
	if l.waiting == nil {
		l.waiting = map[string]start{}
	}
	l.waiting[id] = s
}

// agrees looks whether a container that should have no process has one, in other
// places than it should.
func (l *Loop) agrees(ctx context.Context, g guest) error {
	if g.name == nil {
		return nil
	}
	seen, err := l.Tree.Observe(ctx, g.name, 0)
	if err != nil {
		return err
	}
	o := seen.Find(g.name)
	if o.State == cgroup.Absent || !o.Populated || o.Values.CPUs == g.values.CPUs {
		return nil
	}
	return fault.Unavailablef("%w: container %s, on CPUs %s and not %s", errStarting, g.owner, o.Values.CPUs, g.values.CPUs)
}

// expecting tells whether a container is about to start.
func (l *Loop) expecting() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.Now()
	for _, s := range l.waiting {
		if s.soon(now) {
			return true
		}
	}
	return false
}

// update has the runtime write what an op wants.
func (l *Loop) update(ctx context.Context, g guest, v cgroup.Values) error {
	if v.CPUWeight != nil {
		v.CPUShares = g.values.CPUShares // CRI has no weight
	}
	return l.tell(ctx, g.id, v)
}

// ensureGuest puts into force where a container that a runtime has made may run,
// after all others have left. A runtime that does not know the container yet is
// about to make it, with what PreStartContainer answers. The caller holds mu.
func (l *Loop) ensureGuest(ctx context.Context, view *ledger.View, b ledger.Binding) error {
	delete(l.leaving, b.Owner.Pod)
	if err := l.settle(ctx, view); err != nil {
		return fmt.Errorf("clear the CPUs for %s: %w", b.Owner, err)
	}
	place := cgroup.ContainerCpuset(view, b.Owner)
	if err := l.Runtime.Update(ctx, b.ID, cgroup.Values{Cpuset: place}); err != nil {
		return err
	}
	l.note(b.ID, start{since: l.Now(), sent: place})
	return nil
}

// resized gives the guests of a pod with all values that a resize may change.
func (l *Loop) resized(ctx context.Context, view *ledger.View, p *ledger.Pod) (guests, error) {
	all, err := l.meet(ctx, view)
	if err != nil {
		return nil, err
	}
	var out guests
	for _, g := range all {
		if g.owner.Pod != p.UID() {
			continue
		}
		if c := p.Pod.Container(g.owner.Container); c != nil {
			g.values = cgroup.AdmittedResources(view, p, c, l.QoS.Cgroup).Values
			g.values.HugePages = nil // these cannot be resized
			out = append(out, g)
		}
	}
	return out, nil
}
