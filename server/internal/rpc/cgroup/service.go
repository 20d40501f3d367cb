// Package cgroup serves berth.cgroup.v1: the cgroups below berth's root, and the cgroups of
// single pods. It makes no decisions.
package cgroup

import (
	"context"

	"google.golang.org/protobuf/types/known/timestamppb"

	cgroupv1 "github.com/berthd/berth/api/berth/cgroup/v1"
	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/api/convert/cgroups"
	"github.com/berthd/berth/managers/cgroup"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/server/internal/reconcile"
)

// Reader reads the tree; *cgroupapi.Cgroups is the only implementation.
type Reader interface {
	Look(ctx context.Context, name cgroup.Name) (cgroup.Observed, error)
	Procs(ctx context.Context, name cgroup.Name) ([]int, error)
	Report(ctx context.Context) (reconcile.Report, error)
	// Plan lists what the next pass would do, PlanChange what Change would.
	Plan(ctx context.Context) ([]cgroup.Op, error)
	PlanChange(ctx context.Context, node cgroup.Node, create bool) ([]cgroup.Op, error)
}

// Writer changes cgroups; *cgroupapi.Cgroups is the one there is.
type Writer interface {
	Change(ctx context.Context, node cgroup.Node, create bool) ([]cgroup.Op, error)
	Destroy(ctx context.Context, name cgroup.Name) error
}

type service struct {
	cgroupv1.UnimplementedCgroupServiceServer
	read   Reader
	write  Writer
	layout cgroup.Layout
	facts  cgroup.Facts
}

// New makes the service for a tree.
func New(read Reader, write Writer, layout cgroup.Layout, facts cgroup.Facts) cgroupv1.CgroupServiceServer {
	return &service{read: read, write: write, layout: layout, facts: facts}
}

// named is a request about one cgroup.
type named interface{ GetName() string }

// valued is a request with values for a cgroup.
type valued interface {
	named
	GetResources() *typesv1.LinuxResources
	GetStrict() bool
}

// node reads a request with values for a cgroup, and lists the values that this system does not
// support. A strict request with such a value is refused.
func (s *service) node(req valued) (cgroup.Node, []*cgroupv1.NotApplied, error) {
	name, err := cgroups.Name("name", req.GetName())
	if err != nil {
		return cgroup.Node{}, nil, err
	}
	values, err := cgroups.ReadValues("resources", req.GetResources())
	if err != nil {
		return cgroup.Node{}, nil, err
	}
	var out []*cgroupv1.NotApplied
	var vs errdefs.Violations
	for _, n := range values.NotApplied(s.facts) {
		out = append(out, &cgroupv1.NotApplied{Field: "resources." + n.Field, Reason: n.Why})
		vs.Addf("resources."+n.Field, "cannot be applied: %s", n.Why)
	}
	if req.GetStrict() {
		err = vs.Err("request")
	}
	return cgroup.Node{Name: name, Values: values}, out, err
}

// look observes the cgroup of a request, which must exist.
func (s *service) look(ctx context.Context, req named) (cgroup.Observed, error) {
	o, err := s.state(ctx, req)
	if err == nil && o.State == cgroup.Absent {
		err = errdefs.NotFoundf("cgroup %s is absent", o.Name).Coded(errdefs.CgroupNotFound)
	}
	return o, err
}

func (s *service) state(ctx context.Context, req named) (cgroup.Observed, error) {
	name, err := cgroups.Name("name", req.GetName())
	if err != nil {
		return cgroup.Observed{}, err
	}
	return s.read.Look(ctx, name)
}

// change makes or changes the cgroup of a request.
func (s *service) change(ctx context.Context, req valued, create bool) ([]*cgroupv1.Write, []*cgroupv1.NotApplied, error) {
	n, dropped, err := s.node(req)
	if err != nil {
		return nil, nil, err
	}
	ops, err := s.write.Change(ctx, n, create)
	return cgroups.Writes(ops), dropped, err
}

// Create implements CgroupService.
func (s *service) Create(ctx context.Context, req *cgroupv1.CreateRequest) (*cgroupv1.CreateResponse, error) {
	writes, dropped, err := s.change(ctx, req, true)
	return &cgroupv1.CreateResponse{Writes: writes, NotApplied: dropped}, err
}

// Update implements CgroupService.
func (s *service) Update(ctx context.Context, req *cgroupv1.UpdateRequest) (*cgroupv1.UpdateResponse, error) {
	writes, dropped, err := s.change(ctx, req, false)
	return &cgroupv1.UpdateResponse{Writes: writes, NotApplied: dropped}, err
}

// SetConfig implements CgroupService.
func (s *service) SetConfig(ctx context.Context, req *cgroupv1.SetConfigRequest) (*cgroupv1.SetConfigResponse, error) {
	writes, dropped, err := s.change(ctx, req, false)
	return &cgroupv1.SetConfigResponse{Writes: writes, NotApplied: dropped}, err
}

// Destroy implements CgroupService.
func (s *service) Destroy(ctx context.Context, req *cgroupv1.DestroyRequest) (*cgroupv1.DestroyResponse, error) {
	name, err := cgroups.Name("name", req.GetName())
	if err != nil {
		return nil, err
	}
	return &cgroupv1.DestroyResponse{}, s.write.Destroy(ctx, name)
}

// Exists implements CgroupService.
func (s *service) Exists(ctx context.Context, req *cgroupv1.ExistsRequest) (*cgroupv1.ExistsResponse, error) {
	o, err := s.state(ctx, req)
	return &cgroupv1.ExistsResponse{State: cgroups.State(o.State), Reason: o.Reason}, err
}

// Validate implements CgroupService.
func (s *service) Validate(ctx context.Context, req *cgroupv1.ValidateRequest) (*cgroupv1.ValidateResponse, error) {
	o, err := s.state(ctx, req)
	if err == nil && o.State != cgroup.Valid {
		err = errdefs.Preconditionf("cgroup %s is %s: %s", o.Name, o.State, o.Reason)
	}
	return &cgroupv1.ValidateResponse{}, err
}

// GetConfig implements CgroupService.
func (s *service) GetConfig(ctx context.Context, req *cgroupv1.GetConfigRequest) (*cgroupv1.GetConfigResponse, error) {
	o, err := s.look(ctx, req)
	if err != nil {
		return nil, err
	}
	v, err := o.Values.Only(req.GetResource())
	if err != nil {
		return nil, err
	}
	out := &cgroupv1.GetConfigResponse{Resources: cgroups.Values(v)}
	out.MilliCpuRequest, out.MilliCpuLimit = v.MilliCPU()
	return out, nil
}

// ListProcesses implements CgroupService.
func (s *service) ListProcesses(ctx context.Context, req *cgroupv1.ListProcessesRequest) (*cgroupv1.ListProcessesResponse, error) {
	name, err := cgroups.Name("name", req.GetName())
	if err != nil {
		return nil, err
	}
	pids, err := s.read.Procs(ctx, name)
	out := &cgroupv1.ListProcessesResponse{}
	for _, pid := range pids {
		out.Pids = append(out.Pids, int32(pid))
	}
	return out, err
}

// ReduceCPULimits implements CgroupService.
func (s *service) ReduceCPULimits(ctx context.Context, req *cgroupv1.ReduceCPULimitsRequest) (*cgroupv1.ReduceCPULimitsResponse, error) {
	name, err := cgroups.Name("name", req.GetName())
	if err != nil {
		return nil, err
	}
	ops, err := s.write.Change(ctx, cgroup.Node{Name: name, Values: cgroup.Lightest()}, false)
	return &cgroupv1.ReduceCPULimitsResponse{Writes: cgroups.Writes(ops)}, err
}

// GetMemoryUsage implements CgroupService.
func (s *service) GetMemoryUsage(ctx context.Context, req *cgroupv1.GetMemoryUsageRequest) (*cgroupv1.GetMemoryUsageResponse, error) {
	o, err := s.look(ctx, req)
	return &cgroupv1.GetMemoryUsageResponse{Bytes: o.MemoryUsageBytes}, err
}

// Name implements CgroupService.
func (s *service) Name(_ context.Context, req *cgroupv1.NameRequest) (*cgroupv1.NameResponse, error) {
	driver := s.layout.Driver()
	if req.GetDriver() != "" {
		var err error
		if driver, err = cgroup.ParseDriver(req.GetDriver()); err != nil {
			return nil, err
		}
	}
	if req.GetName() == "" && req.GetLiteral() == "" {
		var vs errdefs.Violations
		vs.Addf("name", "expected either name or literal")
		return nil, vs.Err("request")
	}
	name := cgroup.ParseCgroupfs(req.GetName())
	if req.GetLiteral() != "" {
		name = driver.Parse(req.GetLiteral())
	}
	if err := name.Check(); err != nil {
		return nil, err
	}
	literal, err := driver.Literal(name)
	return &cgroupv1.NameResponse{Name: name.String(), Components: name, Literal: literal}, err
}

// Plan implements CgroupService.
func (s *service) Plan(ctx context.Context, req *cgroupv1.PlanRequest) (*cgroupv1.PlanResponse, error) {
	if req.GetName() == "" {
		ops, err := s.read.Plan(ctx)
		return &cgroupv1.PlanResponse{Writes: cgroups.Writes(ops)}, err
	}
	n, dropped, err := s.node(req)
	if err != nil {
		return nil, err
	}
	ops, err := s.read.PlanChange(ctx, n, true)
	return &cgroupv1.PlanResponse{Writes: cgroups.Writes(ops), NotApplied: dropped}, err
}

// List implements CgroupService.
func (s *service) List(ctx context.Context, _ *cgroupv1.ListRequest) (*cgroupv1.ListResponse, error) {
	report, err := s.read.Report(ctx)
	if err != nil {
		return nil, err
	}
	out := &cgroupv1.ListResponse{Driver: string(s.facts.Driver), Version: int32(s.facts.Version)}
	for _, e := range report.Entries {
		literal, err := s.layout.Literal(e.Name)
		if err != nil {
			return nil, err
		}
		uid, _ := s.layout.PodUID(e.Name)
		out.Cgroups = append(out.Cgroups, &cgroupv1.Cgroup{
			Name: e.Name.String(), Literal: literal, State: cgroups.State(e.State), Reason: e.Reason,
			Resources: cgroups.Values(e.Values), MemoryUsageBytes: e.MemoryUsageBytes,
			Managed: e.Managed, PodUid: uid, Pending: cgroups.Writes(e.Pending),
		})
	}
	for _, d := range report.Drifts {
		out.Drifts = append(out.Drifts, &cgroupv1.Drift{
			PodUid: d.Owner.Pod, ContainerName: d.Owner.Container, Cgroup: d.Name.String(),
			File: d.File, Want: d.Want, Found: d.Found, FindTime: timestamppb.New(d.Since),
		})
	}
	return out, nil
}
