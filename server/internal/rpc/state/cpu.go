package state

import (
	"context"

	cpuv1 "github.com/berthd/berth/api/berth/cpu/v1"
	"github.com/berthd/berth/api/convert"
	"github.com/berthd/berth/managers/cpu"
	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/hint"
	"github.com/berthd/berth/server/internal/rpc"
)

// CPUManager is the CPU manager; *cpu.Manager is the one there is.
type CPUManager interface {
	hint.Describer
	// Allocatable returns the CPUs that may ever be given exclusively.
	Allocatable() cpuset.Set
}

type cpuService struct {
	cpuv1.UnimplementedCPUServiceServer
	Parts
	manager CPUManager
}

// CPUs makes the CPU service.
func CPUs(p Parts, manager CPUManager) cpuv1.CPUServiceServer {
	return &cpuService{Parts: p, manager: manager}
}

// GetState implements CPUService.
func (s *cpuService) GetState(ctx context.Context, req *cpuv1.GetStateRequest) (*cpuv1.GetStateResponse, error) {
	view, err := rpc.ViewAt(ctx, s.Ledger, req.GetAt())
	if err != nil {
		return nil, err
	}
	d := s.manager.Describe()
	out := &cpuv1.GetStateResponse{
		Policy: d.Policy, Options: d.Options,
		All:       convert.CPUSet(view.Machine().CPUs()),
		Reserved:  convert.CPUSet(view.Rules().ReservedCPUs),
		Shared:    convert.CPUSet(view.SharedCPUs()),
		Exclusive: convert.CPUSet(view.ExclusiveCPUs()),
		Revision:  view.Revision(),
	}
	if rules := view.Rules(); !rules.OnePool && !rules.ClaimCPUs.IsEmpty() { // else pods may have them, too
		out.ResourceClaims = convert.CPUSet(rules.ClaimCPUs)
	}
	for c := range view.Claims() {
		if c.CPUs != nil {
			out.Assignments = append(out.Assignments, convert.Claim(&c))
		}
	}
	return out, nil
}

// GetTopologyHints implements CPUService.
func (s *cpuService) GetTopologyHints(ctx context.Context, req *cpuv1.GetTopologyHintsRequest) (*cpuv1.GetTopologyHintsResponse, error) {
	answers, err := s.hints(ctx, req, cpu.Name)
	return &cpuv1.GetTopologyHintsResponse{TopologyHints: answers}, err
}

// GetAllocatable implements CPUService.
func (s *cpuService) GetAllocatable(context.Context, *cpuv1.GetAllocatableRequest) (*cpuv1.GetAllocatableResponse, error) {
	return &cpuv1.GetAllocatableResponse{Cpus: convert.CPUSet(s.manager.Allocatable())}, nil
}
