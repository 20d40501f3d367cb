package hint

import (
	"context"

	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/numa"
	"github.com/berthd/berth/managers/workload"
)

// Hint is one possible placement. With Any it has no opinion on the nodes.
type Hint = ledger.Affinity

// Scope says for what a provider is asked.
type Scope string

const (
	// ContainerScope requests one container.
	ContainerScope Scope = "container"
	// PodScope asks once for the pod as a whole.
	PodScope Scope = "pod"
)

// Request is what providers are asked about. Pod is shared and must not be
// changed. Container indexes Pod.Containers; it is -1 when the whole pod is
// meant.
type Request struct {
	Pod       *workload.Pod
	Container int
	// Running says, to validators, that the pod runs already and its claims are not new.
	Running bool
}

// Scope reports whether the request is for one container or for the whole pod.
func (r Request) Scope() Scope {
	if r.Container < 0 {
		return PodScope
	}
	return ContainerScope
}

// Owner returns the ledger's name for whom the request is made.
func (r Request) Owner() ledger.Owner {
	o := ledger.Owner{Pod: r.Pod.UID}
	if r.Container >= 0 {
		o.Container = r.Pod.Containers[r.Container].Name
	}
	return o
}

// Member has a place on the bus. It is a Provider, or only one of those that look at
// what providers plan (Validator, Explainer, Resizer).
type Member interface {
	// Name is stable and unique; claims, traces and metrics carry it.
	Name() string
}

// Provider hands out one kind of resource. The life of an admission, seen from
// here: Hints (any number of times), Plan once the answers of all were merged,
// Prepare when every provider has planned; if the admission fails after that,
// nothing more is said unless the provider is an Aborter. Hints and Plan work on
// the view they are given, never on anything remembered between calls, and make
// remote calls only through Call: they are called under the admission lock, where
// Call answers from what was recorded. Prepare is called without that lock, for
// several admissions at a time.
type Provider interface {
	Member
	// Hints answers per resource, ordered by resource name. No answers at all
	// means that the request does not concern this provider.
	Hints(ctx context.Context, view *ledger.View, req Request) ([]ResourceAnswer, error)
	// Plan returns the claims that serve the request under the affinity; claims
	// that the owner already holds unchanged are not repeated. A refusal is a
	// *errdefs.Error of class Refused. The claims must satisfy ledger.Check on
	// the view.
	Plan(ctx context.Context, view *ledger.View, req Request, affinity Hint) ([]ledger.Claim, error)
	// Prepare completes planned claims with what the outside answers. It is
	// idempotent for one admission id, and returns the claims in the order given. It does
	// not change them: if nothing is added, it may return the slice that it was given.
	Prepare(ctx context.Context, admissionID string, req Request, claims []ledger.Claim) ([]ledger.Claim, error)
}

// Aborter is told when an admission failed after Prepare.
type Aborter interface {
	Abort(ctx context.Context, admissionID string)
}

// Leaser is a provider whose Prepare reserves something outside, for a time.
type Leaser interface {
	// Lease returns what the provider holds reserved for an admission; false if
	// that is nothing. The draft gets it together with the prepared claims, so it
	// is in the ledger from the commit on until the provider has confirmed.
	Lease(admissionID string) (ledger.Lease, bool)
}

// Finisher knows claims that serve only a part of a pod's life.
type Finisher interface {
	// Finished returns what of a pod's claims nobody needs any more when one of its
	// containers starts. They are given back with the start.
	Finished(pod *ledger.Pod, starting string) []ledger.Claim
}

// Releaser is told what a committed removal, or the start of a container, gave back.
type Releaser interface {
	Released(ctx context.Context, claims []ledger.Claim)
}

// Validator is the second phase: it sees the pristine request and every claim
// with its owner, and may refuse. It need not be a Provider.
type Validator interface {
	Validate(ctx context.Context, view *ledger.View, req Request) error
}

// Explainer reports what a request lacks.
type Explainer interface {
	// Explain compares what the request needs of this provider with what it could
	// have on the given nodes together, whatever other nodes have: a shortage for
	// each resource of which these nodes have too little. It is quick: who has to
	// ask outside says nothing if that takes long.
	Explain(view *ledger.View, req Request, nodes numa.Mask) []ledger.Shortage
}

// Catalog is a provider that knows resources by their names, whether or not it
// could serve one now.
type Catalog interface {
	// Resources returns the names, in any order.
	Resources() []string
}

// Describer tells a provider's policy and options, for its own service.
type Describer interface {
	Describe() Description
}

// Description of a provider for people and programs.
type Description struct {
	Policy  string
	Options map[string]string
}
