package reconcile

import (
	"iter"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/berthd/berth/managers/admission"
	"github.com/berthd/berth/managers/cgroup"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/placement"
	"github.com/berthd/berth/server/internal/runtime"
)

// tracker is placement.Tracker with what the loop knows of the same containers: where their cgroups are, and which starts and
// writes are in progress. Nothing of a container is left after forget. It does no I/O. Loop.mu guards it, except located and
// phases.
type tracker struct {
	placement.Tracker
	now    func() time.Time
	driver cgroup.Driver
	// view is the one whose bindings and CPUs the containers have; nil before the first.
	view *ledger.View
	// freed is closed when a blocked start may be tried again.
	freed chan struct{}
	// cgroups are the cgroups of the runtime's containers, by id; located has the same for readers without mu.
	cgroups map[string]cgroup.Name
	located sync.Map
	// starting are the keys of containers with a requested start.
	starting map[placement.Key]int
	writes   map[string]*write // to the runtime, by container id
	phases   atomic.Pointer[map[placement.Phase]int]
}

// newTracker returns a tracker without containers. Cgroups are named as the driver does.
func newTracker(now func() time.Time, driver cgroup.Driver) *tracker {
	return &tracker{now: now, driver: driver, freed: make(chan struct{}), cgroups: make(map[string]cgroup.Name),
		starting: make(map[placement.Key]int)}
}

// ofCgroup is the key of a cgroup of berth, and ofID that of a container of the runtime.
func ofCgroup(name cgroup.Name) placement.Key { return placement.Key{Cgroup: name.String()} }
func ofID(id string) placement.Key            { return placement.Key{ID: id} }

// key returns the key of a bound container in the tracker: the id of a container that a
// runtime created, otherwise its cgroup.
func (t *tracker) key(b ledger.Binding) placement.Key {
	if b.Own {
		return ofCgroup(t.driver.Parse(b.CgroupPath))
	}
	return ofID(b.ID)
}

// record applies an event to the tracker.
func (t *tracker) record(e placement.Event) placement.Effects {
	e.At = t.now()
	effects := t.Apply(e)
	if effects.Freed {
		t.changed()
	}
	return effects
}

// changed wakes blocked starts.
func (t *tracker) changed() {
	close(t.freed)
	t.freed = make(chan struct{})
}

// forget removes the state of a container.
func (t *tracker) forget(key placement.Key) {
	if _, known := t.Get(key); known {
		t.Forget(key)
		t.changed()
	}
	delete(t.cgroups, key.ID)
	t.located.Delete(key.ID)
	delete(t.writes, key.ID)
}

// locate notes the cgroup of a runtime's container.
func (t *tracker) locate(id string, name cgroup.Name) {
	t.cgroups[id] = name
	t.located.Store(id, name)
}

// want sets a container's CPUs of a view in the tracker.
func (t *tracker) want(view *ledger.View, key placement.Key, owner ledger.Owner) {
	t.Want(key, view.RunsOn(owner), view.OwnCPUs(owner))
}

// watch adds a cgroup with processes but without a binding to the tracker.
func (t *tracker) watch(n cgroup.Name, owner placement.Owner) {
	t.record(placement.Event{Kind: placement.Restore, Key: ofCgroup(n), Owner: owner})
}

// granted removes exclusive CPUs that another container has not left yet from a write. It
// returns an error if it did.
func (t *tracker) granted(key placement.Key, v *cgroup.Values) error {
	set := t.Grantable(key, v.CPUs)
	if set == v.CPUs {
		return nil
	}
	err := errdefs.Unavailablef("write CPUs %s of %s: %s may be in use by others", v.CPUs, key, v.CPUs.Minus(set))
	v.CPUs = set
	return err
}

// mayRun returns whether a container may have a process.
func (t *tracker) mayRun(key placement.Key) bool {
	c, ok := t.Get(key)
	return ok && c.Phase != placement.Exited && c.Phase != placement.Planned
}

// answered applies the answer of a write.
func (t *tracker) answered(id string, w *write) error {
	if !w.noted && w.err == nil && !w.values.CPUs.IsEmpty() {
		t.record(placement.Event{Kind: placement.Confirmed, Key: ofID(id), CPUs: w.values.CPUs})
	}
	w.noted = true
	return w.err
}

// elsewhereOnV1 notes that processes of a cgroup may run on the CPUs of a parent.
func (t *tracker) elsewhereOnV1(g runtimeContainers, name string) {
	key := placement.Key{Cgroup: name}
	if c, ok := g.at(name); ok {
		key = ofID(c.id)
	}
	if _, known := t.Get(key); known {
		t.record(placement.Event{Kind: placement.KernelRuns, Key: key, CPUs: t.view.Machine().CPUs()})
	}
}

// bindings returns the bindings of some ids, or all.
func (t *tracker) bindings(ids []string) iter.Seq[ledger.Binding] {
	if ids == nil {
		return t.view.Bindings()
	}
	return func(yield func(ledger.Binding) bool) {
		for _, id := range ids {
			if b, ok := t.view.Binding(id); ok && !yield(b) {
				return
			}
		}
	}
}

// concerned returns the containers that a list of some ids, or of all, may contain: bound
// ones, and those with a start without a binding.
func (t *tracker) concerned(ids []string) map[string]ledger.Owner {
	out := map[string]ledger.Owner{}
	for b := range t.bindings(ids) {
		if !b.Own {
			out[b.ID] = b.Owner
		}
	}
	for _, c := range t.Starts() {
		if c.ID != "" && (ids == nil || slices.Contains(ids, c.ID)) {
			out[c.ID] = ledger.Owner(c.Owner)
		}
	}
	return out
}

// cannotStart returns whether a container without a process, whose start was allowed, can
// no longer start: a later list of all lacks it, and its pod has no sandbox. A runtime
// lists a container before its id is known to others, and keeps it in the list during its
// start.
func (t *tracker) cannotStart(listed *listing, id string, owner ledger.Owner) bool {
	c, ok := t.Get(ofID(id))
	return ok && c.Phase == placement.Starting && t.starting[ofID(id)] == 0 && listed.ids == nil && c.Since.Before(listed.at) &&
		!slices.ContainsFunc(listed.sandboxes, func(s runtime.Sandbox) bool { return s.Ready && s.Pod == owner.Pod })
}

// podsOfStarts returns the pods of the given containers that are being started.
func (t *tracker) podsOfStarts(ids []string) (uids []string) {
	for _, c := range t.Starts() {
		if slices.Contains(ids, c.ID) && !slices.Contains(uids, c.Owner.Pod) {
			uids = append(uids, c.Owner.Pod)
		}
	}
	return uids
}

// isStarting returns whether a start in a pod may be in progress.
func (t *tracker) isStarting(uid string) bool {
	return slices.ContainsFunc(t.Starts(), func(c placement.Container) bool { return c.Owner.Pod == uid })
}

// beginStart records a requested start.
func (t *tracker) beginStart(key placement.Key) { t.starting[key]++ }

// planStart adds a container with a requested start to the tracker.
func (t *tracker) planStart(view *ledger.View, key placement.Key, s admission.Start) {
	if s.Still && !s.Again {
		t.record(placement.Event{Kind: placement.Withdraw, Key: key}) // the earlier answer was not sent
	}
	t.record(placement.Event{Kind: placement.Plan, Key: key, Owner: placement.Owner(s.Binding.Owner)})
	t.want(view, key, s.Binding.Owner)
}

// giveUp ends starts that have taken too long. A container whose start was allowed, and
// that has no binding by then, was unbound again.
func (t *tracker) giveUp() {
	for _, key := range t.Overdue(t.now()) {
		t.record(placement.Event{Kind: placement.StartOverdue, Key: key})
		if _, bound := t.view.Binding(key.ID); !bound && key.Cgroup == "" && t.starting[key] == 0 {
			t.forget(key)
		}
	}
}

// endStart ends a requested start. A container whose start was not allowed is removed, unless it is bound in a view.
func (t *tracker) endStart(view *ledger.View, key placement.Key, id string) {
	t.Unblock(key)
	if t.starting[key]--; t.starting[key] == 0 {
		delete(t.starting, key)
	}
	if c, ok := t.Get(key); ok && c.Phase == placement.Planned && t.starting[key] == 0 {
		if _, bound := view.Binding(id); !bound {
			t.forget(key)
		}
	}
}

// countPhases stores the number of containers in each phase.
func (t *tracker) countPhases() {
	counted := t.Count()
	t.phases.Store(&counted)
}
