// Package cpu serves berth.cpu.v1: the CPU manager's policy, its pools and who
// holds which CPUs. It changes nothing.
package cpu

import (
	"context"

	cpuv1 "github.com/berthd/berth/api/berth/cpu/v1"
	"github.com/berthd/berth/api/convert"
	"github.com/berthd/berth/managers/cpu"
	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/hint"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/workload"
)

// Manager is the CPU manager; *cpu.Manager is the one there is.
type Manager interface {
	hint.Describer
	// Allocatable returns the CPUs that may ever be given exclusively.
	Allocatable() cpuset.Set
}

// Ledger gives the current view.
type Ledger interface{ View() *ledger.View }

// Hinter asks the hint providers about a pod, or one of its containers, without
// planning anything; *admission.Engine implements it.
type Hinter interface {
	Hints(ctx context.Context, pod workload.Pod, container string) ([]hint.Reply, error)
}

type service struct {
	cpuv1.UnimplementedCPUServiceServer
	manager Manager
	ledger  Ledger
	hinter  Hinter
	read    convert.Reader
}

// New makes the service.
func New(manager Manager, ledger Ledger, hinter Hinter, read convert.Reader) cpuv1.CPUServiceServer {
	return &service{manager: manager, ledger: ledger, hinter: hinter, read: read}
}

// GetState implements CPUService.
func (s *service) GetState(context.Context, *cpuv1.GetStateRequest) (*cpuv1.GetStateResponse, error) {
	d, view := s.manager.Describe(), s.ledger.View()
	out := &cpuv1.GetStateResponse{
		Policy: d.Policy, Options: d.Options,
		All:       convert.CPUSet(view.Machine().CPUs()),
		Reserved:  convert.CPUSet(view.Rules().ReservedCPUs),
		Shared:    convert.CPUSet(view.SharedCPUs()),
		Exclusive: convert.CPUSet(view.ExclusiveCPUs()),
		Revision:  view.Revision(),
	}
	for c := range view.Claims() {
		if c.CPUs != nil {
			out.Assignments = append(out.Assignments, convert.Claim(&c))
		}
	}
	return out, nil
}

// GetTopologyHints implements CPUService.
func (s *service) GetTopologyHints(ctx context.Context, req *cpuv1.GetTopologyHintsRequest) (*cpuv1.GetTopologyHintsResponse, error) {
	pod, err := s.read.Pod(req.GetPod())
	if err != nil {
		return nil, err
	}
	replies, err := s.hinter.Hints(ctx, pod, req.GetContainer())
	if err != nil {
		return nil, err
	}
	return &cpuv1.GetTopologyHintsResponse{Answers: convert.AnswersOf(cpu.Name, replies)}, nil
}

// GetAllocatable implements CPUService.
func (s *service) GetAllocatable(context.Context, *cpuv1.GetAllocatableRequest) (*cpuv1.GetAllocatableResponse, error) {
	return &cpuv1.GetAllocatableResponse{Cpus: convert.CPUSet(s.manager.Allocatable())}, nil
}
