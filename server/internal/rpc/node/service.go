// Package node serves berth.node.v1: the machine that pods are placed on, and what
// the node as a whole has and gives. It changes nothing but the configuration, by Reload, and the
// number of huge pages, by SetHugePages.
package node

import (
	"context"
	"fmt"
	"sync/atomic"

	nodev1 "github.com/berthd/berth/api/berth/node/v1"
	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/api/convert"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/machine"
	"github.com/berthd/berth/managers/managerset"
	"github.com/berthd/berth/managers/memory"
	"github.com/berthd/berth/managers/node"
	"github.com/berthd/berth/managers/workload"
	"github.com/berthd/berth/server/internal/rpc"
	"github.com/berthd/berth/server/internal/usage"
)

// Parts hold what the service shows. Config and Version never change while berthd runs.
type Parts struct {
	// Machine returns the machine in use; hot-plug replaces it.
	Machine func() *machine.Topology
	// Places returns the offline CPUs of a machine whose place is known.
	Places func(*machine.Topology) []machine.CPU
	// Node returns the manager in force; a change of policy replaces it.
	Node   func() *node.Manager
	Ledger rpc.Past
	// Claims returns what resource claims may have, by NUMA node.
	Claims func() (nodes []managerset.ClaimNode, onePool bool)
	// Status describes the current state of the system.
	Status  func(ctx context.Context) (*nodev1.GetStatusResponse, error)
	Config  *nodev1.GetConfigResponse
	Version *nodev1.GetVersionResponse
	// Reload reads the configuration again; in a dry run it changes nothing.
	Reload func(ctx context.Context, dryRun bool) (Reloaded, error)
	// SetHugePages changes the huge pages of NUMA nodes; in a dry run it only checks them.
	SetHugePages func(ctx context.Context, pools []memory.Pool, dryRun bool) ([]PoolResult, error)
	Usage        UsageReader
}

// UsageReader reads resource usage; *usage.Reader is the only implementation.
type UsageReader interface {
	Read(ctx context.Context) (*usage.Reading, error)
}

// Reloaded has the differences between the configuration's files and the values in force, and the
// settings without effect.
type Reloaded struct {
	Changes []FieldChange
	Notes   []string
}

// FieldChange is a field that has another value; both are JSON, empty for an absent field.
type FieldChange struct {
	Field, From, To string
	// Applied means that To is in force; otherwise Reason explains why it is not.
	Applied bool
	Reason  string
}

// PoolResult is a pool with the numbers of pages that were requested, that it had, and that it has.
type PoolResult struct {
	memory.Pool
	Before, Now uint64
}

// SetHugePages implements NodeService.
func (s *service) SetHugePages(ctx context.Context, req *nodev1.SetHugePagesRequest) (*nodev1.SetHugePagesResponse, error) {
	var vs errdefs.Violations
	var pools []memory.Pool
	for i, p := range req.GetPools() {
		if p.GetPageSizeBytes() == 0 || p.GetPageSizeBytes()%1024 != 0 {
			vs.Addf(fmt.Sprintf("pools[%d].page_size_bytes", i), "expected a multiple of 1024 above 0, got %d", p.GetPageSizeBytes())
		}
		pools = append(pools, memory.Pool{Node: int(p.GetNumaNode()), SizeKiB: p.GetPageSizeBytes() >> 10, Pages: p.GetCount()})
	}
	if err := vs.Err("request"); err != nil {
		return nil, err
	}
	results, err := s.Parts.SetHugePages(ctx, pools, req.GetDryRun())
	if err != nil {
		return nil, err
	}
	out := &nodev1.SetHugePagesResponse{}
	for _, r := range results {
		out.Pools = append(out.Pools, &nodev1.HugePagePoolResult{
			NumaNode: uint32(r.Node), PageSizeBytes: r.SizeKiB << 10, RequestedCount: r.Pages, CountBefore: r.Before, Count: r.Now,
		})
	}
	return out, nil
}

// Reload implements NodeService.
func (s *service) Reload(ctx context.Context, req *nodev1.ReloadRequest) (*nodev1.ReloadResponse, error) {
	r, err := s.Parts.Reload(ctx, req.GetDryRun())
	if err != nil {
		return nil, err
	}
	out := &nodev1.ReloadResponse{Notes: r.Notes, Revision: s.Ledger.View().Revision()}
	for _, c := range r.Changes {
		out.Changes = append(out.Changes, &nodev1.FieldChange{Field: c.Field, OldValue: c.From, NewValue: c.To, Applied: c.Applied,
			Reason: c.Reason})
	}
	return out, nil
}

type service struct {
	nodev1.UnimplementedNodeServiceServer
	Parts
	// described is the last description: of a machine with thousands of CPUs it takes milliseconds.
	described atomic.Pointer[described]
}

// described is a machine with its description.
type described struct {
	machine *machine.Topology
	message *nodev1.GetMachineResponse
}

// New makes the service.
func New(p Parts) nodev1.NodeServiceServer {
	return &service{Parts: p}
}

// GetCapacity implements NodeService.
func (s *service) GetCapacity(context.Context, *nodev1.GetCapacityRequest) (*nodev1.GetCapacityResponse, error) {
	return &nodev1.GetCapacityResponse{Capacity: amounts(s.Node().Capacity())}, nil
}

// GetAllocatable implements NodeService.
func (s *service) GetAllocatable(context.Context, *nodev1.GetAllocatableRequest) (*nodev1.GetAllocatableResponse, error) {
	n := s.Node()
	out := &nodev1.GetAllocatableResponse{
		Allocatable: amounts(n.Allocatable()), Absolute: amounts(n.Absolute()),
		Limit: amounts(n.Limit()), Requested: amounts(n.Requested(s.Ledger.View())),
	}
	claims, onePool := s.Claims()
	out.ResourceClaimsFromAllocatable = onePool
	for _, c := range claims {
		out.ResourceClaims = append(out.ResourceClaims, &nodev1.ClaimNode{
			NumaNode: uint32(c.Node), Cpus: convert.CPUSet(c.CPUs), Resources: amounts(c.Memory), CpuStep: uint32(c.Step),
		})
	}
	return out, nil
}

// GetReservation implements NodeService.
func (s *service) GetReservation(context.Context, *nodev1.GetReservationRequest) (*nodev1.GetReservationResponse, error) {
	n := s.Node()
	return &nodev1.GetReservationResponse{
		Reservation: amounts(n.Reservation()), System: amounts(n.SystemReserved()),
		Kube: amounts(n.KubeReserved()), Eviction: amounts(n.Eviction()),
	}, nil
}

// GetStatus implements NodeService.
func (s *service) GetStatus(ctx context.Context, _ *nodev1.GetStatusRequest) (*nodev1.GetStatusResponse, error) {
	return s.Status(ctx)
}

// GetVersion implements NodeService.
func (s *service) GetVersion(context.Context, *nodev1.GetVersionRequest) (*nodev1.GetVersionResponse, error) {
	return s.Version, nil
}

// GetConfig implements NodeService.
func (s *service) GetConfig(context.Context, *nodev1.GetConfigRequest) (*nodev1.GetConfigResponse, error) {
	return s.Config, nil
}

// amounts returns the message form.
func amounts(q workload.Quantities) map[string]string { return convert.AmountTexts(q, nil) }

// GetMachine implements NodeService.
func (s *service) GetMachine(ctx context.Context, req *nodev1.GetMachineRequest) (*nodev1.GetMachineResponse, error) {
	m := s.Machine()
	if req.GetAt() != nil {
		return s.machineAt(ctx, req.GetAt(), m)
	}
	if last := s.described.Load(); last != nil && last.machine == m {
		return last.message, nil
	}
	message, err := describe(m, s.Places(m))
	if err != nil {
		return nil, err
	}
	s.described.Store(&described{m, message})
	return message, nil
}

// machineAt describes the machine of a state of the past. A CPU that was offline then, and is not today, is where it is today.
func (s *service) machineAt(ctx context.Context, at *typesv1.Moment, today *machine.Topology) (*nodev1.GetMachineResponse, error) {
	view, err := rpc.ViewAt(ctx, s.Ledger, at)
	if err != nil {
		return nil, err
	}
	m := view.Machine()
	if today, err = today.With(s.Places(today)); err != nil {
		return nil, err
	}
	out, err := describe(m, machine.Places(m, today))
	if err != nil {
		return nil, err
	}
	out.Revision, out.OtherPolicy = view.Revision(), view.Rules().ConfigDigest != s.Ledger.View().Rules().ConfigDigest
	return out, nil
}

func describe(m *machine.Topology, offline []machine.CPU) (*nodev1.GetMachineResponse, error) {
	snapshot, err := m.Marshal()
	if err != nil {
		return nil, err
	}
	out := &nodev1.GetMachineResponse{
		OfflineCpus: convert.CPUSet(m.Offline()), IsolatedCpus: convert.CPUSet(m.Isolated()), NohzFullCpus: convert.CPUSet(m.NoHZFull()),
		Fingerprint: m.Fingerprint(), SnapshotJson: snapshot,
	}
	for id := range m.CPUs().All() {
		c, _ := m.CPU(id)
		out.Cpus = append(out.Cpus, describeCPU(c))
	}
	for _, c := range offline {
		out.OfflinePlaces = append(out.OfflinePlaces, describeCPU(c))
	}
	for _, n := range m.Nodes() {
		out.Nodes = append(out.Nodes, describeNode(m, n))
	}
	return out, nil
}

func describeCPU(c machine.CPU) *nodev1.CPU {
	return &nodev1.CPU{Cpu: uint32(c.ID), Core: uint32(c.Core), Socket: uint32(c.Socket), NumaNode: uint32(c.Node),
		UncoreCache: uint32(c.Uncore)}
}

func describeNode(m *machine.Topology, n machine.Node) *nodev1.NUMANode {
	out := &nodev1.NUMANode{
		NumaNode: uint32(n.ID), Cpus: convert.CPUSet(m.CPUsInNode(n.ID)),
		MemoryBytes: n.MemoryBytes, Distances: make(map[uint32]uint32),
	}
	for _, h := range n.HugePages {
		out.HugePages = append(out.HugePages, &nodev1.HugePages{PageSizeBytes: h.SizeKiB << 10, Count: h.Count})
	}
	for to := range m.NodeMask().All() {
		if d, ok := m.Distances().Between(n.ID, to); ok {
			out.Distances[uint32(to)] = uint32(d)
		}
	}
	return out
}
