package hint

import (
	"context"
	"iter"
	"time"

	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/numa"
	"github.com/berthd/berth/managers/workload"
)

// Hint is one possible placement. With Any it has no opinion on the nodes.
type Hint = ledger.Affinity

// Scope is the object of a request to a provider.
type Scope string

const (
	// ContainerScope requests one container.
	ContainerScope Scope = "container"
	// PodScope requests once for the pod as a whole.
	PodScope Scope = "pod"
)

// Request is a request to providers. Pod is shared and must not be changed. Container indexes
// Pod.Containers; it is -1 for the whole pod.
type Request struct {
	Pod       *workload.Pod
	Container int
	// Borrows means that the request is for an init container, and that the containers that run for the pod's life are planned
	// already. It takes what later containers and earlier init containers of the pod hold before what is free. Below is the
	// only container that it may take from; if that is not enough, Plan refuses. Near is a container on whose NUMA nodes it must
	// be. Both may be empty. A provider may ignore all three.
	Borrows     bool
	Below, Near string
	// Running means, for validators, that the pod runs already, and neither its requests nor its claims are new.
	Running bool
	// Before is a running pod with the requests that it had before a resize; nil without one.
	Before *workload.Pod
}

// Scope reports whether the request is for one container or for the whole pod.
func (r Request) Scope() Scope {
	if r.Container < 0 {
		return PodScope
	}
	return ContainerScope
}

// Owner returns the ledger's owner of the request.
func (r Request) Owner() ledger.Owner {
	o := ledger.Owner{Pod: r.Pod.UID}
	if r.Container >= 0 {
		o.Container = r.Pod.Containers[r.Container].Name
	}
	return o
}

// External returns the devices that another program has allocated to the request's container, or to those of the pod.
func (r Request) External() iter.Seq[workload.ExternalDevice] {
	return func(yield func(workload.ExternalDevice) bool) {
		for i, c := range r.Pod.Walk() {
			if r.Container >= 0 && r.Container != i {
				continue
			}
			for _, d := range c.ExternalDevices {
				if !yield(d) {
					return
				}
			}
		}
	}
}

// Member is an element of the bus: a Provider, or only a Validator, Explainer or Resizer.
type Member interface {
	// Name is stable and unique; claims, traces and metrics carry it.
	Name() string
}

// Provider allocates one kind of resource. An admission calls Hints (any number of times), Plan
// after the merge of all answers, and the Prepare of a Preparer after the plans of all providers.
// If the admission fails after that, only an Aborter is notified. Hints and Plan use only the given
// view, and make remote calls only through Call: they run under the admission lock, where Call
// returns recorded answers.
type Provider interface {
	Member
	// Hints answers per resource, ordered by resource name. No answers at all
	// means that the request does not concern this provider.
	Hints(ctx context.Context, view *ledger.View, req Request) ([]ResourceAnswer, error)
	// Plan returns the claims that serve the request under the affinity; claims
	// that the owner already holds unchanged are not repeated. A refusal is a
	// *errdefs.Error of class Refused. The claims must satisfy managers/ledger/check on
	// the view.
	Plan(ctx context.Context, view *ledger.View, req Request, affinity Hint) ([]ledger.Claim, error)
}

// Preparer is a provider whose claims need calls to other processes before they are committed.
type Preparer interface {
	// Prepare completes planned claims with the answers of these calls. It is idempotent for
	// one admission id, and returns the claims in the order given. It does not change them: if
	// nothing is added, it may return the slice that it was given. It runs without the
	// admission lock, for several admissions at a time.
	Prepare(ctx context.Context, admissionID string, req Request, claims []ledger.Claim) ([]ledger.Claim, error)
}

// Aborter is notified when an admission fails after Prepare.
type Aborter interface {
	Abort(ctx context.Context, admissionID string)
}

// Leaser is a provider whose Prepare makes a temporary reservation in another process.
type Leaser interface {
	// Lease returns what the provider holds reserved for an admission; false if
	// that is nothing. The draft gets it together with the prepared claims, so it
	// is in the ledger from the commit on until the provider has confirmed.
	Lease(admissionID string) (ledger.Lease, bool)
}

// LeaseExpired is the condition of a pod whose admission took longer than a provider holds a reservation.
const LeaseExpired = "LeaseExpired"

// ExpiredLease returns the error for a reservation that has expired before the commit, because the provider may have given it to another
// pod. It names the provider, and is temporary: the rest of the admission took too long.
func ExpiredLease(l ledger.Lease) error {
	err := errdefs.Deadlinef("provider %s held what it reserved until %s, and the admission took longer", l.Provider,
		l.Expires.UTC().Format(time.RFC3339))
	err.Provider = l.Provider
	return expiredLease{err}
}

type expiredLease struct{ error }

// Unwrap returns the error that names the provider.
func (e expiredLease) Unwrap() error { return e.error }

// Waits implements Waiter.
func (expiredLease) Waits() Wait { return Wait{Condition: LeaseExpired} }

// Finisher has claims that are needed only for a part of a pod's life.
type Finisher interface {
	// Finished returns the pod's claims that are no longer needed when one of its containers
	// starts. They are released with the start.
	Finished(pod *ledger.Pod, starting string) []ledger.Claim
}

// Releaser is notified of the claims that a committed removal, or the start of a container, has
// released.
type Releaser interface {
	Released(ctx context.Context, claims []ledger.Claim)
}

// Validator is the second phase: it gets the original request and every claim with its owner, and
// may refuse. It need not be a Provider.
type Validator interface {
	Validate(ctx context.Context, view *ledger.View, req Request) error
}

// Explainer reports what a request lacks.
type Explainer interface {
	// Explain compares the request with the provider's resources on the given nodes together,
	// whatever other nodes have. It returns a shortage for each resource of which these nodes
	// have too little. It must be quick: a provider that would need a slow remote call returns
	// nothing.
	Explain(view *ledger.View, req Request, nodes numa.Mask) []ledger.Shortage
}

// Catalog is a provider that lists its resources by name, even if it cannot serve one now.
type Catalog interface {
	// Resources returns the names, in any order.
	Resources() []string
}

// Describer returns a provider's policy and options, for its own service.
type Describer interface {
	Describe() Description
}

// Description of a provider for people and programs.
type Description struct {
	Policy  string
	Options map[string]string
}
