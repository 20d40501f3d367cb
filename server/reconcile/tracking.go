package reconcile

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/berthd/berth/managers/admission"
	"github.com/berthd/berth/managers/cgroup"
	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/placement"
)

// pollInterval is how soon a runtime is asked again for a container that is being started.
const pollInterval = 50 * time.Millisecond

// key is the name under which the tracker knows a bound container: the id of one that a
// runtime has made, the cgroup of one that berth makes.
func (l *Loop) key(b ledger.Binding) string {
	if b.Own {
		return l.Layout.Driver().Parse(b.CgroupPath).String()
	}
	return b.ID
}

// tracks tells whether the tracker is to know a bound container. One of a runtime that
// berthd is not beside any more is nobody's here.
func (l *Loop) tracks(b ledger.Binding) bool { return b.Own || l.Runtime != nil }

// tell feeds the tracker. The caller holds mu.
func (l *Loop) tell(e placement.Event) placement.Effects {
	e.At = l.Now()
	effects := l.tracker.Apply(e)
	if effects.Freed {
		l.changed()
	}
	return effects
}

// changed wakes the starts that wait for somebody to leave. The caller holds mu.
func (l *Loop) changed() {
	close(l.freed)
	l.freed = make(chan struct{})
}

// track brings the tracker to the current view: which containers are bound, and which CPUs
// each is to have. It takes time for what has changed, unless that is what all share. The
// caller holds mu.
func (l *Loop) track() {
	last, view := l.tracked, l.View()
	l.tracked = view
	l.giveUp()
	all := last == nil || last.SharedCPUs() != view.SharedCPUs() || last.Rules().OfflineCPUs != view.Rules().OfflineCPUs
	if last == nil {
		for b := range view.Bindings() {
			l.restore(b)
		}
	} else {
		for _, c := range ledger.Changes(last, view) {
			switch {
			case c.Kind == ledger.Bound:
				l.restore(c.Binding)
			case c.Kind == ledger.Unbound && !c.Binding.Own:
				l.forget(c.Binding.ID)
			case c.Kind == ledger.Unbound:
				l.ended = append(l.ended, l.Layout.Driver().Parse(c.Binding.CgroupPath))
			case c.Pod != nil && !all:
				for b := range view.BindingsOf(c.Pod.UID()) {
					l.want(view, l.key(b), b.Owner)
				}
			}
		}
	}
	if all {
		for b := range view.Bindings() {
			l.want(view, l.key(b), b.Owner)
		}
		for _, u := range l.unbound {
			l.want(view, u.name.String(), u.owner)
		}
		for _, name := range l.sharing(view) {
			l.shares(view, name)
		}
	}
}

// restore has the tracker know a container that is bound: nothing happens if it does.
func (l *Loop) restore(b ledger.Binding) {
	if l.tracks(b) {
		l.tell(placement.Event{Kind: placement.Restore, ID: l.key(b), Name: b.Owner.String()})
		l.want(l.tracked, l.key(b), b.Owner)
	}
}

// forget drops what is known of a container. The caller holds mu.
func (l *Loop) forget(key string) {
	if _, known := l.tracker.Get(key); known {
		l.tracker.Forget(key)
		l.changed()
	}
	delete(l.cgroups, key)
	delete(l.calls.writes, key)
}

// want tells the tracker what a view has for a container.
func (l *Loop) want(view *ledger.View, key string, owner ledger.Owner) {
	cpus := view.RunsOn(owner)
	var own cpuset.Set
	if set, exclusive, ok := view.ContainerCPUs(owner); ok && (exclusive || !set.IsSubsetOf(view.SharedCPUs())) {
		own = set.Intersect(view.ExclusiveCPUs()).Intersect(cpus)
	}
	l.tracker.Want(key, cpus, own)
}

// shares tells the tracker that a cgroup without a binding shares the shared CPUs.
func (l *Loop) shares(view *ledger.View, name cgroup.Name) {
	l.tracker.Want(name.String(), view.SharedCPUs(), cpuset.Set{})
}

// watch has the tracker know a cgroup with processes in which no bound container is. The
// caller holds mu.
func (l *Loop) watch(n cgroup.Name, name string) {
	l.tell(placement.Event{Kind: placement.Restore, ID: n.String(), Name: name})
}

// allowed gives the CPUs on which the kernel lets the processes of a cgroup run.
func (l *Loop) allowed(o cgroup.Observed) cpuset.Set {
	switch {
	case !o.Values.CPUs.IsEmpty():
		return o.Values.CPUs
	case !o.Effective.CPUs.IsEmpty():
		return o.Effective.CPUs
	case l.v1():
		return cpuset.Set{} // no process can be in it
	}
	return l.View().Rules().Machine.CPUs()
}

// noteSeen tells the tracker what the kernel shows of containers. With whole, the snapshot
// has all cgroups of the pods with all that is in them. The caller holds mu.
func (l *Loop) noteSeen(g runtimeContainers, seen *cgroup.Snapshot, whole bool) {
	there := make(map[string]bool, len(seen.Nodes))
	for i := range seen.Nodes {
		o := &seen.Nodes[i]
		if o.State == cgroup.Absent {
			continue
		}
		key := o.Name.String()
		there[key] = true
		if c, ok := g.at(o.Name); ok {
			l.tell(placement.Event{Kind: placement.KernelRuns, ID: c.id, CPUs: l.allowed(*o)})
		} else if c, ok := l.tracker.Get(key); ok && c.Phase != placement.Planned {
			l.tell(placement.Event{Kind: placement.ShownRunning, ID: key})
			l.tell(placement.Event{Kind: placement.KernelRuns, ID: key, CPUs: l.allowed(*o)})
			if whole && !holdsProcess(seen.Nodes[i:]) {
				l.tell(placement.Event{Kind: placement.KernelEmpty, ID: key})
			}
		}
	}
	if !whole {
		return
	}
	for c := range l.tracker.All() {
		if strings.HasPrefix(c.ID, "/") && !there[c.ID] && c.Phase != placement.Planned {
			l.forget(c.ID)
		}
	}
}

// holdsProcess tells whether a process runs in the first of some cgroups or below it. What
// is below a cgroup follows it.
func holdsProcess(nodes []cgroup.Observed) bool {
	for i := range nodes {
		if !nodes[i].Name.Within(nodes[0].Name) {
			return false
		}
		if nodes[i].Populated {
			return true
		}
	}
	return false
}

// granted takes own CPUs out of an op that somebody else has not left yet. An error says
// that it did. The caller holds mu.
func (l *Loop) granted(key string, v *cgroup.Values) error {
	set := l.tracker.Grantable(key, v.CPUs)
	if set == v.CPUs {
		return nil
	}
	err := errdefs.Unavailablef("write CPUs %s of %s: %s may be in use by others", v.CPUs, key, v.CPUs.Minus(set))
	v.CPUs = set
	return err
}

// written tells the tracker what became of a write to a cgroup. The caller holds mu.
func (l *Loop) written(ctx context.Context, name cgroup.Name, cpus cpuset.Set, err error) {
	key := name.String()
	if cpus.IsEmpty() {
		return
	}
	l.tell(placement.Event{Kind: placement.Sent, ID: key, CPUs: cpus})
	if err == nil {
		l.tell(placement.Event{Kind: placement.Confirmed, ID: key, CPUs: cpus})
		return
	}
	// The kernel is done with it either way, and tells how it is now.
	l.tell(placement.Event{Kind: placement.Refused, ID: key, CPUs: cpus})
	seen, looked := l.Tree.Observe(ctx, name, 0)
	if looked != nil {
		l.tell(placement.Event{Kind: placement.KernelRuns, ID: key, CPUs: cpus})
		return
	}
	if o := seen.Find(name); o.State != cgroup.Absent {
		l.tell(placement.Event{Kind: placement.KernelRuns, ID: key, CPUs: l.allowed(o)})
	}
}

// errBlocked is why a container has to wait: others may be on its own CPUs.
var errBlocked = errors.New("its CPUs may be in use by others")

// blockedError says who is in the way of a start.
type blockedError struct {
	blockers []placement.Blocker
	// cause is what kept them from leaving; nil if they were told to.
	cause error
}

func (e *blockedError) Error() string {
	var text []string
	for _, b := range e.blockers {
		text = append(text, b.String())
	}
	if e.cause != nil {
		text = append(text, e.cause.Error())
	}
	return strings.Join(text, "; ")
}

func (e *blockedError) Unwrap() []error {
	return []error{e.cause, errdefs.Unavailablef("%w", errBlocked)}
}

// passes tells whether those in the way leave, or show themselves, in a moment.
func (e *blockedError) passes() bool {
	for _, b := range e.blockers {
		if b.Phase != placement.Starting && b.Phase != placement.Created && b.Phase != placement.Stopping {
			return false
		}
	}
	return true
}

// waits tells whether what an error is about may be over in a moment.
func waits(err error) bool {
	var blocked *blockedError
	return errors.Is(err, errPending) || errors.As(err, &blocked) && blocked.passes()
}

// clear makes sure that nobody runs on the own CPUs of a container that is to start. Whoever
// has none waits for nobody. The caller holds mu.
func (l *Loop) clear(ctx context.Context, view *ledger.View, key string, owner ledger.Owner) error {
	blocked := l.tracker.Block(key, l.Now())
	l.moveAway(ctx, view, blocked)
	if len(l.tracker.Block(key, l.Now())) == 0 {
		return nil
	}
	err := l.follow(ctx, view, runtimeIDs(blocked))
	for _, b := range l.tracker.Block(key, l.Now()) {
		err = errors.Join(err, l.lookAt(ctx, b.ID))
	}
	blockers := l.tracker.Block(key, l.Now())
	if len(blockers) == 0 {
		if err != nil {
			l.Log.DebugContext(ctx, "reconcile cgroups", "error", err) // the loop meets it too, and reports it
			l.Wake()
		}
		return nil
	}
	return fmt.Errorf("clear the CPUs for %s: %w", owner, &blockedError{blockers, err})
}

// runtimeIDs gives the ids of those that a runtime has made.
func runtimeIDs(blockers []placement.Blocker) (ids []string) {
	for _, b := range blockers {
		if !strings.HasPrefix(b.ID, "/") {
			ids = append(ids, b.ID)
		}
	}
	return ids
}

// moveAway writes nothing but CPUs, to those who have to leave, and looks at no cgroup: what
// is in the way of one start is gone in the time of the writes. Where that is not enough
// following does the rest, and the loop looks at what was written. The caller holds mu.
func (l *Loop) moveAway(ctx context.Context, view *ledger.View, blockers []placement.Blocker) {
	var listed *listing // an update of a container that the runtime does not have is answered, and nothing
	if ids := runtimeIDs(blockers); len(ids) > 0 && l.Runtime != nil {
		listed, _ = l.hear(ctx, few(ids))
	}
	for _, b := range blockers {
		c, _ := l.tracker.Get(b.ID)
		if c.AssignedCPUs == c.WantedCPUs || c.WantedCPUs.IsEmpty() {
			continue // it was moved by somebody else, or a start may have read another set
		}
		var err error
		if strings.HasPrefix(b.ID, "/") {
			name := cgroup.ParseCgroupfs(b.ID)
			l.drift.forget(name)
			_, err = l.ensure(ctx, cgroup.Op{Kind: cgroup.Set, Name: name, Values: cgroup.Values{Cpuset: cgroup.Cpuset{CPUs: c.WantedCPUs}}})
		} else if bound, ok := view.Binding(b.ID); ok && c.Phase == placement.Running && listed != nil {
			v := cgroup.Values{Cpuset: cgroup.ContainerCpuset(view, bound.Owner)}
			if name := l.cgroups[b.ID]; name != nil {
				l.drift.forget(name)
			}
			if err = l.granted(b.ID, &v); err == nil {
				err = l.send(ctx, b.ID, v)
			}
		}
		if err != nil {
			l.Log.DebugContext(ctx, "move a container from CPUs of another", "container", c.Name, "error", err)
		}
	}
	if len(blockers) > 0 {
		l.Wake()
	}
}

// longWait is how long a start waits before the log tells of it.
const longWait = time.Second

// untilClear does something again for as long as others are in the way that leave in a
// moment.
func (l *Loop) untilClear(ctx context.Context, what string, do func() error) error {
	long := time.NewTimer(longWait)
	defer long.Stop()
	var last error
	for {
		l.mu.Lock()
		freed := l.freed
		l.mu.Unlock()
		err := do()
		if last != nil && ctx.Err() != nil {
			return last
		}
		if last = err; !waits(err) {
			return err
		}
		poll := time.NewTimer(pollInterval)
		select {
		case <-freed:
		case <-poll.C:
		case <-long.C:
			l.Log.InfoContext(ctx, "waits for containers to leave its CPUs", "what", what, "error", err)
		case <-ctx.Done():
			poll.Stop()
			return err
		}
		poll.Stop()
	}
}

// beginStart notes that a start is asked for.
func (l *Loop) beginStart(ctx context.Context, key string) error {
	if err := l.enter(ctx); err != nil {
		return err
	}
	defer l.mu.Unlock()
	l.starting[key]++
	return nil
}

// giveUp ends starts that have taken too long. What was let start and is not bound by
// then has been unbound again. The caller holds mu.
func (l *Loop) giveUp() {
	for _, id := range l.tracker.Overdue(l.Now()) {
		l.tell(placement.Event{Kind: placement.StartOverdue, ID: id})
		if _, bound := l.tracked.Binding(id); !bound && !strings.HasPrefix(id, "/") && l.starting[id] == 0 {
			l.forget(id)
		}
	}
}

// planStart has the tracker know a container whose start is asked for. The caller holds mu.
func (l *Loop) planStart(view *ledger.View, key string, s admission.Start) {
	if s.Still && !s.Again {
		l.tell(placement.Event{Kind: placement.Withdraw, ID: key}) // nobody has been told yet
	}
	l.tell(placement.Event{Kind: placement.Plan, ID: key, Name: s.Binding.Owner.String()})
	l.want(view, key, s.Binding.Owner)
}

// endStart forgets a container whose start was not let go on, unless it is bound.
func (l *Loop) endStart(key, id string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.tracker.Unblock(key)
	if l.starting[key]--; l.starting[key] == 0 {
		delete(l.starting, key)
	}
	if c, ok := l.tracker.Get(key); ok && c.Phase == placement.Planned && l.starting[key] == 0 {
		if _, bound := l.View().Binding(id); !bound {
			l.forget(key)
		}
	}
}

// ensureRuntimeContainer puts into force where a container that a runtime has made may
// run, after all others have left. A runtime that does not know the container yet is
// about to make it, with what PreStartContainer answers. The caller holds mu.
func (l *Loop) ensureRuntimeContainer(ctx context.Context, view *ledger.View, s admission.Start) error {
	b := s.Binding
	l.planStart(view, b.ID, s)
	if err := l.clear(ctx, view, b.ID, b.Owner); err != nil {
		return err
	}
	if err := l.send(ctx, b.ID, cgroup.Values{Cpuset: cgroup.ContainerCpuset(view, b.Owner)}); err != nil {
		return err
	}
	l.tell(placement.Event{Kind: placement.Allow, ID: b.ID}) // before anybody else can look
	return nil
}

// Placements lists what is known of the containers of a pod that may run, or wait for
// their start. It waits for a turn.
func (l *Loop) Placements(ctx context.Context, uid string) (out []placement.Container, err error) {
	if err := l.enter(ctx); err != nil {
		return nil, err
	}
	defer l.mu.Unlock()
	l.track()
	for c := range l.tracker.All() {
		if pod, _, ok := strings.Cut(c.Name, "/"); ok && pod == uid {
			out = append(out, c)
		}
	}
	return out, nil
}

// Phases counts the containers in each phase, as of the end of the last look. It waits for
// nobody.
func (l *Loop) Phases() map[placement.Phase]int {
	if counted := l.phases.Load(); counted != nil {
		return *counted
	}
	return nil
}

// countPhases notes how many containers are in each phase. The caller holds mu.
func (l *Loop) countPhases() {
	counted := l.tracker.Count()
	l.phases.Store(&counted)
}
