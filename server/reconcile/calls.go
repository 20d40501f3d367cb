package reconcile

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/berthd/berth/managers/admission"
	"github.com/berthd/berth/managers/cgroup"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/placement"
	"github.com/berthd/berth/server/runtime"
)

// Runtime is a container runtime, which makes its containers' cgroups itself and
// is told what to write there; *runtime.Client is the one there is.
type Runtime interface {
	// List lists all containers, or those of some ids.
	List(ctx context.Context, ids ...string) ([]runtime.Container, error)
	// Sandboxes lists all sandboxes, or those of some pods.
	Sandboxes(ctx context.Context, pods ...string) ([]runtime.Sandbox, error)
	// Update does nothing to a container that has exited or is not known.
	Update(ctx context.Context, id string, v cgroup.Values) error
}

// Bindings keeps the ledger's container ids; *admission.Engine is the one there is.
type Bindings interface {
	ReconcileBindings(ctx context.Context, before *ledger.View, found []admission.Found, gone func(id string) bool) (admission.ReconciledBindings, error)
}

const (
	// callTime bounds one call of the runtime.
	callTime = 10 * time.Second
	// turnWait is how long one turn waits for calls of the runtime altogether. A call
	// that takes longer goes on, and only those wait for it who need its answer.
	turnWait = time.Second
	// leastWait is how long each call is waited for all the same.
	leastWait = 20 * time.Millisecond
)

// errPending is why a turn goes on without the answer of a call.
var errPending = errors.New("the container runtime has not answered yet")

// calls are the calls of the runtime that are under way. Guarded by Loop.mu.
type calls struct {
	writes map[string]*write // by container id
	list   *listing
	// silent says that a turn has waited in vain for a list, and that none was answered since:
	// no other turn waits before the runtime answers again.
	silent bool
	// heard is the list of this turn, nil before it was asked for.
	heard *listing
	// over is when this turn waits no longer; nil before its first call.
	over    context.Context
	endOver context.CancelFunc
	running sync.WaitGroup
}

// write is an update of a container.
type write struct {
	values cgroup.Values
	done   chan struct{}
	err    error // after done
	noted  bool  // the tracker has heard of the answer
	at     time.Time
}

// listing is a list of containers, with the view and the time from before it was asked for.
type listing struct {
	before *ledger.View
	at     time.Time
	ids    []string // nil for all
	pods   []string // of which the sandboxes are listed; all if all containers are
	done   chan struct{}
	late   bool // a turn went on without it
	// After done.
	all       []runtime.Container
	sandboxes []runtime.Sandbox
	err       error
}

// covers tells whether a list has all that one of some ids, or of all, has.
func (o *listing) covers(ids []string) bool {
	if o.ids == nil || ids == nil {
		return o.ids == nil
	}
	return !slices.ContainsFunc(ids, func(id string) bool { return !slices.Contains(o.ids, id) })
}

// fill asks the runtime.
func (o *listing) fill(ctx context.Context, r Runtime) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), callTime)
	defer cancel()
	defer close(o.done)
	if o.all, o.err = r.List(ctx, o.ids...); o.err == nil && (o.ids == nil || len(o.pods) > 0) {
		o.sandboxes, o.err = r.Sandboxes(ctx, o.pods...)
	}
}

// begin starts a turn.
func (c *calls) begin() {
	if c.endOver != nil {
		c.endOver()
	}
	c.over, c.endOver, c.heard = nil, nil, nil
}

// await waits for a call as long as this turn may. The caller holds mu.
func (l *Loop) await(ctx context.Context, what string, done <-chan struct{}) error {
	if l.calls.over == nil {
		l.calls.over, l.calls.endOver = context.WithTimeout(context.WithoutCancel(ctx), turnWait)
	}
	least := time.NewTimer(leastWait)
	defer least.Stop()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return errdefs.Deadlinef("%s: %w", what, errPending)
	case <-least.C:
	}
	select {
	case <-done:
		return nil
	case <-l.calls.over.Done():
	case <-ctx.Done():
	}
	return errdefs.Deadlinef("%s: %w", what, errPending)
}

// isOver tells whether a call has been answered.
func isOver(done <-chan struct{}) bool {
	select {
	case <-done:
		return true
	default:
		return false
	}
}

// send has the runtime write values of a container. One call for a container is in progress
// at a time. A call that was not waited for until its end is not repeated: its answer is
// the answer to the next send of the same values. The caller holds mu.
func (l *Loop) send(ctx context.Context, id string, v cgroup.Values) error {
	what := "update container " + id
	if w := l.calls.writes[id]; w != nil {
		if !isOver(w.done) { // an earlier turn has waited
			return errdefs.Deadlinef("%s: %w", what, errPending)
		}
		err := l.answered(id, w)
		if delete(l.calls.writes, id); w.values.Equal(&v) {
			return err
		}
	}
	w := &write{values: v, done: make(chan struct{})}
	if l.calls.writes == nil {
		l.calls.writes = map[string]*write{}
	}
	l.calls.writes[id] = w
	if !v.CPUs.IsEmpty() {
		l.tell(placement.Event{Kind: placement.Sent, ID: id, CPUs: v.CPUs})
	}
	l.calls.running.Go(func() {
		within, cancel := context.WithTimeout(context.WithoutCancel(ctx), callTime)
		defer cancel()
		w.err = l.Runtime.Update(within, id, v)
		close(w.done)
	})
	if err := l.await(ctx, what, w.done); err != nil {
		l.calls.running.Go(func() {
			<-w.done
			l.mu.Lock()
			l.changed() // a start may be waiting for this answer
			l.mu.Unlock()
			l.Wake()
		})
		return err
	}
	delete(l.calls.writes, id)
	return l.answered(id, w)
}

// answered notes the answer to a write. The caller holds mu.
func (l *Loop) answered(id string, w *write) error {
	kind := placement.Confirmed
	if w.err != nil {
		kind = placement.Failed
	}
	if !w.noted && !w.values.CPUs.IsEmpty() {
		l.tell(placement.Event{Kind: kind, ID: id, CPUs: w.values.CPUs})
	}
	w.noted = true
	return w.err
}

// settleWrites notes the answers for which nobody has waited. The caller holds mu.
func (l *Loop) settleWrites() {
	for id, w := range l.calls.writes {
		if !isOver(w.done) {
			continue
		}
		if !w.noted {
			w.at = l.Now()
		}
		// The next send of the same values gets the answer, unless it is an error, or old.
		if l.answered(id, w) != nil || l.Now().Sub(w.at) >= callTime {
			delete(l.calls.writes, id)
		}
	}
}

// list asks the runtime for some of its containers, or for all if ids is nil: once in a turn,
// unless again. The caller holds mu.
func (l *Loop) list(ctx context.Context, ids []string, again bool) (*listing, error) {
	if l.calls.heard != nil && !again && l.calls.heard.covers(ids) {
		return l.calls.heard, nil
	}
	for {
		one := l.calls.list
		if one == nil {
			one = &listing{before: l.View(), at: l.Now(), ids: ids, pods: l.podsOfStarts(ids), done: make(chan struct{})}
			l.calls.list = one
			l.calls.running.Go(func() { one.fill(ctx, l.Runtime) })
		}
		if err := l.awaitList(ctx, one); err != nil {
			return nil, err
		}
		l.calls.list = nil
		l.calls.silent = errdefs.ClassOf(one.err) == errdefs.Deadline
		if one.err != nil {
			return nil, one.err
		}
		if one.covers(ids) {
			l.calls.heard = one
			return one, nil
		}
	}
}

// awaitList waits for a list: once in an outage of the runtime. A list that comes later wakes
// the loop. The caller holds mu.
func (l *Loop) awaitList(ctx context.Context, one *listing) error {
	const what = "list the containers"
	if !l.calls.silent || isOver(one.done) {
		err := l.await(ctx, what, one.done)
		if err == nil || ctx.Err() != nil {
			return err
		}
		l.calls.silent = true
	}
	if !one.late {
		one.late = true
		l.calls.running.Go(func() {
			<-one.done
			l.Wake()
		})
	}
	return errdefs.Deadlinef("%s: %w", what, errPending)
}
