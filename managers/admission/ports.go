package admission

import (
	"context"
	"time"

	"github.com/berthd/berth/managers/hint"
	"github.com/berthd/berth/managers/ledger"
)

// CgroupManager creates and removes the cgroups of pods and containers.
type CgroupManager interface {
	// EnsurePod creates the cgroup of the pod's QoS class and the pod's cgroup, with values
	// computed from the view, which already has the pod. It returns the name for runtimes,
	// and whether it created the pod's cgroup. After an error nothing has changed. It is
	// idempotent.
	EnsurePod(ctx context.Context, view *ledger.View, uid string) (cgroupParent string, created bool, err error)
	// ForgetPod undoes an EnsurePod that created a cgroup, for a pod that was not
	// committed.
	ForgetPod(ctx context.Context, view *ledger.View, uid string) error
	// RecordClaims writes the claim record of a pod of the view, with the view's next
	// generation. It is called before the commit, so that running pods are known even if
	// the ledger is lost. restore writes the earlier record again; it may do nothing if
	// there was none. A record that is too large is an error of class Invalid.
	RecordClaims(ctx context.Context, view *ledger.View, uid string, there bool) (restore func() error, err error)
	// Started returns whether a container of the view runs: its cgroup has a process, or
	// the runtime reports it as running.
	Started(ctx context.Context, view *ledger.View, b ledger.Binding) (bool, error)
	// RemovePod kills all processes of the pod and removes its cgroup. After it returns
	// nil, no process of the pod runs.
	RemovePod(ctx context.Context, view *ledger.View, uid string) error
	// CheckResize returns whether the pod's cgroups can get the view's values, and changes
	// nothing. A refusal is of class Refused.
	CheckResize(ctx context.Context, view *ledger.View, uid string) error
	// Resize writes the view's values to the pod's cgroups, in an order that is safe for
	// running processes. It is idempotent, and is also used to undo.
	Resize(ctx context.Context, view *ledger.View, uid string) error
	// EnsureContainer prepares the start of a container: its cgroup exists, its process (if
	// there is one) is inside, and every other container has left its exclusive CPUs. It
	// returns the cgroup's path below the mount point, or an empty path if a runtime
	// creates the cgroup.
	EnsureContainer(ctx context.Context, view *ledger.View, s Start) (path string, err error)
	// Vacant returns whether a container's cgroup that berth created has no process, not
	// counting a process that is about to start.
	Vacant(ctx context.Context, b ledger.Binding, starting int) (bool, error)
	// RemoveContainer removes the cgroup of an ended container.
	RemoveContainer(ctx context.Context, b ledger.Binding) error
	// UnknownPods lists pods with a cgroup that the view does not have.
	UnknownPods(ctx context.Context, view *ledger.View) (uids []string, err error)
	// RemoveUnknown kills the processes in the cgroups of a pod that the view does not
	// have, and removes the cgroups.
	RemoveUnknown(ctx context.Context, view *ledger.View, uid string) error
}

// Start is a requested start of a container.
type Start struct {
	Binding ledger.Binding
	// PID is the process to move into the cgroup; 0 if there is none yet.
	PID int
	// Again is whether the container was bound before this start was requested. An earlier
	// start may have been allowed, and may be in progress.
	Again bool
	// Still is whether the cgroup was prepared for this start before, and the answer has
	// not been sent yet.
	Still bool
}

// Starter is called before a container starts. Plugins may have to prepare its devices
// (deviceplugin v1beta1, PreStartContainer).
type Starter interface {
	PreStart(ctx context.Context, view *ledger.View, owner ledger.Owner) error
}

// Environment has the engine's dependencies in addition to its ports.
type Environment struct {
	Now func() time.Time
	// NewID returns a new admission id.
	NewID func() string
	// User returns the user of a call, for the admission lock's queues. It is empty for
	// root and for berth itself. Without User every call counts as root's.
	User func(ctx context.Context) string
	// Waits, if set, is called when a call is about to wait for something that may take
	// long: another call, a plugin, a provider, the end of processes. It may be called
	// several times.
	Waits func(ctx context.Context)
	// Away, if set, is called before a remote call of planning, and back after its answer:
	// in between the call uses no CPU time.
	Away func(ctx context.Context) (back func())
	// Slot, if set, waits until a call may use much CPU time, unless it may already.
	Slot func(ctx context.Context) (leave func(), err error)
	// Observe, if set, is called for the steps of admissions.
	Observe hint.Observer
	// WithTimeout is context.WithTimeout. Without it, an admission that waits for others
	// answers only at its deadline.
	WithTimeout hint.WithTimeout
	// Each calls do for 0 to n-1, several at a time, and returns after all have returned.
	// Without it the calls are made one after another.
	Each func(n int, do func(i int))
}
