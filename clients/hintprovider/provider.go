package hintprovider

import (
	"context"
	"log/slog"
	"time"

	hintv1 "github.com/berthd/berth/api/berth/hint/v1"
	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/clients/hintprovider/hintserver"
	"github.com/berthd/berth/managers/errdefs"
)

// Options configure a provider: its socket, and which decisions it joins.
type Options struct {
	// Socket is the path of the provider's own socket. Only the user that it runs as and root
	// may connect.
	Socket string
	// Berth is where berthd listens, as for berth.Dial; empty means the default.
	Berth string
	// NoRegistration leaves the registration to another program.
	NoRegistration bool
	// Required: a failure of this provider refuses the admission. Otherwise it is advisory, and
	// counts as no preference and no claims.
	Required bool
	// Deadline of each call of an admission; 0 means what berthd is configured with.
	Deadline time.Duration
	// Resources that the provider allocates. It is called for pods that request one of them.
	// Empty: for every pod.
	Resources []string
	// Index orders external providers, lower first.
	Index int32
	// Log may be nil.
	Log *slog.Logger
}

// Request describes what a call is about. It is shared and must not be changed.
type Request struct {
	// Pod with defaults applied and its QoS class filled in.
	Pod *typesv1.Pod
	// ContainerName is empty for the pod as a whole.
	ContainerName string
	// Allocations are what pods have of the provider, including what is reserved and what is
	// planned for this pod. Everything else is free. In order of pod uids. Prepare has none.
	Allocations []*hintv1.ProviderAllocation
	// NUMANodes of the machine. Prepare has none.
	NUMANodes *typesv1.NUMANodeSet
}

// Provider allocates a resource. Hints and Plan change nothing, and have the same answer for
// the same request. An error that Refuse has made refuses the pod; any other error is a failure
// of the provider.
type Provider interface {
	// Name is the name that the provider registers, a DNS label.
	Name() string
	// Hints returns for each resource on which NUMA nodes the request can be placed; nothing if
	// the request does not concern the provider.
	Hints(ctx context.Context, r *Request) ([]*typesv1.TopologyHints, error)
	// Plan returns the claims for the request, on the NUMA nodes of the merged hint.
	Plan(ctx context.Context, r *Request, affinity *typesv1.TopologyHint) ([]*typesv1.Claim, error)
	// Prepare reserves planned claims for an admission, and returns a grant for each of them.
	// It may be called again for the same admission and container; then the last call counts.
	Prepare(ctx context.Context, admissionID string, r *Request, claims []*typesv1.Claim) ([]*hintv1.Grant, error)
}

// Aborter is a Provider that releases what an admission has reserved. It is called after a
// failed admission, and when a lease has expired.
type Aborter interface {
	Abort(ctx context.Context, admissionID string)
}

// Committer is a Provider with a usage table of its own.
type Committer interface {
	// Committed has everything that pods hold of the provider. What was reserved for their
	// admissions belongs to them now, and what other pods had is free. The call is repeated
	// until it returns nil.
	Committed(ctx context.Context, allocations []*hintv1.ProviderAllocation) error
}

// Validator is a Provider that checks what all providers have planned for a pod.
type Validator interface {
	Validate(ctx context.Context, r *Request, claims []*typesv1.Claim) error
}

// Explainer is a Provider that explains what a refused request lacks on some NUMA nodes.
type Explainer interface {
	Explain(r *Request, nodes *typesv1.NUMANodeSet) []*typesv1.Shortage
}

// Refuse returns the error with which a provider refuses a pod. reason is a word for programs;
// empty means "UnexpectedAdmissionError". message is a sentence for people.
func Refuse(reason, resource, message string) error {
	err := errdefs.Refuse(errdefs.Reason(reason), "%s", message)
	err.Resource = resource
	return err
}

// Run serves a provider and keeps it registered with berthd, also with a berthd that starts
// later or starts again, until ctx ends. It returns early with an error if the socket cannot be
// served or berthd refuses the registration permanently.
func Run(ctx context.Context, p Provider, o Options) error {
	return hintserver.Run(ctx, adapt(p), hintserver.Options(o))
}
