// Package admission serves berth.admission.v1: it hands pods to the admission
// engine and its verdicts back. It decides nothing.
package admission

import (
	"context"

	"google.golang.org/grpc"

	admissionv1 "github.com/berthd/berth/api/berth/admission/v1"
	"github.com/berthd/berth/api/convert"
	"github.com/berthd/berth/api/convert/decisions"
	"github.com/berthd/berth/managers/admission"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/live"
	"github.com/berthd/berth/managers/workload"
)

// Engine admits and removes pods; *live.Engine is the one there is.
type Engine interface {
	// Admit decides about a pod.
	Admit(ctx context.Context, req admission.Request) (admission.Verdict, error)
	// Resize changes the cpu and memory of a pod that is here.
	Resize(ctx context.Context, req live.ResizeRequest) (live.Resized, error)
	// Remove ends a pod of the scope and returns what it held, and whether it was known.
	Remove(ctx context.Context, uid string, scope admission.Scope) ([]ledger.Claim, bool, error)
	// Sync removes the pods that are not among the living and were admitted up to
	// a revision.
	Sync(ctx context.Context, req admission.SyncRequest) ([]string, error)
}

// Defragmenter makes room for pods.
type Defragmenter interface {
	// Defragment calls tell for each event.
	Defragment(ctx context.Context, req live.DefragmentRequest, bytesPerSecond uint64, dryRun bool,
		tell func(live.DefragmentEvent) error) error
}

// Ledger gives the current view.
type Ledger interface{ View() *ledger.View }

type service struct {
	admissionv1.UnimplementedAdmissionServiceServer
	engine Engine
	ledger Ledger
	read   convert.Reader
	counts Schedulers
	rooms  Defragmenter
}

// Schedulers keep what schedulers count as allocatable.
type Schedulers interface {
	// Count keeps the amounts of an owner's scheduler, and returns the excess: what pods cannot have
	// of them. Without amounts, it forgets the owner's.
	Count(owner string, amounts workload.Quantities) (excess []string, err error)
}

// New makes the service.
func New(engine Engine, l Ledger, read convert.Reader, s Schedulers, d Defragmenter) admissionv1.AdmissionServiceServer {
	return &service{engine: engine, ledger: l, read: read, counts: s, rooms: d}
}

// Admit implements AdmissionService.
func (s *service) Admit(ctx context.Context, req *admissionv1.AdmitRequest) (*admissionv1.AdmitResponse, error) {
	var vs errdefs.Violations
	decisions.AdmissionID("admission_id", req.GetAdmissionId(), &vs)
	convert.Owner("owner", req.GetOwner(), &vs)
	if err := vs.Err("request"); err != nil {
		return nil, err
	}
	pod, err := s.subject(req)
	if err != nil {
		return nil, err
	}
	if err := convert.ReadExternalDevices(&pod, req.GetExternalDevices()); err != nil {
		return nil, err
	}
	running, err := decisions.ReadRunning(req.GetRunningAllocations())
	if err != nil {
		return nil, err
	}
	v, err := s.engine.Admit(ctx, admission.Request{
		RunningAllocations: running, Owner: req.GetOwner(),
		Pod: pod, Unserved: convert.Unserved(req.GetPod()), AdmissionID: req.GetAdmissionId(), DryRun: req.GetDryRun(),
	})
	if err != nil {
		return nil, err
	}
	return decisions.Verdict(v, req.GetTraceLevel()), nil
}

// subject reads what is to be admitted; the engine checks it.
func (s *service) subject(req *admissionv1.AdmitRequest) (workload.Pod, error) {
	if claim := req.GetResourceClaim(); claim != nil {
		return convert.ReadResourceClaim(claim)
	}
	return s.read.Unchecked(req.GetPod())
}

// Resize implements AdmissionService.
func (s *service) Resize(ctx context.Context, req *admissionv1.ResizeRequest) (*admissionv1.ResizeResponse, error) {
	resize, err := decisions.ReadResize(req)
	if err != nil {
		return nil, err
	}
	r, err := s.engine.Resize(ctx, resize)
	if err != nil {
		return nil, err
	}
	return decisions.Resized(r, req.GetTraceLevel()), nil
}

// Defragment implements AdmissionService.
func (s *service) Defragment(req *admissionv1.DefragmentRequest, to grpc.ServerStreamingServer[admissionv1.DefragmentResponse]) error {
	wanted, err := decisions.ReadDefragment(s.read, req)
	if err != nil {
		return err
	}
	return s.rooms.Defragment(to.Context(), wanted, req.GetBytesPerSecond(), req.GetDryRun(), func(e live.DefragmentEvent) error {
		return to.Send(decisions.DefragmentEvent(e))
	})
}

// scoped is a request about the pods of an owner.
type scoped interface {
	GetOwner() string
	GetAllOwners() bool
}

func scope(req scoped) admission.Scope {
	return admission.Scope{Owner: req.GetOwner(), All: req.GetAllOwners()}
}

// scopeOf adds what is wrong with the scope of a request.
func scopeOf(req scoped, vs *errdefs.Violations) errdefs.Violations {
	convert.Owner("owner", req.GetOwner(), vs)
	if req.GetAllOwners() && req.GetOwner() != "" {
		vs.Addf("owner", "expected either owner or all_owners, not both")
	}
	return *vs
}

// RemovePod implements AdmissionService.
func (s *service) RemovePod(ctx context.Context, req *admissionv1.RemovePodRequest) (*admissionv1.RemovePodResponse, error) {
	vs := convert.Names("pod_uid", req.GetPodUid())
	if err := scopeOf(req, &vs).Err("request"); err != nil {
		return nil, err
	}
	claims, known, err := s.engine.Remove(ctx, req.GetPodUid(), scope(req))
	if err != nil {
		return nil, err
	}
	return &admissionv1.RemovePodResponse{Removed: known, Released: convert.Claims(claims), Revision: s.ledger.View().Revision()}, nil
}

// SyncPods implements AdmissionService.
func (s *service) SyncPods(ctx context.Context, req *admissionv1.SyncPodsRequest) (*admissionv1.SyncPodsResponse, error) {
	vs := convert.UIDs("active_pod_uids", req.GetActivePodUids())
	if req.GetKnownRevision() == 0 {
		vs.Addf("known_revision", "is required: what AllocationService.GetRevision answered before the list was made")
	}
	if len(req.GetActivePodUids()) == 0 && !req.GetAllowEmpty() {
		vs.Addf("allow_empty", "is required with an empty active_pod_uids, since every pod is removed then")
	}
	counted := readScheduler(req.GetSchedulerAllocatable(), &vs)
	if err := scopeOf(req, &vs).Err("request"); err != nil {
		return nil, err
	}
	removed, err := s.engine.Sync(ctx, admission.SyncRequest{
		Living: req.GetActivePodUids(), Scope: scope(req), Known: req.GetKnownRevision(), DryRun: req.GetDryRun(),
	})
	if err != nil {
		return nil, err
	}
	out := &admissionv1.SyncPodsResponse{RemovedPodUids: removed, Revision: s.ledger.View().Revision()}
	if !req.GetDryRun() {
		out.SchedulerExcess, err = s.counts.Count(req.GetOwner(), counted)
	}
	return out, err
}

// maxScheduler bounds the resources of a scheduler. A node has a few, and some for each kind of device.
const maxScheduler = 256

// readScheduler reads what a scheduler counts as allocatable.
func readScheduler(texts map[string]string, vs *errdefs.Violations) workload.Quantities {
	const field = "scheduler_allocatable"
	if len(texts) > maxScheduler {
		vs.Addf(field, "has %d resources, expected at most %d", len(texts), maxScheduler)
		return nil
	}
	amounts, _, bad := convert.Amounts(field, texts)
	*vs = append(*vs, bad...)
	return amounts
}
