package reconcile

import (
	"context"
	"errors"
	"fmt"
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

// Runtime is a container runtime, which creates its containers' cgroups and writes the
// values that berthd sends; *runtime.Client implements it.
type Runtime interface {
	// List returns all containers, or those with some ids.
	List(ctx context.Context, ids ...string) ([]runtime.Container, error)
	// Sandboxes returns all sandboxes, or those of some pods.
	Sandboxes(ctx context.Context, pods ...string) ([]runtime.Sandbox, error)
	// Update has no effect on an exited or unknown container.
	Update(ctx context.Context, id string, v cgroup.Values) error
}

// Bindings stores the container ids in the ledger; *admission.Lock implements it.
type Bindings interface {
	ReconcileBindings(ctx context.Context, before *ledger.View, found []admission.Found,
		gone func(id string) bool) (admission.ReconciledBindings, error)
}

const (
	// callTime limits one call to the runtime.
	callTime = 10 * time.Second
	// turnWait limits the time that one turn waits for all its calls to the runtime. A
	// longer call continues in the background, and delays only operations that need its
	// answer.
	turnWait = time.Second
	// leastWait is the minimum wait for each call, even after turnWait.
	leastWait = 20 * time.Millisecond
)

// errAway means that the runtime does not list its containers.
var errAway = errors.New("the container runtime does not list its containers")

// errPending means that a turn continues without the answer of a call.
var errPending = errors.New("the container runtime has not answered yet")

// calls are the calls to the runtime in progress. Guarded by Loop.mu.
type calls struct {
	cfg     *Config
	tracker *tracker
	mu      gate   // that of the Loop
	wake    func() // requests a turn
	// current is the list in progress, also of an earlier turn; nil for none.
	current *listing
	// silent is whether a turn has waited for a list without an answer, and no list was
	// answered since. Until then no other turn waits for a list.
	silent bool
	// away is whether the last list has failed.
	away atomic.Bool
	// pods are pods of this turn whose sandboxes are listed with the containers.
	pods []string
	// synced is the list of this turn; nil before the call.
	synced *listing
	// over is the end of this turn's waiting time; nil before its first call.
	over    context.Context
	endOver context.CancelFunc
	running sync.WaitGroup
}

// write is an update of a container.
type write struct {
	values cgroup.Values
	done   chan struct{}
	err    error // after done
	noted  bool  // the answer was applied to the tracker
	at     time.Time
}

// listing is a list of containers, with the view and the time before the call.
type listing struct {
	before *ledger.View
	at     time.Time
	ids    []string // nil means all
	pods   []string // whose sandboxes are listed; if all containers are listed, all sandboxes are
	done   chan struct{}
	late   bool // a turn continued without it
	// Set after done is closed.
	all       []runtime.Container
	sandboxes []runtime.Sandbox
	err       error
}

// covers returns whether the list has all containers with some ids, and all sandboxes of
// some pods; nil ids mean all containers.
func (o *listing) covers(ids, pods []string) bool {
	if o.ids == nil || ids == nil {
		return o.ids == nil
	}
	lacks := func(have []string) func(string) bool {
		return func(one string) bool { return !slices.Contains(have, one) }
	}
	return !slices.ContainsFunc(ids, lacks(o.ids)) && !slices.ContainsFunc(pods, lacks(o.pods))
}

// fill calls the runtime.
func (o *listing) fill(ctx context.Context, r Runtime) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), callTime)
	defer cancel()
	defer close(o.done)
	if o.ids == nil || len(o.ids) > 0 {
		o.all, o.err = r.List(ctx, o.ids...)
	}
	if o.err == nil && (o.ids == nil || len(o.pods) > 0) {
		o.sandboxes, o.err = r.Sandboxes(ctx, o.pods...)
	}
}

// begin starts a turn, and applies the answers of calls that continued in the background.
func (c *calls) begin() {
	if c.endOver != nil {
		c.endOver()
	}
	c.over, c.endOver, c.synced, c.pods = nil, nil, nil, nil
	for id, w := range c.tracker.writes {
		if !isOver(w.done) {
			continue
		}
		if !w.noted {
			w.at = c.cfg.Now()
		}
		// The next send of the same values gets the answer, unless it is an error or too
		// old.
		if c.tracker.answered(id, w) != nil || c.cfg.Now().Sub(w.at) >= callTime {
			delete(c.tracker.writes, id)
		}
	}
}

// await waits for a call, as long as this turn may wait.
func (c *calls) await(ctx context.Context, what string, done <-chan struct{}) error {
	if c.over == nil {
		c.over, c.endOver = context.WithTimeout(context.WithoutCancel(ctx), turnWait)
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
	case <-c.over.Done():
	case <-ctx.Done():
	}
	return errdefs.Deadlinef("%s: %w", what, errPending)
}

// isOver returns whether a call has been answered.
func isOver(done <-chan struct{}) bool {
	select {
	case <-done:
		return true
	default:
		return false
	}
}

// send sends values of a container to the runtime. At most one call for a container is in
// progress. A call that continued in the background is not repeated: its answer is returned
// to the next send of the same values.
func (c *calls) send(ctx context.Context, id string, v cgroup.Values) error {
	what := "update container " + id
	if w := c.tracker.writes[id]; w != nil {
		if !isOver(w.done) { // an earlier turn has waited for it
			return errdefs.Deadlinef("%s: %w", what, errPending)
		}
		err := c.tracker.answered(id, w)
		if delete(c.tracker.writes, id); w.values.Equal(&v) {
			return err
		}
	}
	w := &write{values: v, done: make(chan struct{})}
	if c.tracker.writes == nil {
		c.tracker.writes = map[string]*write{}
	}
	c.tracker.writes[id] = w
	if !v.CPUs.IsEmpty() {
		c.tracker.record(placement.Event{Kind: placement.Sent, Key: ofID(id), CPUs: v.CPUs})
	}
	c.running.Go(func() {
		within, cancel := context.WithTimeout(context.WithoutCancel(ctx), callTime)
		defer cancel()
		w.err = c.cfg.Runtime.Update(within, id, v)
		close(w.done)
	})
	if err := c.await(ctx, what, w.done); err != nil {
		c.running.Go(func() {
			<-w.done
			c.mu.Lock()
			c.tracker.changed() // a start may be waiting for this answer
			c.mu.Unlock()
			c.wake()
		})
		return err
	}
	delete(c.tracker.writes, id)
	return c.tracker.answered(id, w)
}

// list lists some containers of the runtime, or all if ids is nil: once in a turn, unless
// again is set.
func (c *calls) list(ctx context.Context, ids []string, again bool) (*listing, error) {
	if c.synced != nil && !again && c.synced.covers(ids, c.pods) {
		return c.synced, nil
	}
	for {
		one := c.current
		if one == nil {
			one = &listing{before: c.cfg.View(), at: c.cfg.Now(), ids: ids, pods: append(c.tracker.podsOfStarts(ids), c.pods...),
				done: make(chan struct{})}
			c.current = one
			c.running.Go(func() { one.fill(ctx, c.cfg.Runtime) })
		}
		if err := c.awaitList(ctx, one); err != nil {
			c.away.Store(true)
			return nil, fmt.Errorf("%w: %w", errAway, err)
		}
		c.current = nil
		c.silent = errdefs.ClassOf(one.err) == errdefs.Deadline
		c.away.Store(one.err != nil)
		if one.err != nil {
			return nil, fmt.Errorf("%w: %w", errAway, one.err)
		}
		if one.covers(ids, c.pods) {
			c.synced = one
			return one, nil
		}
	}
}

// awaitList waits for a list, once in an outage of the runtime. A list that arrives later
// wakes the loop.
func (c *calls) awaitList(ctx context.Context, one *listing) error {
	const what = "wait for the list"
	if !c.silent || isOver(one.done) {
		err := c.await(ctx, what, one.done)
		if err == nil || ctx.Err() != nil {
			return err
		}
		c.silent = true
	}
	if !one.late {
		one.late = true
		c.running.Go(func() {
			<-one.done
			c.wake()
		})
	}
	return errdefs.Deadlinef("%s: %w", what, errPending)
}
