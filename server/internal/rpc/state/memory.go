package state

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
	"github.com/berthd/berth/server/internal/rpc"
)

// MemoryManager is the memory manager; *memory.Manager is the one there is.
type MemoryManager interface {
	hint.Describer
	// State returns what all nodes have and hold; nothing under the policy None.
	State(view *ledger.View) []memory.NodeState
}

type memoryService struct {
	memoryv1.UnimplementedMemoryServiceServer
	Parts
	manager func(view *ledger.View) (MemoryManager, error)
	free    func() ([]machine.Node, error)
}

// Memory makes the memory service. manager returns the one that decides on a view, which
// may be one of the past. free reads what the kernel has free of memory and huge pages on each NUMA node; it is nil
// where the machine is not this one.
func Memory(p Parts, manager func(view *ledger.View) (MemoryManager, error),
	free func() ([]machine.Node, error)) memoryv1.MemoryServiceServer {
	return &memoryService{Parts: p, manager: manager, free: free}
}

// GetState implements MemoryService.
func (s *memoryService) GetState(ctx context.Context, req *memoryv1.GetStateRequest) (*memoryv1.GetStateResponse, error) {
	var free map[int]map[string]uint64
	if req.GetAt() == nil {
		free = s.kernelFree(ctx)
	}
	view, err := rpc.ViewAt(ctx, s.Ledger, req.GetAt())
	if err != nil {
		return nil, err
	}
	manager, err := s.manager(view)
	if err != nil {
		return nil, err
	}
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
func (s *memoryService) kernelFree(ctx context.Context) map[int]map[string]uint64 {
	if s.free == nil {
		return nil
	}
	nodes, err := s.free()
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
	out := &memoryv1.NodeState{NumaNode: uint32(n.Node), Group: convert.Mask(n.Group), Blocks: uint32(n.Blocks)}
	for _, r := range n.Resources {
		state := &memoryv1.ResourceState{
			Resource: r.Resource, TotalBytes: r.Total, ReservedBytes: r.SystemReserved,
			AllocatableBytes: r.Allocatable, HeldBytes: r.Held, TakenBytes: r.Taken, FreeBytes: r.Free,
		}
		if bytes, ok := free[r.Resource]; ok {
			state.KernelFreeBytes = &bytes
		}
		out.Resources = append(out.Resources, state)
	}
	return out
}

// GetTopologyHints implements MemoryService.
func (s *memoryService) GetTopologyHints(ctx context.Context, req *memoryv1.GetTopologyHintsRequest) (*memoryv1.GetTopologyHintsResponse,
	error) {
	answers, err := s.hints(ctx, req, memory.Name)
	return &memoryv1.GetTopologyHintsResponse{TopologyHints: answers}, err
}

// GetAllocatable implements MemoryService. Its answer comes from the view.
func (s *memoryService) GetAllocatable(context.Context, *memoryv1.GetAllocatableRequest) (*memoryv1.GetAllocatableResponse, error) {
	out := &memoryv1.GetAllocatableResponse{}
	for _, m := range s.Ledger.View().Rules().Memory {
		if m.Allocatable > 0 {
			out.Memory = append(out.Memory, &memoryv1.AllocatableMemory{NumaNode: uint32(m.Node), Resource: m.Resource,
				Bytes: m.Allocatable})
		}
	}
	return out, nil
}
