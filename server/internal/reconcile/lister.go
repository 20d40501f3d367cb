package reconcile

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/berthd/berth/managers/admission"
	"github.com/berthd/berth/managers/cgroup"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/placement"
	"github.com/berthd/berth/server/internal/runtime"
)

// errUnlisted means that a container may run that the runtime does not list.
var errUnlisted = errors.New("a container runs, or may, that the container runtime does not list")

// lister brings the tracker up to the ledger, the runtime's lists and the cgroups that were read, and the ledger's bindings up to the
// lists. The caller of its methods holds Loop.mu.
type lister struct {
	shared
	writer  *writer
	calls   *calls
	hotplug *hotplug
	opening *openings
	sharers *sharers
	leaving map[string]bool // of wanted
	unbound unbounds
	changes events
	// unlisted is the error about containers that the last list lacked.
	unlisted error
	// ended are the cgroups of containers that were unbound since the last read.
	ended []cgroup.Name
}

// track updates the tracker to the current view: the bound containers and their CPUs. Its
// time grows with the changes, unless the shared CPUs have changed.
func (ls *lister) track() {
	ls.tracker.giveUp()
	ls.trackChanges()
}

// trackChanges is track without the end of starts that take too long: an operation lists them once more before it ends them.
func (ls *lister) trackChanges() {
	last, view := ls.tracker.view, ls.cfg.View()
	ls.tracker.view = view
	all := last == nil || last.CommonCPUs() != view.CommonCPUs() || last.Machine() != view.Machine()
	if last == nil {
		for b := range view.Bindings() {
			ls.restore(b)
		}
	} else {
		for _, c := range ledger.Changes(last, view) {
			switch {
			case c.Kind == ledger.Bound:
				ls.restore(c.Binding)
			case c.Kind == ledger.Unbound && !c.Binding.Own:
				ls.tracker.forget(ofID(c.Binding.ID))
				if uid := c.Binding.Owner.Pod; !ls.leaving[uid] {
					ls.opening.again(view, uid)
				}
			case c.Kind == ledger.Unbound:
				ls.ended = append(ls.ended, ls.cfg.Layout.Driver().Parse(c.Binding.CgroupPath))
			case c.Pod != nil && !all:
				ls.opening.want(view, c.Pod.UID())
				for b := range view.BindingsOf(c.Pod.UID()) {
					ls.tracker.want(view, ls.tracker.key(b), b.Owner)
				}
			}
		}
	}
	if all {
		for b := range view.Bindings() {
			ls.tracker.want(view, ls.tracker.key(b), b.Owner)
		}
		for _, u := range ls.unbound.live {
			ls.tracker.want(view, ofCgroup(u.name), u.owner)
		}
		for uid := range ls.opening.pods {
			ls.opening.want(view, uid)
		}
		for _, s := range ls.sharers.all(nil) {
			if s.there(view) {
				ls.sharers.watch(view, s)
			}
		}
	}
}

// restore adds a bound container to the tracker, unless the tracker has it. A runtime's container is not tracked if berthd no longer
// uses a runtime.
func (ls *lister) restore(b ledger.Binding) {
	if b.Own || ls.cfg.Runtime != nil {
		ls.sharers.forgetSandbox(b)
		ls.tracker.record(placement.Event{Kind: placement.Restore, Key: ls.tracker.key(b), Owner: placement.Owner(b.Owner)})
		ls.tracker.want(ls.tracker.view, ls.tracker.key(b), b.Owner)
	}
}

// containersOf returns a view's containers that the runtime created, all or those with some ids,
// with their wanted CPUs and memory nodes. An error that wraps errUnlisted comes with the
// listed ones.
func (ls *lister) containersOf(ctx context.Context, view *ledger.View, ids []string) (runtimeContainers, error) {
	ls.track()
	var out runtimeContainers
	if ls.cfg.Runtime == nil || ids != nil && len(ids)+len(ls.calls.pods) == 0 {
		return out, nil
	}
	listed, err := ls.syncRuntime(ctx, ids)
	if listed == nil {
		ls.changes.putBack(ids, ls.calls.pods)
		return out, err
	}
	for _, c := range listed.all {
		b, bound := view.Binding(c.ID)
		if !bound || b.Own || c.Phase == runtime.Exited || ls.leaving[b.Owner.Pod] {
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
// cgroups. An error that wraps errUnlisted comes with the list.
func (ls *lister) syncRuntime(ctx context.Context, ids []string) (*listing, error) {
	return ls.syncBinding(ctx, ids, false)
}

// syncBinding does what syncRuntime does, and with adopt binds containers that have no binding.
func (ls *lister) syncBinding(ctx context.Context, ids []string, adopt bool) (*listing, error) {
	if synced := ls.calls.synced; synced != nil && synced.covers(ids, ls.calls.pods) {
		return synced, ls.unlisted
	}
	listed, err := ls.calls.list(ctx, ids, false)
	if err != nil {
		return nil, err
	}
	ls.unlisted = nil
	if ls.applyList(ctx, listed) {
		if listed, err = ls.calls.list(ctx, nil, true); err != nil {
			return nil, err
		}
		ls.applyList(ctx, listed)
	}
	ls.findSandboxes(ctx, listed)
	ls.keepBindings(ctx, listed, adopt)
	return listed, ls.unlisted
}

// shownAs are the events for the phases in a list.
var shownAs = map[runtime.Phase]placement.EventKind{
	runtime.Created: placement.ShownCreated, runtime.Running: placement.ShownRunning, runtime.Exited: placement.Ended,
}

// applyList applies a list to the tracker, and returns whether another list is needed.
func (ls *lister) applyList(ctx context.Context, listed *listing) (again bool) {
	shown := make(map[string]runtime.Container, len(listed.all))
	for _, c := range listed.all {
		shown[c.ID] = c
	}
	var errs []error
	owners := ls.tracker.concerned(listed.ids)
	for _, id := range slices.Sorted(maps.Keys(owners)) {
		owner := owners[id]
		c, ok := shown[id]
		kind := shownAs[c.Phase]
		switch {
		case !ok && ls.tracker.cannotStart(listed, id, owner):
			kind = placement.Ended
		case !ok:
			kind = placement.Unlisted
			again = again || listed.ids != nil // all are listed before anything else happens
		}
		if c.Cgroup != nil {
			ls.tracker.locate(id, c.Cgroup)
		}
		e := ls.tracker.record(placement.Event{Kind: kind, Key: ofID(id)})
		again = again || e.List
		if kind == placement.Unlisted && e.Look {
			errs = append(errs, ls.search(ctx, ledger.Binding{ID: id, Owner: owner}))
		}
		if _, bound := ls.tracker.view.Binding(id); !bound && !ls.tracker.mayRun(ofID(id)) && ls.tracker.starting[ofID(id)] == 0 {
			ls.tracker.forget(ofID(id)) // there will be no more events for it
		}
	}
	ls.unlisted = errors.Join(errs...)
	return again
}

// findSandboxes finds the sandboxes of the pods of a list.
func (ls *lister) findSandboxes(ctx context.Context, listed *listing) {
	ready := readySandboxes(listed.sandboxes)
	for _, uid := range listed.pods {
		p, known := ls.tracker.view.Pod(uid)
		isKnown := func(s runtime.Sandbox) bool {
			return slices.ContainsFunc(ls.sharers.pods[uid], func(o sharer) bool { return o.sandbox && isCalled(o.name, s.ID) })
		}
		if !known || !slices.ContainsFunc(ready[uid], func(s runtime.Sandbox) bool { return !isKnown(s) }) {
			continue
		}
		name, err := ls.cfg.Layout.Pod(p.QoS, uid)
		if err != nil {
			continue
		}
		seen, err := ls.cfg.Tree.Observe(ctx, name, 1)
		if err != nil {
			continue // the next pass tries again
		}
		for _, o := range seen.Nodes {
			if o.State != cgroup.Absent && len(o.Name) > len(name) &&
				slices.ContainsFunc(ready[uid], func(s runtime.Sandbox) bool { return isCalled(o.Name, s.ID) && !isKnown(s) }) {
				one := sharer{name: o.Name, pod: uid, sandbox: true}
				ls.sharers.add(ls.tracker.view, one)
				ls.drift.recheck(o.Name) // so it is written with its pod
			}
		}
	}
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
// is unknown.
func (ls *lister) search(ctx context.Context, b ledger.Binding) error {
	name, err := ls.kernel.alive(ctx, ls.tracker.view, b, ls.tracker.cgroups[b.ID])
	switch {
	case err != nil:
		return fmt.Errorf("%w: container %s, %s: %w", errUnlisted, b.Owner, b.ID, err)
	case name == nil:
		ls.tracker.record(placement.Event{Kind: placement.KernelEmpty, Key: ofID(b.ID)})
		return nil
	}
	ls.tracker.locate(b.ID, name)
	return ls.writer.lookAt(ctx, ofID(b.ID))
}

// noteSeen applies the observed cgroups of containers to the tracker. With whole, the
// snapshot has all cgroups of the pods.
func (ls *lister) noteSeen(g runtimeContainers, seen *cgroup.Snapshot, whole bool) {
	there := make(map[placement.Key]bool, len(seen.Nodes))
	for i := range seen.Nodes {
		o := &seen.Nodes[i]
		if o.State == cgroup.Absent {
			continue
		}
		key := ofCgroup(o.Name)
		there[key] = true
		ls.hotplug.noteScattered(g, o)
		if c, ok := g.at(key.Cgroup); ok {
			ls.tracker.record(placement.Event{Kind: placement.KernelRuns, Key: ofID(c.id), CPUs: ls.kernel.allowed(*o)})
		} else if c, ok := ls.tracker.Get(key); ok && c.Phase != placement.Planned {
			ls.tracker.record(placement.Event{Kind: placement.ShownRunning, Key: key})
			ls.tracker.record(placement.Event{Kind: placement.KernelRuns, Key: key, CPUs: ls.kernel.allowed(*o)})
			if whole && !holdsProcess(seen.Nodes[i:]) {
				ls.tracker.record(placement.Event{Kind: placement.KernelEmpty, Key: key})
			}
		}
	}
	if !whole {
		return
	}
	for c := range ls.tracker.All() {
		if c.Cgroup != "" && !there[c.Key] && c.Phase != placement.Planned {
			ls.tracker.forget(c.Key)
		}
	}
}

// takeOver binds the runtime's containers that have no binding, as containers older than
// berthd.
func (ls *lister) takeOver(ctx context.Context) {
	if ls.cfg.Runtime == nil || ls.cfg.Bindings == nil {
		return
	}
	ls.track()
	_, _ = ls.syncBinding(ctx, nil, true) // the pass reports the error
}

// keepBindings removes the ids of ended containers from the ledger and, with adopt, adds
// missing ones. It does both at once, because a list is not used to add ids if one was
// removed since.
func (ls *lister) keepBindings(ctx context.Context, listed *listing, adopt bool) {
	ended := map[string]bool{}
	for b := range ls.tracker.bindings(listed.ids) {
		if c, ok := ls.tracker.Get(ofID(b.ID)); ok && !b.Own && c.Phase == placement.Exited {
			ended[b.ID] = true
		}
	}
	var found []admission.Found
	if adopt {
		for _, c := range listed.all {
			_, bound := ls.tracker.view.Binding(c.ID)
			_, known := ls.tracker.view.Pod(c.Owner.Pod)
			if known && !bound && c.Phase != runtime.Exited && ls.tracker.starting[ofID(c.ID)] == 0 {
				found = append(found, admission.Found{ID: c.ID, Owner: c.Owner})
			}
		}
	}
	if len(ended)+len(found) == 0 || ls.cfg.Bindings == nil {
		return
	}
	done, err := ls.cfg.Bindings.ReconcileBindings(ctx, listed.before, found, func(id string) bool { return ended[id] })
	if err != nil {
		ls.cfg.Log.ErrorContext(ctx, "comparing the container ids with those of the runtime failed", "error", err)
		return
	}
	for _, b := range done.Bound {
		ls.cfg.Log.DebugContext(ctx, "a container of the runtime is taken over", "id", b.ID, "container", b.Owner.String())
	}
	for _, b := range done.Dropped {
		ls.cfg.Log.DebugContext(ctx, "a container of the runtime has ended", "id", b.ID, "container", b.Owner.String())
	}
	ls.track()
	if len(done.Bound) > 0 {
		ls.calls.synced = nil // list the new bindings, too
	}
}

// outside returns the cgroups of a pod's containers that the runtime runs outside the pod's
// cgroup. If the place of a container is unknown, the runtime is listed. If it does not
// answer, the container may run anywhere, which is an error of class Unavailable. A
// container that cannot be killed because its cgroup may contain other processes is an
// error of class Precondition.
func (ls *lister) outside(ctx context.Context, view *ledger.View, uid string) (out []cgroup.Name, err error) {
	if ls.cfg.Runtime == nil {
		return nil, nil
	}
	if now := ls.cfg.View(); now.Generation() > view.Generation() {
		view = now
	}
	ls.track()
	_, pod, err := ls.names.pod(view, uid)
	if err != nil {
		return nil, err
	}
	for b := range view.BindingsOf(uid) {
		if b.Own {
			continue
		}
		if ls.tracker.mayRun(ofID(b.ID)) && ls.tracker.cgroups[b.ID] == nil {
			if listed, away := ls.syncRuntime(ctx, nil); listed == nil {
				err = errdefs.Unavailablef("container %s (%s) may run outside of its pod's cgroup, and the container runtime does not "+
					"report where: %w", b.Owner, b.ID, away)
				continue
			}
		}
		name := ls.tracker.cgroups[b.ID]
		if name == nil || name.Within(pod) || !ls.tracker.mayRun(ofID(b.ID)) {
			continue
		}
		pids, err := ls.cfg.Tree.Procs(ctx, name)
		switch {
		case err != nil:
			return nil, fmt.Errorf("look for container %s outside of its pod's cgroup: %w", b.Owner, err)
		case len(pids) == 0:
			// The container has ended, or the runtime's name means another cgroup here.
		case !isCalled(name, b.ID):
			if _, _ = ls.syncRuntime(ctx, []string{b.ID}); !ls.tracker.mayRun(ofID(b.ID)) {
				continue // without an answer the container counts as running
			}
			return nil, errdefs.Preconditionf("container %s (%s) runs in cgroup %s, which is neither in its pod's nor called after it: "+
				"end it with the container runtime first", b.Owner, b.ID, name)
		default:
			ls.cfg.Log.WarnContext(ctx, "a container of a pod that is removed runs outside of its cgroup",
				"container", b.Owner.String(), "id", b.ID, "name", name.String())
			out = append(out, name)
		}
	}
	return out, err
}

// removeEnded removes cgroups without processes of unbound containers: a pass that began
// before the end of a container may have created its cgroup again.
func (ls *lister) removeEnded(ctx context.Context, view *ledger.View) {
	for _, name := range ls.ended {
		if ls.tracker.starting[ofCgroup(name)] > 0 || ls.writer.lookAt(ctx, ofCgroup(name)) != nil {
			continue
		}
		if _, unbound := ls.unbound.at(view, name); !unbound {
			continue
		}
		pids, err := ls.cfg.Tree.Procs(ctx, name)
		if err == nil && len(pids) == 0 {
			ls.drift.forgetAll(name)
			if err = ls.cfg.Tree.Remove(ctx, name); err == nil {
				ls.tracker.forget(ofCgroup(name))
			}
		}
		if err != nil {
			ls.cfg.Log.ErrorContext(ctx, "removing the cgroup of a container that has ended failed", "name", name.String(), "error", err)
		}
	}
	ls.ended = nil
}
