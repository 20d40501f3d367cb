package cgroup

import (
	"context"

	cgroupv1 "github.com/berthd/berth/api/berth/cgroup/v1"
	"github.com/berthd/berth/api/convert"
	"github.com/berthd/berth/api/convert/cgroups"
	"github.com/berthd/berth/managers/cgroup"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/workload"
	"github.com/berthd/berth/server/internal/cgroupapi"
)

// PodReader reads the cgroups of pods; *cgroupapi.Pods is the only implementation.
type PodReader interface {
	List(ctx context.Context) ([]cgroupapi.PodCgroup, error)
	Look(ctx context.Context, uid string) (cgroup.Observed, error)
	Name(uid string, class workload.QoSClass) (cgroup.Name, string, error)
	Of(literal string) (uid string, ok bool)
}

// PodWriter changes the cgroups of pods; *cgroupapi.Pods is the one there is.
type PodWriter interface {
	Ensure(ctx context.Context, uid string) (parent string, created bool, err error)
	Destroy(ctx context.Context, uid string) ([]cgroup.Name, error)
	Reduce(ctx context.Context, uid string) ([]cgroup.Op, error)
}

type pods struct {
	cgroupv1.UnimplementedPodCgroupServiceServer
	read  PodReader
	write PodWriter
}

// NewPods makes the service for the cgroups of pods.
func NewPods(read PodReader, write PodWriter) cgroupv1.PodCgroupServiceServer {
	return &pods{read: read, write: write}
}

// uid reads the uid of a request.
func uid(req interface{ GetPodUid() string }) (string, error) {
	return req.GetPodUid(), convert.Names("pod_uid", req.GetPodUid()).Err("request")
}

// Exists implements PodCgroupService.
func (p *pods) Exists(ctx context.Context, req *cgroupv1.PodCgroupServiceExistsRequest) (*cgroupv1.PodCgroupServiceExistsResponse, error) {
	id, err := uid(req)
	if err != nil {
		return nil, err
	}
	o, err := p.read.Look(ctx, id)
	return &cgroupv1.PodCgroupServiceExistsResponse{State: cgroups.State(o.State), Reason: o.Reason}, err
}

// EnsureExists implements PodCgroupService.
func (p *pods) EnsureExists(ctx context.Context, req *cgroupv1.EnsureExistsRequest) (*cgroupv1.EnsureExistsResponse, error) {
	id, err := uid(req)
	if err != nil {
		return nil, err
	}
	parent, created, err := p.write.Ensure(ctx, id)
	return &cgroupv1.EnsureExistsResponse{Created: created, CgroupParent: parent}, err
}

// GetName implements PodCgroupService.
func (p *pods) GetName(_ context.Context, req *cgroupv1.GetNameRequest) (*cgroupv1.GetNameResponse, error) {
	id, err := uid(req)
	if err != nil {
		return nil, err
	}
	var vs errdefs.Violations
	class := convert.ReadQoS("qos_class", req.GetQosClass(), &vs)
	if err := vs.Err("request"); err != nil {
		return nil, err
	}
	name, parent, err := p.read.Name(id, class)
	if err != nil {
		return nil, err
	}
	return &cgroupv1.GetNameResponse{Name: name.String(), CgroupParent: parent}, nil
}

// Destroy implements PodCgroupService.
func (p *pods) Destroy(ctx context.Context, req *cgroupv1.PodCgroupServiceDestroyRequest) (*cgroupv1.PodCgroupServiceDestroyResponse,
	error) {
	id, err := uid(req)
	if err != nil {
		return nil, err
	}
	removed, err := p.write.Destroy(ctx, id)
	out := &cgroupv1.PodCgroupServiceDestroyResponse{}
	for _, name := range removed {
		out.Names = append(out.Names, name.String())
	}
	return out, err
}

// ReduceCPULimits implements PodCgroupService.
func (p *pods) ReduceCPULimits(ctx context.Context,
	req *cgroupv1.PodCgroupServiceReduceCPULimitsRequest) (*cgroupv1.PodCgroupServiceReduceCPULimitsResponse, error) {
	id, err := uid(req)
	if err != nil {
		return nil, err
	}
	ops, err := p.write.Reduce(ctx, id)
	return &cgroupv1.PodCgroupServiceReduceCPULimitsResponse{Writes: cgroups.Writes(ops)}, err
}

// IsPodCgroup implements PodCgroupService.
func (p *pods) IsPodCgroup(_ context.Context, req *cgroupv1.IsPodCgroupRequest) (*cgroupv1.IsPodCgroupResponse, error) {
	id, ok := p.read.Of(req.GetLiteral())
	return &cgroupv1.IsPodCgroupResponse{IsPod: ok, PodUid: id}, nil
}

// ListPods implements PodCgroupService.
func (p *pods) ListPods(ctx context.Context, _ *cgroupv1.ListPodsRequest) (*cgroupv1.ListPodsResponse, error) {
	found, err := p.read.List(ctx)
	out := &cgroupv1.ListPodsResponse{}
	for _, f := range found {
		out.Pods = append(out.Pods, &cgroupv1.PodCgroup{
			PodUid: f.UID, Name: f.Name.String(), State: cgroups.State(f.State), Known: f.Known,
		})
	}
	return out, err
}
