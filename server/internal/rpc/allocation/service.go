// Package allocation serves berth.allocation.v1: what admitted pods hold, and what a
// runtime needs to start their containers.
//
// Words:
//
//   - revision: the number of a state of the ledger, as sent to readers. An earlier ledger in
//     the same place never had the same revision.
//   - history: the newest events, kept for readers that resume.
//   - event: one change, of the ledger or of the devices that plugins report.
//   - change: all events of one commit.
//   - bookmark: a message without events that only has the reader's revision.
//
// Invariants:
//
//   - An answer is computed from one view, including the plugin answers in its claims. No
//     plugin is called for it.
//   - A reader with a revision has received all changes of the ledger up to it. Device states
//     are not in the history: each stream sends the current state first, and then the
//     differences to what it has sent.
//   - Commits do not wait for readers or for the encoding of events.
//   - What the initial states of streams take is limited for each user, however many streams and
//     revisions there are, and is released when no stream reads an initial state.
//   - Events of several commits are encoded once for all streams without filters, by the
//     first stream that sends them. After sending, a stream pauses; the pause grows with the
//     number of streams and is the same for all of them.
package allocation

import (
	"context"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	allocationv1 "github.com/berthd/berth/api/berth/allocation/v1"
	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/api/convert"
	"github.com/berthd/berth/api/convert/allocations"
	"github.com/berthd/berth/managers/admission"
	"github.com/berthd/berth/managers/cgroup"
	"github.com/berthd/berth/managers/device"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/placement"
	"github.com/berthd/berth/server/internal/rpc"
)

// Engine admits pods; *admission.Engine implements it.
type Engine interface {
	Admit(ctx context.Context, req admission.Request) (admission.Verdict, error)
}

// Noter lists the requests of an admitted container that were not allocated;
// *admission.Engine implements it.
type Noter interface {
	Notes(view *ledger.View, pod *ledger.Pod, container string) []admission.Note
}

// Ledger returns the current view, and earlier ones.
type Ledger = rpc.Past

// Paths returns the cgroup of a container, below the mount point; it is empty if a runtime
// creates the cgroup. *reconcile.Loop implements it.
type Paths interface {
	ContainerPath(p *ledger.Pod, container string) (string, error)
}

// Config of the service.
type Config struct {
	Read convert.Reader
	// Cgroup returns the configuration that the values of containers depend on.
	Cgroup func() cgroup.Config
}

// Inventory returns what device plugins have reported; *device.Manager implements it.
type Inventory interface{ Inventory() *device.Snapshot }

// Parts are the dependencies of the service.
type Parts struct {
	// Slot limits callers that read all pods, and Turn limits streams that compute events.
	// Both wait; nil means no limit.
	Slot, Turn func(ctx context.Context) (leave func(), err error)
	Engine     Engine
	Noter      Noter
	Ledger     Ledger
	Paths      Paths
	Inventory  Inventory
	// History receives the ledger's commits from the caller.
	History *History
	// Complete calls plugins for missing answers about a pod's devices, for example after
	// the pod was taken over while it was running. It is nil if no answer can be missing.
	Complete func(ctx context.Context, uid string) error
	// Placements lists on which CPUs a pod's containers may run; nil if this is unknown.
	Placements func(ctx context.Context, uid string) ([]placement.Container, error)
	// Contradictions, if set, is called for contradicting answers of device plugins for a
	// container, with the answer that counts.
	Contradictions func(owner ledger.Owner, text string)
}

type service struct {
	allocationv1.UnimplementedAllocationServiceServer
	Config
	Parts

	begun  time.Time
	starts starts // of new readers of Watch
	views  views  // of lists whose pages are being read
}

// New returns the service.
func New(cfg Config, parts Parts) allocationv1.AllocationServiceServer {
	return &service{Config: cfg, Parts: parts, begun: time.Now(), starts: starts{root: rootRoom, user: userRoom}}
}

// Allocate implements AllocationService.
func (s *service) Allocate(ctx context.Context, req *allocationv1.AllocateRequest) (*allocationv1.AllocateResponse, error) {
	vs := convert.Names("container_name", req.GetContainerName())
	switch {
	case req.GetPod() == nil && req.GetOwner() != "":
		vs.Addf("owner", "expected only with a pod: the pod of pod_uid has its owner")
	case req.GetPod() == nil:
		vs = append(vs, convert.Names("pod_uid", req.GetPodUid())...)
	}
	convert.Owner("owner", req.GetOwner(), &vs)
	if err := vs.Err("request"); err != nil {
		return nil, err
	}
	view, uid := s.Ledger.View(), req.GetPodUid()
	if req.GetPod() != nil {
		pod, err := s.Read.Pod(req.GetPod())
		if err != nil {
			return nil, err
		}
		if view, err = s.admit(ctx, admission.Request{Pod: pod, Owner: req.GetOwner(), Unserved: convert.Unserved(req.GetPod())},
			req.GetContainerName()); err != nil {
			return nil, err
		}
		uid = pod.UID
	}
	if s.Complete != nil {
		if err := s.Complete(ctx, uid); err != nil {
			return nil, err
		}
		if now := s.Ledger.View(); now.Generation() > view.Generation() {
			view = now
		}
	}
	if s.Slot != nil {
		leave, err := s.Slot(ctx)
		if err != nil {
			return nil, err
		}
		defer leave()
	}
	pod, container, err := view.Find(ledger.Owner{Pod: uid, Container: req.GetContainerName()})
	if err != nil {
		return nil, err
	}
	return s.compose(view, pod, container)
}

// admit admits a pod before Allocate for one of its containers. A rejected or deferred pod
// is an error here.
func (s *service) admit(ctx context.Context, req admission.Request, container string) (*ledger.View, error) {
	pod := &req.Pod
	if pod.Container(container) == nil {
		return nil, errdefs.NotFoundf("pod %s has no container %q", pod.UID, container).
			Coded(errdefs.ContainerNotFound, "pod_uid", pod.UID, "container_name", container)
	}
	v, err := s.Engine.Admit(ctx, req)
	switch {
	case err != nil:
		return nil, err
	case v.Outcome == admission.Deferred:
		return nil, deferral(pod.UID, v)
	case v.Outcome == admission.Rejected:
		return nil, rejection(pod.UID, v)
	}
	return v.View, nil
}

// deferral returns the error for a deferred pod, with the verdict's message.
func deferral(uid string, v admission.Verdict) error {
	e := errdefs.Unavailablef("pod %s is deferred: %s", uid, v.Message)
	e.RetryAfter = v.RetryAfter
	if c := v.Condition; c != nil {
		e.Reason, e.Provider, e.Resource = errdefs.Reason(c.Type), c.Provider, c.Resource
	}
	return e
}

// rejection returns the error for a rejected pod, with the verdict's message and the
// refusing provider.
func rejection(uid string, v admission.Verdict) error {
	e := errdefs.Refuse(v.Reason, "pod %s is rejected: %s", uid, v.Message)
	if v.Trace != nil {
		for _, step := range v.Trace.Steps {
			if step.Kind == ledger.StepRefused {
				e.Provider, e.Resource = step.Provider, step.Resource
			}
		}
	}
	return e
}

// Get implements AllocationService.
func (s *service) Get(ctx context.Context, req *allocationv1.GetRequest) (*allocationv1.GetResponse, error) {
	view := s.Ledger.View()
	pod, err := convert.FindPod(view, req, nil)
	if err != nil {
		return nil, err
	}
	out := allocations.Pod(view, pod)
	allocations.PodHealth(out, s.Inventory.Inventory(), allocations.HealthHistory)
	answer := &allocationv1.GetResponse{Pod: out, Revision: view.Revision(), Spec: convert.Pod(&pod.Pod),
		SharedCpus: convert.CPUSet(view.CommonCPUs())}
	if s.Placements != nil {
		// The claims are sent even if the placements are unavailable.
		known, _ := s.Placements(ctx, pod.UID())
		answer.Placements = placements(known)
	}
	return answer, nil
}

// placements converts the placements of containers to messages.
func placements(known []placement.Container) (out []*allocationv1.ContainerPlacement) {
	for _, c := range known {
		p := &allocationv1.ContainerPlacement{
			ContainerName: c.Owner.Container, Id: c.Key.String(), Phase: convert.EnumOf[allocationv1.ContainerPhase](string(c.Phase)),
			AssignedCpus: convert.CPUSet(c.AssignedCPUs), PossibleCpus: convert.CPUSet(c.PossibleCPUs), Anywhere: c.Anywhere,
			BlockedBy: refs(c.BlockedBy),
		}
		if !c.BlockedSince.IsZero() {
			p.BlockTime = timestamppb.New(c.BlockedSince)
		}
		out = append(out, p)
	}
	return out
}

// refs converts owners of containers to messages.
func refs(owners []placement.Owner) (out []*typesv1.ContainerRef) {
	for _, o := range owners {
		out = append(out, &typesv1.ContainerRef{PodUid: o.Pod, ContainerName: o.Container})
	}
	return out
}

// List implements AllocationService.
func (s *service) List(ctx context.Context, req *allocationv1.ListRequest) (*allocationv1.ListResponse, error) {
	return s.list(ctx, req)
}

// GetRevision implements AllocationService.
func (s *service) GetRevision(context.Context, *allocationv1.GetRevisionRequest) (*allocationv1.GetRevisionResponse, error) {
	return &allocationv1.GetRevisionResponse{Revision: s.Ledger.View().Revision()}, nil
}

// matches returns whether a pod matches a filter.
func matches(p *ledger.Pod, req *allocationv1.ListRequest) bool {
	if ns := req.GetNamespace(); ns != "" && ns != p.Pod.Namespace {
		return false
	}
	if name := req.GetName(); name != "" && name != p.Pod.Name {
		return false
	}
	if owner := req.GetOwner(); owner != "" && owner != p.Agent() {
		return false
	}
	return req.GetResource() == "" || p.Holds(req.GetResource())
}
