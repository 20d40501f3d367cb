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

// StartTime limits a start, from the answer that allows it until a source shows a process.
// The kubelet gives a runtime the same time for one call.
const StartTime = 2 * time.Minute

// Key names a container: one that a runtime has created by its id there, any other by its cgroup.
type Key struct {
	ID     string // empty if it is named by its cgroup
	Cgroup string // empty if it is named by its id
}

// String returns the id or the cgroup.
func (k Key) String() string { return cmp.Or(k.Cgroup, k.ID) }

// Compare orders keys.
func (k Key) Compare(o Key) int {
	return cmp.Or(cmp.Compare(k.Cgroup, o.Cgroup), cmp.Compare(k.ID, o.ID))
}

// Owner is the pod of a container, by its uid, and the container's name in it.
type Owner struct{ Pod, Container string }

// Container is the state of one container.
type Container struct {
	Key
	Owner Owner
	// Name is the name for people.
	Name  string
	Phase Phase
	// Since is the beginning of the phase, or the last time that a start was allowed.
	Since time.Time
	// WantedCPUs are the container's CPUs in the ledger. OwnCPUs are the exclusive ones
	// among them.
	WantedCPUs, OwnCPUs cpuset.Set
	// AssignedCPUs are the last set that was written and confirmed. A process that is shown after missed may not have them: then
	// they are what the kernel shows of it at first, and none before.
	AssignedCPUs cpuset.Set
	// PossibleCPUs are all sets that were sent and not disproved. If Anywhere is set, the
	// container may also run on any other CPU.
	PossibleCPUs cpuset.Set
	Anywhere     bool
	// BlockedBy are the containers that block the start, since BlockedSince.
	BlockedBy    []Owner
	BlockedSince time.Time

	missed    bool       // a start may have read another set than the last one that was confirmed
	confirmed cpuset.Set // the possible CPUs without those in flight
	flight    []cpuset.Set
	group     group // in which Tracker.groups has it
}

// group are containers with the same possible CPUs.
type group struct {
	cpus     cpuset.Set
	anywhere bool
}

// Event is a change of a container.
type Event struct {
	Kind EventKind
	Key  Key
	// Owner or Name is required for Plan and Restore. Without a name it is POD/CONTAINER.
	Owner Owner
	Name  string
	// CPUs are the set that was sent, confirmed or refused, or the kernel's set.
	// The kernel must have been read after all earlier events.
	CPUs cpuset.Set
	At   time.Time
}

// Effects are the caller's tasks after an event.
type Effects struct {
	// Look: read the kernel's view of the container and apply KernelRuns or KernelEmpty.
	Look bool
	// List: list the runtime's containers again. The list must begin after this event.
	List bool
	// Freed: the possible CPUs of the container have shrunk, so another container may no
	// longer be blocked.
	Freed bool
}

// Tracker has the state of all containers. The zero value is empty. It is not safe for
// concurrent use.
type Tracker struct {
	containers map[Key]*Container
	// starting has the containers with a possible start in progress. phases counts the
	// containers in each phase.
	starting map[Key]*Container
	phases   map[Phase]int
	// groups has the containers with possible CPUs, owners those with own CPUs. So a start
	// costs what the containers in its way cost, and not what all cost.
	groups map[group]map[Key]*Container
	owners map[Key]*Container
}

// Apply applies an event. Events of unknown containers have no effect, except Plan and
// Restore.
func (t *Tracker) Apply(e Event) Effects {
	c := t.containers[e.Key]
	if c == nil {
		if e.Kind != Plan && e.Kind != Restore {
			return Effects{}
		}
		if t.containers == nil {
			t.containers = map[Key]*Container{}
		}
		c = &Container{Key: e.Key}
		t.containers[e.Key] = c
		t.enter(c, Exited, e.At)
	}
	if e.Owner != (Owner{}) {
		c.Owner, c.Name = e.Owner, e.Owner.Pod+"/"+e.Owner.Container
	}
	c.Name = cmp.Or(e.Name, c.Name)
	step, known := table[e.Kind][c.Phase]
	if !known {
		return Effects{}
	}
	before, anywhere := c.possible()
	if step.next != c.Phase || e.Kind == Allow {
		t.enter(c, step.next, e.At)
	}
	if c.missed && (e.Kind == ShownRunning || e.Kind == ShownPaused) {
		c.AssignedCPUs = cpuset.Set{}
	}
	c.change(step.do, e)
	after, still := c.possible()
	t.regroup(c)
	return Effects{Look: step.look, List: step.list, Freed: !before.IsSubsetOf(after) || anywhere && !still}
}

// enter begins a phase.
func (t *Tracker) enter(c *Container, phase Phase, at time.Time) {
	if t.phases == nil {
		t.starting, t.phases = map[Key]*Container{}, map[Phase]int{}
	}
	t.leave(c)
	c.Phase, c.Since = phase, at
	t.phases[phase]++
	if phase == Starting || phase == Created {
		t.starting[c.Key] = c
	}
}

// regroup moves a container to the group of its possible CPUs.
func (t *Tracker) regroup(c *Container) {
	var now group
	if now.cpus, now.anywhere = c.possible(); now == c.group {
		return
	}
	delete(t.groups[c.group], c.Key)
	if len(t.groups[c.group]) == 0 {
		delete(t.groups, c.group)
	}
	if c.group = now; now == (group{}) {
		return
	}
	if t.groups == nil {
		t.groups = map[group]map[Key]*Container{}
	}
	if t.groups[now] == nil {
		t.groups[now] = map[Key]*Container{}
	}
	t.groups[now][c.Key] = c
}

// on returns the containers that may run on some CPUs.
func (t *Tracker) on(cpus cpuset.Set) iter.Seq[*Container] {
	return func(yield func(*Container) bool) {
		for g, members := range t.groups {
			if !g.anywhere && !g.cpus.Overlaps(cpus) {
				continue
			}
			for _, c := range members {
				if !yield(c) {
					return
				}
			}
		}
	}
}

// leave removes a container from the data of its phase.
func (t *Tracker) leave(c *Container) {
	delete(t.starting, c.Key)
	if t.phases[c.Phase]--; t.phases[c.Phase] <= 0 {
		delete(t.phases, c.Phase)
	}
}

// change applies a cell's effect to the possible CPUs.
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
			c.missed = do == arrive && (c.missed || c.AssignedCPUs != e.CPUs)
			c.AssignedCPUs = e.CPUs
			c.disprove(e.CPUs, do == arrive)
		} else if c.missed {
			c.missed, c.AssignedCPUs = false, e.CPUs
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

// disprove removes a confirmed set, and the sets sent before it, from those in flight. With
// started they stay possible, because a start may have read them.
func (c *Container) disprove(set cpuset.Set, started bool) {
	for i := len(c.flight) - 1; i >= 0; i-- {
		if c.flight[i] != set {
			continue
		}
		if started {
			c.confirmed = c.confirmed.Union(cpuset.UnionOf(c.flight[:i]...))
		}
		c.flight = slices.Delete(c.flight, 0, i+1)
		return
	}
}

// possible returns the CPUs on which processes may run; anywhere means all CPUs.
func (c *Container) possible() (cpus cpuset.Set, anywhere bool) {
	if c.Phase == Planned || c.Phase == Exited {
		return cpuset.Set{}, false
	}
	return c.PossibleCPUs, c.Anywhere
}

// on returns the given CPUs on which processes may run.
func (c *Container) on(cpus cpuset.Set) cpuset.Set {
	possible, anywhere := c.possible()
	if anywhere {
		return cpus
	}
	return possible.Intersect(cpus)
}

// Want sets the container's CPUs in the ledger, and the exclusive ones among them. It must
// be called for all containers with changed CPUs before Blockers, Grantable and Writes.
func (t *Tracker) Want(key Key, cpus, own cpuset.Set) {
	c := t.containers[key]
	if c == nil {
		return
	}
	c.WantedCPUs, c.OwnCPUs = cpus, own
	if delete(t.owners, key); own.IsEmpty() {
		return
	}
	if t.owners == nil {
		t.owners = map[Key]*Container{}
	}
	t.owners[key] = c
}

// Forget removes a container for which there will be no more events.
func (t *Tracker) Forget(key Key) {
	if c := t.containers[key]; c != nil {
		t.leave(c)
		c.Phase = Exited
		t.regroup(c)
		delete(t.owners, key)
		delete(t.containers, key)
	}
}

// Get returns the state of a container.
func (t *Tracker) Get(key Key) (Container, bool) {
	c := t.containers[key]
	if c == nil {
		return Container{}, false
	}
	return c.copy(), true
}

// All returns the containers in the order of their keys.
func (t *Tracker) All() iter.Seq[Container] {
	return func(yield func(Container) bool) {
		for _, key := range slices.SortedFunc(maps.Keys(t.containers), Key.Compare) {
			if c := t.containers[key]; c != nil && !yield(c.copy()) {
				return
			}
		}
	}
}

// intrudes returns the own CPUs of owner on which the container may run without having them
// in the ledger.
func (c *Container) intrudes(owner *Container) cpuset.Set {
	if c == owner || owner.OwnCPUs.IsEmpty() {
		return cpuset.Set{}
	}
	return c.on(owner.OwnCPUs).Minus(c.WantedCPUs)
}

// copy returns a copy that does not change. Containers that cannot run have no possible
// CPUs.
func (c *Container) copy() Container {
	out := *c
	out.PossibleCPUs, out.Anywhere = c.possible()
	out.BlockedBy, out.flight, out.group = slices.Clone(c.BlockedBy), nil, group{}
	return out
}

// Starts returns the containers with a possible start in progress, in the order of their
// keys.
func (t *Tracker) Starts() (out []Container) {
	if len(t.starting) == 0 {
		return nil
	}
	for _, key := range slices.SortedFunc(maps.Keys(t.starting), Key.Compare) {
		out = append(out, t.starting[key].copy())
	}
	return out
}

// Overdue returns the starts that have exceeded StartTime. The caller has to apply
// StartOverdue to each.
func (t *Tracker) Overdue(now time.Time) (keys []Key) {
	for _, c := range t.Starts() {
		if !now.Before(c.Since.Add(StartTime)) {
			keys = append(keys, c.Key)
		}
	}
	return keys
}

// Blocker is a container that blocks the start of another one.
type Blocker struct {
	Key
	Owner Owner
	Name  string
	Phase Phase
	// CPUs are the CPUs in conflict.
	CPUs cpuset.Set
}

// String describes how the container blocks the start.
func (b Blocker) String() string {
	what := map[Phase]string{
		Starting: "which is being started", Created: "which is being started", Stopping: "which is ending",
		Unknown: "whose CPUs are unknown",
	}[b.Phase]
	if what == "" {
		what = "which is " + string(b.Phase)
	}
	return fmt.Sprintf("CPUs %s may be in use by container %s, %s", b.CPUs, b.Name, what)
}

// Blockers returns the containers that block a start because they may run on its own CPUs,
// in the order of their keys.
func (t *Tracker) Blockers(key Key) []Blocker {
	c := t.containers[key]
	if c == nil || c.OwnCPUs.IsEmpty() {
		return nil
	}
	return inConflict(t.on(c.OwnCPUs), func(o *Container) cpuset.Set { return o.intrudes(c) })
}

// Intrusions returns the started containers on whose own CPUs a container may run, in the
// order of their keys. A runtime with a call before the first instruction of a container,
// such as NRI's StartContainer, can then end the start.
func (t *Tracker) Intrusions(key Key) []Blocker {
	c := t.containers[key]
	if c == nil {
		return nil
	}
	return inConflict(maps.Values(t.owners), func(o *Container) cpuset.Set {
		if o.Phase == Planned || o.Phase == Exited {
			return cpuset.Set{}
		}
		return c.intrudes(o)
	})
}

// inConflict returns the containers with CPUs in conflict, in the order of their keys.
func inConflict(others iter.Seq[*Container], conflict func(*Container) cpuset.Set) (out []Blocker) {
	for o := range others {
		if cpus := conflict(o); !cpus.IsEmpty() {
			out = append(out, Blocker{o.Key, o.Owner, o.Name, o.Phase, cpus})
		}
	}
	slices.SortFunc(out, func(a, b Blocker) int { return a.Key.Compare(b.Key) })
	return out
}

// Block returns Blockers for a requested start, and stores them in the container as
// BlockedBy and BlockedSince. BlockedSince stays the same until no container blocks the
// start.
func (t *Tracker) Block(key Key, now time.Time) []Blocker {
	out := t.Blockers(key)
	if c := t.containers[key]; c != nil {
		c.BlockedBy = nil
		for _, b := range out {
			c.BlockedBy = append(c.BlockedBy, b.Owner)
		}
		if len(out) == 0 {
			c.BlockedSince = time.Time{}
		} else if c.BlockedSince.IsZero() {
			c.BlockedSince = now
		}
	}
	return out
}

// Unblock clears BlockedBy after a start is no longer requested.
func (t *Tracker) Unblock(key Key) {
	if c := t.containers[key]; c != nil {
		c.BlockedBy, c.BlockedSince = nil, time.Time{}
	}
}

// Grantable returns the given CPUs that may be written to a container now. It leaves out
// own CPUs that other containers have not left, unless the container may be on them already.
// A container that has not started is on none but those that were confirmed last.
func (t *Tracker) Grantable(key Key, cpus cpuset.Set) cpuset.Set {
	owner := t.containers[key]
	if owner == nil || !owner.OwnCPUs.Overlaps(cpus) {
		return cpus
	}
	var taken cpuset.Set
	for c := range t.on(owner.OwnCPUs) {
		taken = taken.Union(c.intrudes(owner))
	}
	has := owner.on(taken)
	if owner.Phase == Starting || owner.Phase == Created {
		// Its process begins with the values that were confirmed last. It has not been on
		// those of a former write, which others may have got since.
		has = owner.AssignedCPUs.Intersect(taken)
	}
	return cpus.Minus(taken.Minus(has))
}

// Write is a set of CPUs to write to a container.
type Write struct {
	Key
	CPUs cpuset.Set
}

// Writes returns the sets to write for containers that may run on other CPUs than the
// ledger has. First come containers that have to leave own CPUs of others, then containers
// with shared CPUs, then containers with own CPUs. The latter get the Grantable CPUs; the
// next call, after the others have left, adds the rest. One that can get none of them yet leaves the own CPUs of
// others. If it has a process, runs on such CPUs only, and the others wait for it in turn, one of this circle goes to the shared CPUs
// until the others have gone on. Without shared CPUs the circle stays. Planned containers get their CPUs when their start is requested.
func (t *Tracker) Writes(shared cpuset.Set) []Write {
	type ranked struct {
		Write
		rank int
	}
	var out []ranked
	var stuck []*Container
	owned := t.owned()
	for _, c := range t.containers {
		if c.Phase == Planned || c.Phase == Exited || c.WantedCPUs.IsEmpty() {
			continue
		}
		to := t.Grantable(c.Key, c.WantedCPUs)
		if to.IsEmpty() {
			// All of them are still in use, perhaps by one that is to get the CPUs that this one runs on.
			to = c.PossibleCPUs.Minus(owned)
			if begins := c.Phase == Starting || c.Phase == Created; begins && to == c.PossibleCPUs && !c.Anywhere {
				continue // there is nothing to leave, and the start may have read only some of them
			}
		}
		if to.IsEmpty() && c.Phase == Running {
			stuck = append(stuck, c)
		}
		if to.IsEmpty() || c.keeps(to) {
			continue
		}
		w := ranked{Write{c.Key, to}, 1}
		switch {
		case !c.on(owned.Minus(c.OwnCPUs)).IsEmpty():
			w.rank = 0
		case !c.OwnCPUs.IsEmpty():
			w.rank = 2
		}
		out = append(out, w)
	}
	if detour := shared.Minus(owned); len(stuck) > 1 && !detour.IsEmpty() {
		if c := inCircle(stuck); c != nil {
			out = append(out, ranked{Write{c.Key, detour}, 0})
		}
	}
	slices.SortFunc(out, func(a, b ranked) int { return cmp.Or(cmp.Compare(a.rank, b.rank), a.Key.Compare(b.Key)) })
	writes := make([]Write, len(out))
	for i, w := range out {
		writes[i] = w.Write
	}
	return writes
}

// inCircle returns one of the given containers that waits for itself: it runs on own CPUs of another one, which runs on those of the next
// one, and so on. It is always the same one; nil if there is none.
func inCircle(waiting []*Container) *Container {
	slices.SortFunc(waiting, func(a, b *Container) int { return a.Key.Compare(b.Key) })
	blocks := func(c *Container) (o *Container) {
		i := slices.IndexFunc(waiting, func(o *Container) bool { return !o.intrudes(c).IsEmpty() })
		if i < 0 {
			return nil
		}
		return waiting[i]
	}
	for n := -1; n != len(waiting); {
		n = len(waiting)
		waiting = slices.DeleteFunc(slices.Clone(waiting), func(c *Container) bool { return blocks(c) == nil })
	}
	if len(waiting) == 0 {
		return nil
	}
	c := waiting[0]
	for range waiting { // as many steps end on the circle
		c = blocks(c)
	}
	return c
}

// Unconfirmed returns whether a container runs where the ledger has it, with an earlier write
// still in flight. That write may be carried out late, until another one is confirmed.
func (t *Tracker) Unconfirmed(key Key) bool {
	c := t.containers[key]
	return c != nil && len(c.flight) > 0 && c.confirmed == c.WantedCPUs && c.Phase != Planned && c.Phase != Exited
}

// InFlight returns whether a write to a container was sent and not confirmed.
func (t *Tracker) InFlight(key Key) bool {
	c := t.containers[key]
	return c != nil && len(c.flight) > 0
}

// keeps returns whether a container stays on some CPUs without a write. While a start may
// have read another set, it is enough that the last write was confirmed, because the
// container is compared again when it shows a process.
func (c *Container) keeps(cpus cpuset.Set) bool {
	switch c.Phase {
	case Starting, Created, Unknown:
		return cpus == c.AssignedCPUs && len(c.flight) == 0
	default:
		return cpus == c.confirmed && cpus == c.PossibleCPUs && !c.Anywhere
	}
}

// owned returns all own CPUs of containers.
func (t *Tracker) owned() (cpus cpuset.Set) {
	for _, c := range t.owners {
		if c.Phase != Exited {
			cpus = cpus.Union(c.OwnCPUs)
		}
	}
	return cpus
}

// Count returns the number of containers in each phase.
func (t *Tracker) Count() map[Phase]int { return maps.Clone(t.phases) }
