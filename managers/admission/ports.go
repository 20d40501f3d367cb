package admission

import (
	"context"
	"time"

	"github.com/berthd/berth/managers/hint"
	"github.com/berthd/berth/managers/ledger"
)

// CgroupManager makes and removes the cgroups of pods and containers.
type CgroupManager interface {
	// EnsurePod makes the pod's cgroup with the values that follow from the
	// view, which holds the pod already, and its QoS tier's first. It returns
	// the name for runtimes, and whether the cgroup was not there before; after
	// an error it is as it was. It is idempotent.
	EnsurePod(ctx context.Context, view *ledger.View, uid string) (cgroupParent string, created bool, err error)
	// ForgetPod undoes an EnsurePod that created, for a pod that was not
	// committed.
	ForgetPod(ctx context.Context, view *ledger.View, uid string) error
	// RecordClaims writes the claim record of a pod of the view, as of its next
	// generation, where the pod lives. Before the commit, so that what lives is known
	// even if the ledger is lost. restore puts back what was there, and may do nothing
	// unless there was something. A record that is too large is of class Invalid.
	RecordClaims(ctx context.Context, view *ledger.View, uid string, there bool) (restore func() error, err error)
	// Started tells whether a container of a pod of the view runs already: a process is
	// in the cgroup that berth makes for it, or the runtime says so.
	Started(ctx context.Context, view *ledger.View, b ledger.Binding) (bool, error)
	// RemovePod kills every process of the pod and removes its cgroup. After it
	// returned nil no process of the pod runs.
	RemovePod(ctx context.Context, view *ledger.View, uid string) error
	// CheckResize tells, without changing anything, whether the pod's places can
	// get the values that follow from the view. A refusal is of class Refused.
	CheckResize(ctx context.Context, view *ledger.View, uid string) error
	// Resize gives the pod's places the values that follow from the view, in an
	// order that is safe for what runs there. It is idempotent, and also undoes.
	Resize(ctx context.Context, view *ledger.View, uid string) error
	// EnsureContainer makes a container that is to start run where the view says:
	// the cgroup exists, the process (if there is one) is inside, every other
	// container has left its exclusive CPUs. It returns the cgroup's path below the
	// mount point, or an empty path where a runtime makes the cgroup.
	EnsureContainer(ctx context.Context, view *ledger.View, s Start) (path string, err error)
	// Vacant tells whether nothing runs in a container's cgroup, which berth made, not
	// counting a process that is about to start.
	Vacant(ctx context.Context, b ledger.Binding, starting int) (bool, error)
	// RemoveContainer removes the cgroup of a container that has ended.
	RemoveContainer(ctx context.Context, b ledger.Binding) error
	// UnknownPods lists the pods that have a cgroup and that the view does not know.
	UnknownPods(ctx context.Context, view *ledger.View) (uids []string, err error)
	// RemoveUnknown kills what runs in the cgroups of a pod that the view does not
	// know, and removes them.
	RemoveUnknown(ctx context.Context, view *ledger.View, uid string) error
}

// Start is the start of a container that was asked for.
type Start struct {
	Binding ledger.Binding
	// PID is the process to put in; 0 if there is none yet.
	PID int
	// Again says that the container was bound before anybody asked for this start:
	// an earlier one may have been allowed, and may be under way.
	Again bool
	// Still says that this start's place was put in force before, and that nobody has
	// been told yet.
	Still bool
}

// Starter is told before a container starts; plugins may want to prepare its
// devices (deviceplugin v1beta1, PreStartContainer).
type Starter interface {
	PreStart(ctx context.Context, view *ledger.View, owner ledger.Owner) error
}

// Environment is what the engine takes from outside besides its ports.
type Environment struct {
	Now func() time.Time
	// NewID makes a name for an admission.
	NewID func() string
	// User names the user for whom a call is made, who shares the admission lock with
	// others; empty for root and for berth itself. Without it every call is root's.
	User func(ctx context.Context) string
	// Waits, if set, is told when a call is about to wait for something that may take
	// long: another call, a plugin, a provider, the end of processes. It is told no
	// sooner, and may be told again.
	Waits func(ctx context.Context)
	// Slot, if set, waits until a call may take much of a processor.
	Slot func(ctx context.Context) (leave func(), err error)
	// WithTimeout is context.WithTimeout. Without it an admission that waits for
	// others answers only when its time is over.
	WithTimeout hint.WithTimeout
	// Each calls do for 0 to n-1, several at a time, and returns when all have
	// returned. Without it they are called one after the other.
	Each func(n int, do func(i int))
}
