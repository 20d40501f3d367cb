package admission

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/berthd/berth/managers/admission/locks"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/hint"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/ledger/history"
	"github.com/berthd/berth/managers/topology"
	"github.com/berthd/berth/managers/workload"
)

// Config of the engine.
type Config struct {
	Features workload.Features
	Bounds   workload.Bounds
	// Attempts limits how often an overtaken plan is repeated (the rules have changed, or
	// an import has taken reserved resources); 0 means 64.
	Attempts int
	// DeferWaits defers pods that fail only because of a temporary condition: a plugin that is away, devices that are not
	// healthy. Without it such a pod is rejected, as by the kubelet; if nothing was decided, the error is of class Unavailable.
	DeferWaits bool
	// Resources configures extended resources without a provider.
	Resources Resources
	// RetryAfter is sent with a deferred verdict; 0 means 5 s.
	RetryAfter time.Duration
	// Tries limits the dry runs that search for suggestions; 0 means 64, less than 0 none.
	// TryTime limits their time; 0 means 250 ms.
	Tries   int
	TryTime time.Duration
	// Kubelet means that a kubelet decides on the node: suggestions have its commands.
	Kubelet bool
}

// Parts are the engine's ports.
type Parts struct {
	Ledger  *ledger.Ledger
	History *history.History // records refusals; nil if there is none
	// Lock is shared with those that need the ledger's changes in order; nil for one of the engine's own.
	Lock *Lock
	// Managers returns the managers for a view; nil if there are none, because the machine or the configuration has changed since.
	Managers func(view *ledger.View) (*hint.Bus, *topology.Manager)
	// ClaimManagers returns the managers for a resource claim. Errors are of class Invalid or Precondition: none can decide
	// about it. Without an error, nil is as for Managers. A nil function: no claims are admitted.
	ClaimManagers func(view *ledger.View, claim *workload.Pod) (*hint.Bus, *topology.Manager, error)
	CgroupManager CgroupManager
	Starter       Starter
	// Lives returns what is known of an unknown living pod; nil if there can be none.
	Lives func(ctx context.Context, uid string) ledger.UnknownLivePod
	Environment
}

// Engine admits and removes pods. Its methods are safe for concurrent use. What one call is about has a type of its own: candidate and
// admission for Admit, adopting for Adopt, sweep for Sync.
type Engine struct {
	Config
	Parts
	*Lock

	// pods serializes operations on one pod. remote serializes the planning of admissions
	// that call the same plugin or provider.
	pods, remote locks.Named
	refused      refusedIDs
	deferrals    deferrals
	synced       atomic.Bool // the agent has called SyncPods since the start
}

// New returns an engine. It starts no goroutine.
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
	if parts.Lock == nil {
		parts.Lock = NewLock(parts.Ledger, parts.User)
	}
	return &Engine{Config: cfg, Parts: parts, Lock: parts.Lock, pods: locks.Named{Waits: parts.Waits},
		remote: locks.Named{Waits: parts.Waits}}
}

// Outcome is the result of an admission.
type Outcome int

const (
	// Rejected: the pod is not admitted.
	Rejected Outcome = iota
	// Admitted: the pod has its claims.
	Admitted
	// Deferred: the pod may be admitted later.
	Deferred
)

// String returns the outcome as metrics, logs and the history write it.
func (o Outcome) String() string {
	switch o {
	case Admitted:
		return "admitted"
	case Deferred:
		return "deferred"
	}
	return "rejected"
}

// Verdict is the answer to an admission.
type Verdict struct {
	Outcome Outcome
	// Reason and Message are empty for an admitted pod.
	Reason  errdefs.Reason
	Message string
	QoS     workload.QoSClass
	// Pod with its claims; nil unless admitted. In a dry run nothing of it is stored.
	Pod *ledger.Pod
	// View that the verdict is based on; in a dry run the draft's view.
	View       *ledger.View
	Trace      *ledger.Trace
	RetryAfter time.Duration
	// Condition of a deferred pod; otherwise nil.
	Condition *Condition
	// Notes list requests that were not allocated.
	Notes []Note
	// Repeated is whether the pod was admitted before, so that this is the earlier answer.
	Repeated bool
}

// Request requests the admission of a pod.
type Request struct {
	// Pod as the caller sent it, before defaulting.
	Pod workload.Pod
	// Unserved describes relevant fields of the caller's pod that Pod lacks, as sentences.
	// They are not allocated.
	Unserved []string
	// Owner is the agent that the pod belongs to; empty means ledger.DefaultOwner.
	Owner string
	// AdmissionID may be empty.
	AdmissionID string
	// RunningAllocations are the current allocations of a running pod's containers. They are recorded
	// if no other pod has them; nothing is planned then.
	RunningAllocations []RunningAllocation
	DryRun             bool
	// At is when another program has made the decision that is explained; zero for now.
	At time.Time
}

// waited waits for a lock as a step of an admission.
func (e *Engine) waited(ctx context.Context, lock func(context.Context) (func(), error)) (release func(), err error) {
	ctx, step := hint.StepIn(ctx, hint.StepWait)
	release, err = lock(ctx)
	step.End(err)
	return release, err
}

// AwaitCommits returns after it has had the admission lock and the commits under way have ended.
// While one of them hangs it does not return before ctx ends.
func (e *Engine) AwaitCommits(ctx context.Context) error {
	release, err := e.reacquire(ctx)
	if err != nil {
		return err
	}
	defer release()
	e.Ledger.AwaitCommits()
	return nil
}

// waits reports that a call is about to wait for another operation.
func (e *Engine) waits(ctx context.Context) {
	if e.Waits != nil {
		e.Waits(ctx)
	}
}

// liveCalls returns the remote calls of an operation. They are made unless a plan is replayed.
func (e *Engine) liveCalls() *hint.Calls { return &hint.Calls{Mode: hint.Live, Away: e.Away} }

// LockPod waits until no other operation on the pod is in progress.
func (e *Engine) LockPod(ctx context.Context, uid string) (unlock func(), err error) {
	return e.pods.Lock(ctx, "operation on pod", uid)
}

// TryLockPod is LockPod for a caller that has other pods to serve: it does not wait. The error is of class Unavailable.
func (e *Engine) TryLockPod(uid string) (unlock func(), err error) {
	if unlock, ok := e.pods.TryLock(uid); ok {
		return unlock, nil
	}
	return nil, errdefs.Unavailablef("another operation on the pod is in progress")
}
