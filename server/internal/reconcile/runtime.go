package reconcile

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/berthd/berth/managers/admission"
	"github.com/berthd/berth/managers/cgroup"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/placement"
	"github.com/berthd/berth/server/internal/runtime"
)

// errUnlisted means that a container may run that the runtime does not list.
var errUnlisted = errors.New("a container runs, or may, that the container runtime does not list")

// runtimeContainer is a bound container created by a runtime.
type runtimeContainer struct {
	id    string
	owner ledger.Owner
	// name is nil if the runtime does not report it.
	name   cgroup.Name
	values cgroup.Values
	// runs means that it has a process, and that its cgroup can be read.
	runs bool
}

// runtimeContainers are those of a view; the zero value is empty.
type runtimeContainers struct {
	all []runtimeContainer
	// running are the indexes of those that run, by the name of their cgroup.
	running map[string]int
}

func (g *runtimeContainers) add(c runtimeContainer) {
	if c.runs {
		if g.running == nil {
			g.running = map[string]int{}
		}
		g.running[c.name.String()] = len(g.all)
	}
	g.all = append(g.all, c)
}

// nodes returns the cgroups of the running ones.
func (g *runtimeContainers) nodes() []cgroup.Node {
	var out []cgroup.Node
	for _, c := range g.all {
		if c.runs {
			out = append(out, cgroup.Node{Name: c.name, Values: c.values})
		}
	}
	return out
}

// at returns the one that runs in a cgroup.
func (g *runtimeContainers) at(name string) (runtimeContainer, bool) {
	i, ok := g.running[name]
	if !ok {
		return runtimeContainer{}, false
	}
	return g.all[i], true
}

// present removes nodes of these containers that were not observed: the container has just
// exited, or is in another cgroup than the runtime reports. Then it counts as not running.
// berth does not repair a runtime's cgroup, so it counts as valid. The nodes share their
// array with the result.
func (g *runtimeContainers) present(nodes []cgroup.Node, seen *cgroup.Snapshot) []cgroup.Node {
	if len(g.running) == 0 {
		return nodes
	}
	there := make(map[string]bool, len(g.running))
	for i := range seen.Nodes {
		o := &seen.Nodes[i]
		key := o.Name.String()
		if _, ok := g.running[key]; ok && o.State != cgroup.Absent {
			there[key], o.State = true, cgroup.Valid
		}
	}
	return slices.DeleteFunc(nodes, func(n cgroup.Node) bool {
		key := n.Name.String()
		i, ok := g.running[key]
		if !ok || there[key] {
			return false
		}
		g.all[i].runs = false
		delete(g.running, key)
		return true
	})
}

// containersOf returns a view's containers that the runtime created, all or those with some ids,
// with their wanted CPUs and memory nodes. An error that wraps errUnlisted comes with the
// listed ones. The caller holds mu.
func (l *Loop) containersOf(ctx context.Context, view *ledger.View, ids []string) (runtimeContainers, error) {
	l.track()
	var out runtimeContainers
	if l.Runtime == nil || ids != nil && len(ids)+len(l.calls.pods) == 0 {
		return out, nil
	}
	listed, err := l.syncRuntime(ctx, ids)
	if listed == nil {
		l.changes.putBack(ids, l.calls.pods)
		return out, err
	}
	for _, c := range listed.all {
		b, bound := view.Binding(c.ID)
		if !bound || b.Own || c.Phase == runtime.Exited || l.wanted.leaving[b.Owner.Pod] {
			continue
		}
		out.add(runtimeContainer{
			id: c.ID, owner: b.Owner, name: c.Cgroup,
			values: cgroup.Values{Cpuset: cgroup.ContainerCpuset(view, b.Owner)},
			runs:   c.Phase == runtime.Running && c.Cgroup != nil,
		})
	}
	return out, err
}

// syncRuntime lists containers of the runtime and applies the list to the tracker. If bound
// containers are missing, it lists all once more before it acts. Then it reads their
// cgroups. An error that wraps errUnlisted comes with the list. The caller holds mu.
func (l *Loop) syncRuntime(ctx context.Context, ids []string) (*listing, error) {
	if synced := l.calls.synced; synced != nil && synced.covers(ids, l.calls.pods) {
		return synced, l.unlisted
	}
	listed, err := l.calls.list(ctx, ids, false)
	if err != nil {
		return nil, err
	}
	l.unlisted = nil
	if l.applyList(ctx, listed) {
		if listed, err = l.calls.list(ctx, nil, true); err != nil {
			return nil, err
		}
		l.applyList(ctx, listed)
	}
	l.findSandboxes(ctx, listed)
	l.keepBindings(ctx, listed)
	return listed, l.unlisted
}

// shownAs are the events for the phases in a list.
var shownAs = map[runtime.Phase]placement.EventKind{
	runtime.Created: placement.ShownCreated, runtime.Running: placement.ShownRunning, runtime.Exited: placement.Ended,
}

// applyList applies a list to the tracker, and returns whether another list is needed. The
// caller holds mu.
func (l *Loop) applyList(ctx context.Context, listed *listing) (again bool) {
	shown := make(map[string]runtime.Container, len(listed.all))
	for _, c := range listed.all {
		shown[c.ID] = c
	}
	var errs []error
	owners := l.tracker.concerned(listed.ids)
	for _, id := range slices.Sorted(maps.Keys(owners)) {
		owner := owners[id]
		c, ok := shown[id]
		kind := shownAs[c.Phase]
		switch {
		case !ok && l.tracker.cannotStart(listed, id, owner):
			kind = placement.Ended
		case !ok:
			kind = placement.Unlisted
			again = again || listed.ids != nil // all are listed before anything else happens
		}
		if c.Cgroup != nil {
			l.tracker.locate(id, c.Cgroup)
		}
		e := l.tracker.record(placement.Event{Kind: kind, Key: ofID(id)})
		again = again || e.List
		if kind == placement.Unlisted && e.Look {
			errs = append(errs, l.search(ctx, ledger.Binding{ID: id, Owner: owner}))
		}
		if _, bound := l.tracker.view.Binding(id); !bound && !l.tracker.mayRun(ofID(id)) && l.tracker.starting[ofID(id)] == 0 {
			l.tracker.forget(ofID(id)) // there will be no more events for it
		}
	}
	l.unlisted = errors.Join(errs...)
	return again
}

// manyIDs is the number of containers from which all are listed.
const manyIDs = 16

// few returns the ids to list; nil, which means all, if there are many.
func few(ids []string) []string {
	if len(ids) >= manyIDs {
		return nil
	}
	return append([]string{}, ids...)
}

// search reads the cgroup of a container that the runtime does not list. An error, which
// wraps errUnlisted, means that the container runs on CPUs where it must not, or that this
// is unknown. The caller holds mu.
func (l *Loop) search(ctx context.Context, b ledger.Binding) error {
	name, err := l.kernel.alive(ctx, l.tracker.view, b, l.tracker.cgroups[b.ID])
	switch {
	case err != nil:
		return fmt.Errorf("%w: container %s, %s: %w", errUnlisted, b.Owner, b.ID, err)
	case name == nil:
		l.tracker.record(placement.Event{Kind: placement.KernelEmpty, Key: ofID(b.ID)})
		return nil
	}
	l.tracker.locate(b.ID, name)
	return l.writer.lookAt(ctx, ofID(b.ID))
}

// takeOver binds the runtime's containers that have no binding, as containers older than
// berthd. The caller holds mu.
func (l *Loop) takeOver(ctx context.Context) {
	if l.Runtime == nil || l.Bindings == nil {
		return
	}
	l.track()
	l.adopts = true
	_, _ = l.syncRuntime(ctx, nil) // the pass reports the error
	l.adopts = false
}

// keepBindings removes the ids of ended containers from the ledger and, in a pass, adds
// missing ones. It does both at once, because a list is not used to add ids if one was
// removed since. The caller holds mu.
func (l *Loop) keepBindings(ctx context.Context, listed *listing) {
	ended := map[string]bool{}
	for b := range l.tracker.bindings(listed.ids) {
		if c, ok := l.tracker.Get(ofID(b.ID)); ok && !b.Own && c.Phase == placement.Exited {
			ended[b.ID] = true
		}
	}
	var found []admission.Found
	if l.adopts {
		for _, c := range listed.all {
			_, bound := l.tracker.view.Binding(c.ID)
			_, known := l.tracker.view.Pod(c.Owner.Pod)
			if known && !bound && c.Phase != runtime.Exited && l.tracker.starting[ofID(c.ID)] == 0 {
				found = append(found, admission.Found{ID: c.ID, Owner: c.Owner})
			}
		}
	}
	if len(ended)+len(found) > 0 {
		l.reconcileBindings(ctx, listed.before, found, ended)
	}
}

// reconcileBindings changes the ledger's bindings. The caller holds mu.
func (l *Loop) reconcileBindings(ctx context.Context, before *ledger.View, found []admission.Found, ended map[string]bool) {
	if l.Bindings == nil {
		return
	}
	done, err := l.Bindings.ReconcileBindings(ctx, before, found, func(id string) bool { return ended[id] })
	if err != nil {
		l.Log.ErrorContext(ctx, "comparing the container ids with those of the runtime failed", "error", err)
		return
	}
	for _, b := range done.Bound {
		l.Log.DebugContext(ctx, "a container of the runtime is taken over", "id", b.ID, "container", b.Owner.String())
	}
	for _, b := range done.Dropped {
		l.Log.DebugContext(ctx, "a container of the runtime has ended", "id", b.ID, "container", b.Owner.String())
	}
	l.track()
	if len(done.Bound) > 0 {
		l.calls.synced = nil // list the new bindings, too
	}
}

// isCalled returns whether a cgroup is named after a container in one of the runtimes'
// ways: ID, PREFIX-ID or PREFIX-ID.scope. The cgroup of conmon, CRI-O's monitor of a
// container, has a similar name that does not match.
func isCalled(name cgroup.Name, id string) bool {
	prefix, ok := strings.CutSuffix(strings.TrimSuffix(name.Base(), ".scope"), id)
	return ok && (prefix == "" || strings.HasSuffix(prefix, "-") && !strings.HasSuffix(prefix, "-conmon-"))
}

// Lives returns whether a container that a runtime created has processes, according to the
// kernel.
func (l *Loop) Lives(ctx context.Context, b ledger.Binding) (bool, error) {
	if err := l.mu.enter(ctx); err != nil {
		return false, err
	}
	defer l.mu.Unlock()
	view := l.View()
	if _, here := view.Pod(b.Owner.Pod); !here {
		return false, nil
	}
	name, err := l.kernel.alive(ctx, view, b, l.tracker.cgroups[b.ID])
	return name != nil, err
}

// outside returns the cgroups of a pod's containers that the runtime runs outside the pod's
// cgroup. If the place of a container is unknown, the runtime is listed. If it does not
// answer, the container may run anywhere, which is an error of class Unavailable. A
// container that cannot be killed because its cgroup may contain other processes is an
// error of class Precondition. The caller holds mu.
func (l *Loop) outside(ctx context.Context, view *ledger.View, uid string) (out []cgroup.Name, err error) {
	if l.Runtime == nil {
		return nil, nil
	}
	if now := l.View(); now.Generation() > view.Generation() {
		view = now
	}
	l.track()
	_, pod, err := l.names.pod(view, uid)
	if err != nil {
		return nil, err
	}
	for b := range view.BindingsOf(uid) {
		if b.Own || l.tracker.mayRun(ofID(b.ID)) && l.tracker.cgroups[b.ID] == nil && l.isUnlocated(ctx, b, &err) {
			continue
		}
		name := l.tracker.cgroups[b.ID]
		if name == nil || name.Within(pod) || !l.tracker.mayRun(ofID(b.ID)) {
			continue
		}
		pids, err := l.Tree.Procs(ctx, name)
		switch {
		case err != nil:
			return nil, fmt.Errorf("look for container %s outside of its pod's cgroup: %w", b.Owner, err)
		case len(pids) == 0:
			// The container has ended, or the runtime's name means another cgroup here.
		case !isCalled(name, b.ID) && !l.hasEnded(ctx, b.ID):
			return nil, errdefs.Preconditionf("container %s (%s) runs in cgroup %s, which is neither in its pod's nor called after it: "+
				"end it with the container runtime first", b.Owner, b.ID, name)
		case isCalled(name, b.ID):
			l.Log.WarnContext(ctx, "a container of a pod that is removed runs outside of its cgroup",
				"container", b.Owner.String(), "id", b.ID, "name", name.String())
			out = append(out, name)
		}
	}
	return out, err
}

// isUnlocated lists the runtime for a container with an unknown place. It stores an error
// if the runtime does not answer. The caller holds mu.
func (l *Loop) isUnlocated(ctx context.Context, b ledger.Binding, noted *error) bool {
	listed, err := l.syncRuntime(ctx, nil)
	if listed == nil {
		*noted = errdefs.Unavailablef("container %s (%s) may run outside of its pod's cgroup, and the container runtime does not report where: %w", b.Owner, b.ID, err)
		return true
	}
	return false
}

// hasEnded returns whether the runtime lists a container as ended. The caller holds mu.
func (l *Loop) hasEnded(ctx context.Context, id string) bool {
	_, _ = l.syncRuntime(ctx, []string{id}) // without an answer it counts as not ended
	return !l.tracker.mayRun(ofID(id))
}

// resized returns the runtime's containers of a pod with all values that a resize may
// change. The caller holds mu.
func (l *Loop) resized(ctx context.Context, view *ledger.View, p *ledger.Pod) (runtimeContainers, error) {
	all, err := l.containersOf(ctx, view, nil)
	if err != nil && !errors.Is(err, errUnlisted) {
		return runtimeContainers{}, err
	}
	for b := range view.BindingsOf(p.UID()) {
		if c, ok := l.tracker.Get(ofID(b.ID)); ok && !b.Own && c.Phase == placement.Unknown {
			return runtimeContainers{}, errdefs.Unavailablef("%w: container %s", errUnlisted, b.Owner)
		}
	}
	var out runtimeContainers
	for _, g := range all.all {
		if g.owner.Pod != p.UID() {
			continue
		}
		if values, ok := resizable(view, p, g.owner.Container, l.QoS.Cgroup); ok {
			g.values = values
			g.values.Cpuset = cgroup.ContainerCpuset(l.View(), g.owner) // view may be older
			out.add(g)
		}
	}
	return out, nil
}
