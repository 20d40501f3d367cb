package reconcile

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/berthd/berth/managers/admission"
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

// guests are those of a view; the zero value is none.
type guests []guest

// meet asks the runtime for the containers of a view that it has made, with the
// CPUs and memory nodes that they should have. An error that wraps errLost comes with
// those that it has told of. The caller holds mu.
func (l *Loop) meet(ctx context.Context, view *ledger.View) (guests, error) {
	if l.Runtime == nil {
		return nil, nil
	}
	if !hasGuests(view) {
		l.recall(nil)
		l.strays, l.home, l.lost = nil, nil, nil
		return nil, nil
	}
	listed, err := l.list(ctx)
	if err != nil {
		return nil, err
	}
	var out guests
	shown := make(map[string]runtime.Phase, len(listed))
	for _, c := range listed {
		shown[c.ID] = c.Phase
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
	l.locate(view, out, shown)
	return out, l.search(ctx, view, shown)
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
func (l *Loop) ensureGuest(ctx context.Context, view *ledger.View, s admission.Start) error {
	b := s.Binding
	if err := l.clear(ctx, view, b.Owner); err != nil {
		return err
	}
	place := cgroup.ContainerCpuset(view, b.Owner)
	err := l.tell(ctx, b.ID, cgroup.Values{Cpuset: place})
	was := l.waiting[b.ID]
	repeated := was.repeats(s)
	if repeated && was.sent != place {
		// A start that was allowed before may have read what was sent then, and the
		// binding was lost meanwhile, or somebody would have looked.
		was.sent, place = cgroup.Cpuset{}, cgroup.Cpuset{}
		l.note(b.ID, was)
		l.settled = nil
	}
	if err != nil {
		return err
	}
	l.note(b.ID, start{since: l.Now(), sent: place, told: true, before: repeated})
	l.asking.drop(b.ID) // before anybody else can look
	return nil
}

// resized gives the guests of a pod with all values that a resize may change.
func (l *Loop) resized(ctx context.Context, view *ledger.View, p *ledger.Pod) (guests, error) {
	all, err := l.meet(ctx, view)
	if err != nil && !errors.Is(err, errLost) {
		return nil, err
	}
	if i := slices.IndexFunc(l.lost, func(o ledger.Owner) bool { return o.Pod == p.UID() }); i >= 0 {
		return nil, fault.Unavailablef("%w: container %s", errLost, l.lost[i])
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
