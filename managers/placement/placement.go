package placement

import (
	"cmp"
	"fmt"
	"iter"
	"maps"
	"slices"
	"time"

	"github.com/berthd/berth/managers/cpuset"
)

// StartTime is how long a start may take, from the answer that allows it until a
// source shows a process. Kubelets give a runtime as much for one call.
const StartTime = 2 * time.Minute

// Container is what is known of one container.
type Container struct {
	// ID is the runtime's, Name what people call the container: POD/CONTAINER.
	ID, Name string
	Phase    Phase
	// Since is when the phase began, or a start was last allowed.
	Since time.Time
	// WantedCPUs are those that the ledger has for it, OwnCPUs those of them that it has
	// exclusively.
	WantedCPUs, OwnCPUs cpuset.Set
	// AssignedCPUs are the set that was written last and confirmed.
	AssignedCPUs cpuset.Set
	// PossibleCPUs are all sets that were sent and not disproved; Anywhere says that it
	// may run on any other CPU too.
	PossibleCPUs cpuset.Set
	Anywhere     bool
	// BlockedBy are the names of the containers that have to leave its own CPUs before
	// it may start, since BlockedSince.
	BlockedBy    []string
	BlockedSince time.Time

	confirmed cpuset.Set // the possible CPUs but for those in flight
	flight    []cpuset.Set
}

// Event is something that has happened to a container.
type Event struct {
	Kind EventKind
	ID   string
	// Name is needed with Plan and Restore.
	Name string
	// CPUs are the set that was sent, confirmed, failed or refused, or that the kernel
	// shows; the kernel's must have been read after what was told before the event.
	CPUs cpuset.Set
	At   time.Time
}

// Effects are what a caller has to do after an event.
type Effects struct {
	// Look: read the kernel's view of the container and feed KernelRuns or KernelEmpty.
	Look bool
	// List: ask for another list, which must begin after this event.
	List bool
	// Freed: the container may not run any more on some CPU where it might. Somebody may
	// be blocked no longer.
	Freed bool
}

// Tracker knows all containers. The zero value knows none; it is not safe for
// concurrent use.
type Tracker struct {
	containers map[string]*Container
	// starting are those with a start that is, or may be, under way; phases says how many
	// are in each phase.
	starting map[string]*Container
	phases   map[Phase]int
}

// Apply takes an event. An event about a container that is not known does nothing,
// unless it is Plan or Restore.
func (t *Tracker) Apply(e Event) Effects {
	c := t.containers[e.ID]
	if c == nil {
		if e.Kind != Plan && e.Kind != Restore {
			return Effects{}
		}
		if t.containers == nil {
			t.containers = map[string]*Container{}
		}
		c = &Container{ID: e.ID}
		t.containers[e.ID] = c
		t.enter(c, Exited, e.At)
	}
	if e.Name != "" {
		c.Name = e.Name
	}
	step, known := table[e.Kind][c.Phase]
	if !known {
		return Effects{}
	}
	before, anywhere := c.possible()
	if step.next != c.Phase || e.Kind == Allow {
		t.enter(c, step.next, e.At)
	}
	c.change(step.do, e)
	after, still := c.possible()
	return Effects{Look: step.look, List: step.list, Freed: !before.IsSubsetOf(after) || anywhere && !still}
}

// enter notes that a phase has begun.
func (t *Tracker) enter(c *Container, phase Phase, at time.Time) {
	if t.phases == nil {
		t.starting, t.phases = map[string]*Container{}, map[Phase]int{}
	}
	t.leave(c)
	c.Phase, c.Since = phase, at
	t.phases[phase]++
	if phase == Starting || phase == Created {
		t.starting[c.ID] = c
	}
}

// leave takes a container out of what is known of its phase.
func (t *Tracker) leave(c *Container) {
	delete(t.starting, c.ID)
	if t.phases[c.Phase]--; t.phases[c.Phase] <= 0 {
		delete(t.phases, c.Phase)
	}
}

// change carries out what a cell says of the possible CPUs.
func (c *Container) change(do effect, e Event) {
	switch do {
	case add:
		if e.Kind == Sent {
			c.flight = append(c.flight, e.CPUs)
		} else {
			c.confirmed = c.confirmed.Union(e.CPUs)
		}
	case become, arrive:
		if e.Kind == Confirmed {
			c.AssignedCPUs = e.CPUs
			c.disprove(e.CPUs, do == arrive)
		}
		if do == become {
			c.confirmed, c.Anywhere = e.CPUs, false
		} else {
			c.confirmed = c.confirmed.Union(e.CPUs)
		}
	case retract:
		if i := slices.Index(c.flight, e.CPUs); i >= 0 {
			c.flight = slices.Delete(c.flight, i, i+1)
		}
	case none, all:
		c.confirmed, c.flight, c.Anywhere = cpuset.Set{}, nil, do == all
	}
	c.PossibleCPUs = c.confirmed.Union(cpuset.UnionOf(c.flight...))
}

// disprove ends the flight of a set that is confirmed and of those that were sent before
// it. They settle where a start may have read them.
func (c *Container) disprove(set cpuset.Set, settle bool) {
	for i := len(c.flight) - 1; i >= 0; i-- {
		if c.flight[i] != set {
			continue
		}
		if settle {
			c.confirmed = c.confirmed.Union(cpuset.UnionOf(c.flight[:i]...))
		}
		c.flight = slices.Delete(c.flight, 0, i+1)
		return
	}
}

// possible gives the CPUs on which processes may run; anywhere means all.
func (c *Container) possible() (cpus cpuset.Set, anywhere bool) {
	if c.Phase == Planned || c.Phase == Exited {
		return cpuset.Set{}, false
	}
	return c.PossibleCPUs, c.Anywhere
}

// on gives those of some CPUs on which processes may run.
func (c *Container) on(cpus cpuset.Set) cpuset.Set {
	possible, anywhere := c.possible()
	if anywhere {
		return cpus
	}
	return possible.Intersect(cpus)
}

// Want sets what the ledger has for a container, and which CPUs of that it has
// exclusively. Before Blockers, Grantable and Writes it is to be called for all
// containers for which the ledger has something else now.
func (t *Tracker) Want(id string, cpus, own cpuset.Set) {
	if c := t.containers[id]; c != nil {
		c.WantedCPUs, c.OwnCPUs = cpus, own
	}
}

// Forget drops a container that nobody will tell of again.
func (t *Tracker) Forget(id string) {
	if c := t.containers[id]; c != nil {
		t.leave(c)
		delete(t.containers, id)
	}
}

// Get returns what is known of a container.
func (t *Tracker) Get(id string) (Container, bool) {
	c := t.containers[id]
	if c == nil {
		return Container{}, false
	}
	return c.copy(), true
}

// All lists the containers in the order of their ids.
func (t *Tracker) All() iter.Seq[Container] {
	return func(yield func(Container) bool) {
		for _, id := range slices.Sorted(maps.Keys(t.containers)) {
			if c := t.containers[id]; c != nil && !yield(c.copy()) {
				return
			}
		}
	}
}

// intrudes gives the own CPUs of an owner on which another container may be and should
// not.
func (c *Container) intrudes(owner *Container) cpuset.Set {
	if c == owner || owner.OwnCPUs.IsEmpty() {
		return cpuset.Set{}
	}
	return c.on(owner.OwnCPUs).Minus(c.WantedCPUs)
}

// copy keeps a reader from what changes later. Containers that cannot run have no
// possible CPUs.
func (c *Container) copy() Container {
	out := *c
	out.PossibleCPUs, out.Anywhere = c.possible()
	out.BlockedBy, out.flight = slices.Clone(c.BlockedBy), nil
	return out
}

// Starts lists the containers with a start that is, or may be, under way, in the order of
// their ids.
func (t *Tracker) Starts() (out []Container) {
	for _, id := range slices.Sorted(maps.Keys(t.starting)) {
		out = append(out, t.starting[id].copy())
	}
	return out
}

// Overdue tells of the starts that have taken too long. StartOverdue is to be applied to
// each.
func (t *Tracker) Overdue(now time.Time) (ids []string) {
	for _, c := range t.Starts() {
		if !now.Before(c.Since.Add(StartTime)) {
			ids = append(ids, c.ID)
		}
	}
	return ids
}

// Blocker is a container that keeps another one from its start.
type Blocker struct {
	ID, Name string
	Phase    Phase
	// CPUs are those on which both would be.
	CPUs cpuset.Set
}

// String says in which way the container is in the way.
func (b Blocker) String() string {
	what := map[Phase]string{
		Starting: "which is being started", Created: "which is being started", Stopping: "which is ending",
		Unknown: "of which nobody tells where it runs",
	}[b.Phase]
	if what == "" {
		what = "which is " + string(b.Phase)
	}
	return fmt.Sprintf("CPUs %s may be in use by container %s, %s", b.CPUs, b.Name, what)
}

// Blockers lists who has to leave before a container may start: the containers that may
// be on its own CPUs, in the order of their ids.
func (t *Tracker) Blockers(id string) []Blocker {
	return t.others(id, func(c, o *Container) cpuset.Set { return o.intrudes(c) })
}

// Intrusions lists the containers that were let start on own CPUs on which a container
// may be, in the order of their ids. A runtime that asks once more before the first
// instruction of a container, as NRI does with StartContainer, is told to end the start.
func (t *Tracker) Intrusions(id string) []Blocker {
	return t.others(id, func(c, o *Container) cpuset.Set {
		if o.Phase == Planned || o.Phase == Exited {
			return cpuset.Set{}
		}
		return c.intrudes(o)
	})
}

// others lists the containers that have CPUs in common with one.
func (t *Tracker) others(id string, common func(c, other *Container) cpuset.Set) (out []Blocker) {
	c := t.containers[id]
	if c == nil {
		return nil
	}
	for _, o := range t.containers {
		if both := common(c, o); !both.IsEmpty() {
			out = append(out, Blocker{o.ID, o.Name, o.Phase, both})
		}
	}
	slices.SortFunc(out, func(a, b Blocker) int { return cmp.Compare(a.ID, b.ID) })
	return out
}

// Block is Blockers for a start that was asked for: the answer is noted in the container
// as BlockedBy and BlockedSince. The latter stays until nobody blocks it any more.
func (t *Tracker) Block(id string, now time.Time) []Blocker {
	out := t.Blockers(id)
	if c := t.containers[id]; c != nil {
		c.BlockedBy = nil
		for _, b := range out {
			c.BlockedBy = append(c.BlockedBy, b.Name)
		}
		if len(out) == 0 {
			c.BlockedSince = time.Time{}
		} else if c.BlockedSince.IsZero() {
			c.BlockedSince = now
		}
	}
	return out
}

// Unblock ends that a container is blocked: nobody asks for its start any more.
func (t *Tracker) Unblock(id string) {
	if c := t.containers[id]; c != nil {
		c.BlockedBy, c.BlockedSince = nil, time.Time{}
	}
}

// Released gives those of some CPUs on which no container but one may run; an empty id
// excepts none.
func (t *Tracker) Released(cpus cpuset.Set, except string) cpuset.Set {
	for id, c := range t.containers {
		if id != except {
			cpus = cpus.Minus(c.on(cpus))
		}
	}
	return cpus
}

// Grantable gives those of some CPUs that may be written to a container now: not the own
// CPUs that another one has not left yet, unless the container may be there anyway.
func (t *Tracker) Grantable(id string, cpus cpuset.Set) cpuset.Set {
	owner := t.containers[id]
	if owner == nil || !owner.OwnCPUs.Overlaps(cpus) {
		return cpus
	}
	var taken cpuset.Set
	for _, c := range t.containers {
		taken = taken.Union(c.intrudes(owner))
	}
	return cpus.Minus(taken.Minus(owner.on(taken)))
}

// Write is a set of CPUs that a container is to get.
type Write struct {
	ID   string
	CPUs cpuset.Set
}

// Writes lists what to write where a container may run elsewhere than the ledger says,
// in this order: first who is to leave own CPUs of others, then who shares, then who has
// CPUs of its own. Of those a container gets what is Grantable; once the others have
// left, the next call gives it the rest. Planned containers get theirs when their start
// is asked for.
func (t *Tracker) Writes() []Write {
	type ranked struct {
		Write
		rank int
	}
	var out []ranked
	owned := t.owned()
	for _, c := range t.containers {
		if c.Phase == Planned || c.Phase == Exited || c.WantedCPUs.IsEmpty() {
			continue
		}
		to := t.Grantable(c.ID, c.WantedCPUs)
		if to.IsEmpty() || c.keeps(to) {
			continue
		}
		w := ranked{Write{c.ID, to}, 1}
		switch {
		case !c.on(owned.Minus(c.OwnCPUs)).IsEmpty():
			w.rank = 0
		case !c.OwnCPUs.IsEmpty():
			w.rank = 2
		}
		out = append(out, w)
	}
	slices.SortFunc(out, func(a, b ranked) int { return cmp.Or(cmp.Compare(a.rank, b.rank), cmp.Compare(a.ID, b.ID)) })
	writes := make([]Write, len(out))
	for i, w := range out {
		writes[i] = w.Write
	}
	return writes
}

// Doubtful lists the containers that are where the ledger says, and for which an earlier
// write is in flight: until another one is confirmed it may be carried out late. They come
// in the order of their ids.
func (t *Tracker) Doubtful() []Write {
	var out []Write
	for _, c := range t.containers {
		if len(c.flight) > 0 && c.confirmed == c.WantedCPUs && c.Phase != Planned && c.Phase != Exited {
			out = append(out, Write{c.ID, c.WantedCPUs})
		}
	}
	slices.SortFunc(out, func(a, b Write) int { return cmp.Compare(a.ID, b.ID) })
	return out
}

// keeps tells whether nothing has to be written for a container to keep to some CPUs. As
// long as a start may have read another set, it is enough that the last write was
// confirmed: the container is compared when it shows a process.
func (c *Container) keeps(cpus cpuset.Set) bool {
	switch c.Phase {
	case Starting, Created, Unknown:
		return cpus == c.AssignedCPUs && len(c.flight) == 0
	default:
		return cpus == c.confirmed && cpus == c.PossibleCPUs && !c.Anywhere
	}
}

// owned gives the CPUs that somebody has exclusively.
func (t *Tracker) owned() (cpus cpuset.Set) {
	for _, c := range t.containers {
		if c.Phase != Exited {
			cpus = cpus.Union(c.OwnCPUs)
		}
	}
	return cpus
}

// Count gives how many containers are in each phase.
func (t *Tracker) Count() map[Phase]int { return maps.Clone(t.phases) }
