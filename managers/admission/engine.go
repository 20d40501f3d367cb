package admission

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/hint"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/topology"
	"github.com/berthd/berth/managers/workload"
)

// Config of the engine.
type Config struct {
	Features workload.Features
	Bounds   workload.Bounds
	// Attempts bounds how often a confirmed plan is made again because the rules
	// have changed, or somebody has taken what it holds by an import; 0 means 64.
	Attempts int
	// DeferWaits answers Deferred where only something stands in a pod's way that
	// may pass by itself: a plugin that is away, devices that are not healthy.
	// Without it such a pod is rejected, as by the kubelet, and one that nobody has
	// decided about is an error of class Unavailable.
	DeferWaits bool
	// Resources is about extended resources that nobody provides.
	Resources Resources
	// RetryAfter is told with a deferred verdict; 0 means 5 s.
	RetryAfter time.Duration
	// Tries bounds the dry runs that look for changes which would make a rejected
	// pod fit; 0 means 64, less than 0 none. TryTime bounds the time they take;
	// 0 means 250 ms.
	Tries   int
	TryTime time.Duration
}

// Parts are the engine's ports.
type Parts struct {
	Ledger *ledger.Ledger
	// Managers returns who decides on a view.
	Managers      func(view *ledger.View) (*hint.Bus, *topology.Manager)
	CgroupManager CgroupManager
	Starter       Starter
	// Lives tells what is known of a pod that lives here and is not in the ledger; nil
	// where nothing can be.
	Lives func(ctx context.Context, uid string) ledger.UnknownLivePod
	Environment
}

// Engine admits and removes pods. Its methods are safe for concurrent use.
type Engine struct {
	Config
	Parts

	// lock is the admission lock. It is held while a plan is confirmed and reserved,
	// and while anything is committed; never over a remote call or the making of a cgroup.
	lock     fairLock
	reserved reservations
	// pods are held over one operation on one pod, and remote over the planning of
	// admissions that call the same plugin or provider.
	pods, remote namedLocks
	synced       atomic.Bool // the agent has sent Sync since the start
}

// New makes an engine. It starts nothing.
func New(cfg Config, parts Parts) *Engine {
	if cfg.Attempts == 0 {
		cfg.Attempts = 64
	}
	if cfg.RetryAfter == 0 {
		cfg.RetryAfter = 5 * time.Second
	}
	if cfg.Tries == 0 {
		cfg.Tries = 64
	}
	if cfg.TryTime == 0 {
		cfg.TryTime = 250 * time.Millisecond
	}
	return &Engine{Config: cfg, Parts: parts, pods: namedLocks{waits: parts.Waits}, remote: namedLocks{waits: parts.Waits}}
}

// Outcome of an admission.
type Outcome int

const (
	// Rejected: the pod cannot have its place.
	Rejected Outcome = iota
	// Admitted: the pod has its place.
	Admitted
	// Deferred: not now; ask again.
	Deferred
)

// Verdict is the answer to an admission.
type Verdict struct {
	Outcome Outcome
	// Reason and Message are empty for an admitted pod.
	Reason  errdefs.Reason
	Message string
	QoS     workload.QoSClass
	// Pod with its claims; nil unless admitted. In a dry run it is what would be.
	Pod *ledger.Pod
	// View that the verdict holds in; a dry run's is that of its draft.
	View       *ledger.View
	Trace      *ledger.Trace
	RetryAfter time.Duration
	// Condition is what a deferred pod waits for; nil otherwise.
	Condition *Condition
	// Notes tell what the pod goes without.
	Notes []Note
	// Repeated tells that the pod was admitted before, and this is that answer.
	Repeated bool
}

// Request asks for a pod's place.
type Request struct {
	// Pod as the caller sent it, before defaulting.
	Pod workload.Pod
	// Unserved tells, in sentences, what the caller's pod has that Pod has not and that
	// decides a place: nobody gives it.
	Unserved []string
	// Owner is the agent that the pod belongs to; empty means ledger.DefaultOwner.
	Owner string
	// AdmissionID may be empty.
	AdmissionID string
	// Holdings are what the containers of a pod that runs already hold. They are
	// booked, if nobody else holds them; nothing is planned then.
	Holdings []Holding
	DryRun   bool
}

// acquire waits for the admission lock; release must be called if err is nil. It is of
// class Exhausted if too many calls of the user wait already.
func (e *Engine) acquire(ctx context.Context) (release func(), err error) {
	return e.take(ctx, maxWaiting)
}

// reacquire waits for the admission lock to finish what has begun: a call that has
// prepared or ended something is not sent away.
func (e *Engine) reacquire(ctx context.Context) (release func(), err error) {
	return e.take(ctx, 0)
}

func (e *Engine) take(ctx context.Context, most int) (release func(), err error) {
	release, err = e.lock.lock(ctx, e.user(ctx), most)
	if err != nil && errdefs.ClassOf(err) != errdefs.Exhausted {
		err = errdefs.Deadlinef("wait for the admission lock: %w", err)
	}
	return release, err
}

// waits tells that a call is about to wait for somebody else.
func (e *Engine) waits(ctx context.Context) {
	if e.Waits != nil {
		e.Waits(ctx)
	}
}

// user names the user that a call is made for.
func (e *Engine) user(ctx context.Context) string {
	if e.User == nil {
		return ""
	}
	return e.User(ctx)
}

// update changes the ledger when it is the turn of the call's user: commits of one user
// do not push ahead of another's. The caller does not hold the admission lock.
func (e *Engine) update(ctx context.Context, change func(*ledger.Draft) error) (*ledger.View, error) {
	release, err := e.reacquire(ctx)
	if err != nil {
		return nil, err
	}
	defer release()
	return e.Ledger.Update(ctx, change)
}

// namedLocks are locks by name. A lock is there as long as somebody holds it or
// waits for it.
type namedLocks struct {
	waits func(ctx context.Context) // is told when a call is about to wait; may be nil

	mu    sync.Mutex
	locks map[string]*namedLock // guarded by mu
}

type namedLock struct {
	held    chan struct{}
	waiting int // guarded by namedLocks.mu; the holder included
}

// lock waits for the lock of a name; what says for what in an error.
func (n *namedLocks) lock(ctx context.Context, what, name string) (unlock func(), err error) {
	if unlock, ok := n.try(name); ok {
		return unlock, nil
	}
	if n.waits != nil {
		n.waits(ctx)
	}
	l := n.enter(name)
	select {
	case l.held <- struct{}{}:
		return func() { <-l.held; n.leave(name, l) }, nil
	case <-ctx.Done():
		n.leave(name, l)
		return nil, errdefs.Deadlinef("wait for another %s %s: %w", what, name, context.Cause(ctx))
	}
}

// try takes the lock of a name if nobody holds it.
func (n *namedLocks) try(name string) (unlock func(), ok bool) {
	l := n.enter(name)
	select {
	case l.held <- struct{}{}:
		return func() { <-l.held; n.leave(name, l) }, true
	default:
		n.leave(name, l)
		return nil, false
	}
}

func (n *namedLocks) enter(name string) *namedLock {
	n.mu.Lock()
	defer n.mu.Unlock()
	l := n.locks[name]
	if l == nil {
		l = &namedLock{held: make(chan struct{}, 1)}
		if n.locks == nil {
			n.locks = make(map[string]*namedLock)
		}
		n.locks[name] = l
	}
	l.waiting++
	return l
}

func (n *namedLocks) leave(name string, l *namedLock) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if l.waiting--; l.waiting == 0 {
		delete(n.locks, name)
	}
}

// lockPod waits until no other operation on the pod runs.
func (e *Engine) lockPod(ctx context.Context, uid string) (unlock func(), err error) {
	return e.pods.lock(ctx, "operation on pod", uid)
}
