package admission

import (
	"context"
	"sync"
	"time"

	"github.com/berthd/berth/managers/fault"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/workload"
)

// Config of the engine.
type Config struct {
	Features workload.Features
	Bounds   workload.Bounds
	// Attempts bounds how often a plan is made again because the ledger moved;
	// 0 means 8. Pods that go make no more than two plans void.
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
	Managers func(view *ledger.View) (Bus, Policy)
	Places   Places
	Starter  Starter
	Environment
}

// Engine admits and removes pods. Its methods are safe for concurrent use.
type Engine struct {
	Config
	Parts

	// lock is the admission lock: it is held while one admission is planned, prepared and committed, on
	// purpose also over remote calls, which all have deadlines.
	lock chan struct{}
	pods podLocks
}

// New makes an engine. It starts nothing.
func New(cfg Config, parts Parts) *Engine {
	if cfg.Attempts == 0 {
		cfg.Attempts = 8
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
	return &Engine{Config: cfg, Parts: parts, lock: make(chan struct{}, 1)}
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
	Reason  fault.Reason
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
	// AdmissionID may be empty.
	AdmissionID string
	DryRun      bool
}

// acquire waits for the admission lock; release must be called if err is nil.
func (e *Engine) acquire(ctx context.Context) (release func(), err error) {
	select {
	case e.lock <- struct{}{}:
		return func() { <-e.lock }, nil
	case <-ctx.Done():
		return nil, fault.Deadlinef("wait for the admission before this one: %w", context.Cause(ctx))
	}
}

// podLocks serialises operations on one pod.
type podLocks struct {
	mu    sync.Mutex
	locks map[string]*podLock // guarded by mu
}

type podLock struct {
	held    chan struct{}
	waiting int // guarded by podLocks.mu
}

// lock waits until no other operation on the pod runs.
func (p *podLocks) lock(ctx context.Context, uid string) (unlock func(), err error) {
	p.mu.Lock()
	l := p.locks[uid]
	if l == nil {
		l = &podLock{held: make(chan struct{}, 1)}
		if p.locks == nil {
			p.locks = make(map[string]*podLock)
		}
		p.locks[uid] = l
	}
	l.waiting++
	p.mu.Unlock()

	done := func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		if l.waiting--; l.waiting == 0 {
			delete(p.locks, uid)
		}
	}
	select {
	case l.held <- struct{}{}:
		return func() { <-l.held; done() }, nil
	case <-ctx.Done():
		done()
		return nil, fault.Deadlinef("wait for another operation on pod %s: %w", uid, context.Cause(ctx))
	}
}
