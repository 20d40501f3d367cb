// Package memory serves berth.memory.v1: the memory manager's policy, its tables by
// NUMA node and who holds what of them. It changes nothing.
package memory

import (
	"context"
	"log/slog"

	memoryv1 "github.com/berthd/berth/api/berth/memory/v1"
	"github.com/berthd/berth/api/convert"
	"github.com/berthd/berth/managers/hint"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/machine"
	"github.com/berthd/berth/managers/memory"
	"github.com/berthd/berth/managers/workload"
)

// Manager is the memory manager; *memory.Manager is the one there is.
type Manager interface {
	hint.Describer
	// State returns what all nodes have and hold; nothing under the policy None.
	State(view *ledger.View) []memory.NodeState
}

// Ledger gives the current view.
type Ledger interface{ View() *ledger.View }

// Hinter asks the hint providers about a pod, or one of its containers, without
// planning anything; *admission.Engine implements it.
type Hinter interface {
	Hints(ctx context.Context, pod workload.Pod, container string) ([]hint.Reply, error)
}

// Parts are what the service reads.
type Parts struct {
	// Manager returns the one that decides on a view.
	Manager func(view *ledger.View) Manager
	Ledger  Ledger
	Hinter  Hinter
	// KernelFree reads what the kernel has free of memory and huge pages on each NUMA node;
	// nil where the machine is not this one.
	KernelFree func() ([]machine.Node, error)
}

type service struct {
	memoryv1.UnimplementedMemoryServiceServer
	Parts
	read convert.Reader
}

// New makes the service.
func New(parts Parts, read convert.Reader) memoryv1.MemoryServiceServer {
	return &service{Parts: parts, read: read}
}

// GetState implements MemoryService.
func (s *service) GetState(ctx context.Context, _ *memoryv1.GetStateRequest) (*memoryv1.GetStateResponse, error) {
	free := s.kernelFree(ctx)
	view := s.Ledger.View()
	manager := s.Manager(view)
	out := &memoryv1.GetStateResponse{Policy: manager.Describe().Policy, Revision: view.Revision()}
	for _, n := range manager.State(view) {
		out.Nodes = append(out.Nodes, nodeState(n, free[n.Node]))
	}
	for c := range view.Claims() {
		if len(c.Memory) > 0 {
			out.Assignments = append(out.Assignments, convert.Claim(&c))
		}
	}
	return out, nil
}

// kernelFree returns what the kernel has free by node and resource. The state is answered
// without it if it cannot be read.
func (s *service) kernelFree(ctx context.Context) map[int]map[string]uint64 {
	if s.KernelFree == nil {
		return nil
	}
	nodes, err := s.KernelFree()
	if err != nil {
		slog.DebugContext(ctx, "cannot read the free memory of the NUMA nodes", "error", err)
		return nil
	}
	out := make(map[int]map[string]uint64, len(nodes))
	for _, n := range nodes {
		out[n.ID] = map[string]uint64{string(workload.Memory): n.MemoryBytes}
		for _, p := range n.HugePages {
			out[n.ID][string(workload.HugePagesOf(int64(p.SizeKiB)<<10))] = p.Count * p.SizeKiB << 10
		}
	}
	return out
}

func nodeState(n memory.NodeState, free map[string]uint64) *memoryv1.NodeState {
	out := &memoryv1.NodeState{Node: uint32(n.Node), Group: convert.Mask(n.Group), Blocks: uint32(n.Blocks)}
	for _, r := range n.Resources {
		state := &memoryv1.ResourceState{
			Resource: r.Resource, TotalBytes: r.Total, ReservedBytes: r.SystemReserved,
			AllocatableBytes: r.Allocatable, HeldBytes: r.Held, FreeBytes: r.Free,
		}
		if bytes, ok := free[r.Resource]; ok {
			state.KernelFreeBytes = &bytes
		}
		out.Resources = append(out.Resources, state)
	}
	return out
}

// GetTopologyHints implements MemoryService.
func (s *service) GetTopologyHints(ctx context.Context, req *memoryv1.GetTopologyHintsRequest) (*memoryv1.GetTopologyHintsResponse, error) {
	pod, err := s.read.Pod(req.GetPod())
	if err != nil {
		return nil, err
	}
	replies, err := s.Hinter.Hints(ctx, pod, req.GetContainer())
	if err != nil {
		return nil, err
	}
	return &memoryv1.GetTopologyHintsResponse{Answers: convert.AnswersOf(memory.Name, replies)}, nil
}

// GetAllocatable implements MemoryService. Views carry what it answers.
func (s *service) GetAllocatable(context.Context, *memoryv1.GetAllocatableRequest) (*memoryv1.GetAllocatableResponse, error) {
	out := &memoryv1.GetAllocatableResponse{}
	for _, m := range s.Ledger.View().Rules().Memory {
		if m.Allocatable > 0 {
			out.Memory = append(out.Memory, &memoryv1.AllocatableMemory{Node: uint32(m.Node), Resource: m.Resource, Bytes: m.Allocatable})
		}
	}
	return out, nil
}
