package reconcile

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/berthd/berth/managers/admission"
	"github.com/berthd/berth/managers/cgroup"
	"github.com/berthd/berth/managers/fault"
)

const (
	// youth is how long a created container is expected to start any moment.
	youth = 10 * time.Second
	// glance is how soon one is looked at again.
	glance = 50 * time.Millisecond
)

// start is what is known about the start of a guest.
type start struct {
	// since is when PreStartContainer was answered, or the container first seen.
	since time.Time
	// sent is what the runtime may have read for the start; empty if that may be one
	// of several, or is not known.
	sent cgroup.Cpuset
	// created says that the runtime shows the container, and no process of it.
	created bool
	// told says that PreStartContainer may have been answered, so that the start may
	// be under way, before that it may have been when it was last called.
	told, before bool
}

// soon tells whether the container is expected to start any moment.
func (s start) soon(now time.Time) bool { return s.created && now.Sub(s.since) < youth }

// askers are containers of which PreStartContainer was called and is not answered: they
// do not start before that, unless it was answered before.
type askers struct {
	mu sync.Mutex
	// ids are theirs, each with what is asked for; guarded by mu.
	ids map[string]admission.Start
}

func (a *askers) add(s admission.Start) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.ids == nil {
		a.ids = map[string]admission.Start{}
	}
	a.ids[s.Binding.ID] = s
}

func (a *askers) drop(id string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.ids, id)
}

// holds tells whether a container does not start before it has its answer, of which s is
// known.
func (a *askers) holds(id string, s start) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	asked, asks := a.ids[id]
	return asks && !s.repeats(asked)
}

// repeats tells whether a start that is asked for may be under way since an earlier call.
// One that was not bound then had none, and one that was bound and not told was found by
// a count.
func (s start) repeats(asked admission.Start) bool {
	if asked.Still {
		return asked.Again && s.before
	}
	return asked.Again && s.told
}

// errStarting is why another container has to wait: one that is about to start, or
// is starting, was sent CPUs before that are not its own any more.
var errStarting = errors.New("a container is just being started")

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
			// Before anything was settled it may have been told by who was here before.
			s.since, s.told, s.before = l.Now(), l.settled == nil, l.settled == nil
		}
		s.created = g[i].created
		err := l.tell(ctx, g[i].id, g[i].values)
		switch {
		case err != nil:
			s.sent = cgroup.Cpuset{}
		case s.sent != g[i].values.Cpuset && s.soon(l.Now()) && !l.asking.holds(g[i].id, s):
			s.sent = cgroup.Cpuset{}
			err = fault.Unavailablef("%w: container %s, which may have other CPUs than %s", errStarting, g[i].owner, g[i].values.CPUs)
		default:
			s.sent = g[i].values.Cpuset
			err = l.agrees(ctx, g[i])
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
