package podresources

import (
	"context"
	"sync/atomic"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/device"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/numa"
	"github.com/berthd/berth/managers/workload"
)

// Ledger gives the current view.
type Ledger interface{ View() *ledger.View }

// CPUs has the CPUs that can be exclusive; *cpu.Manager implements it.
type CPUs interface{ Allocatable() cpuset.Set }

// Inventory gives what the device plugins have reported; *device.Manager
// implements it.
type Inventory interface{ Inventory() *device.Snapshot }

// Parts hold what the services read, and where they count.
type Parts struct {
	Ledger    Ledger
	CPUs      CPUs
	Inventory Inventory
	Counter   Counter
	// Timeout is closed when plugins that were there before the start have had
	// time enough to come back. Nil means that there is no such time.
	Timeout <-chan struct{}
}

type service struct {
	v1.UnimplementedPodResourcesListerServer
	Parts
	features workload.Features
	// listed is the newest answer to List.
	listed atomic.Pointer[list]
}

// New makes the service for v1. With PodLevelResourceManagers the answers carry
// what pods hold as a whole (KEP-5526, Kubernetes 1.37).
func New(parts Parts, features workload.Features) v1.PodResourcesListerServer {
	return &service{Parts: parts, features: features}
}

// List implements PodResourcesLister.
func (s *service) List(ctx context.Context, _ *v1.ListPodResourcesRequest) (*v1.ListPodResourcesResponse, error) {
	s.count(ListRequests)
	l, err := s.list(s.Ledger.View())
	if err != nil {
		return nil, err
	}
	return l.answer(), name(ctx, l.missing)
}

// Get implements PodResourcesLister. The status of a pod that is not there is
// the kubelet's: clients match on it.
func (s *service) Get(ctx context.Context, req *v1.GetPodResourcesRequest) (*v1.GetPodResourcesResponse, error) {
	s.count(GetRequests)
	view, missing := s.Ledger.View(), map[string]bool{}
	p := newest(view, req.GetPodNamespace(), req.GetPodName())
	if p == nil {
		s.Counter.Count(GetErrors, V1)
		return nil, status.Errorf(codes.Unknown, "pod %s in namespace %s not found", req.GetPodName(), req.GetPodNamespace())
	}
	out := &v1.GetPodResourcesResponse{PodResources: s.pod(p, view.Machine().NodeMask(), missing)}
	return out, name(ctx, missing)
}

// GetAllocatableResources implements PodResourcesLister. It returns all resources that pods may have by their requests, used or not.
// What resource claims may have, or hold if there is one pool, is not part of it. Soon after a start it waits for the plugins.
func (s *service) GetAllocatableResources(ctx context.Context, _ *v1.AllocatableResourcesRequest) (*v1.AllocatableResourcesResponse,
	error) {
	s.count(AllocatableRequests)
	snap, missing := s.complete(ctx)
	view := s.Ledger.View()
	out := &v1.AllocatableResourcesResponse{CpuIds: ids(s.CPUs.Allocatable().Minus(view.ResourceClaimCPUs()))}
	claimed := view.ResourceClaimMemory()
	for _, m := range view.Rules().Memory {
		if view.Rules().OnePool {
			m.Allocatable -= min(m.Allocatable, claimed.Held(m.Resource)[m.Node])
		}
		if m.Allocatable > 0 {
			out.Memory = append(out.Memory, &v1.ContainerMemory{
				MemoryType: m.Resource, Size: m.Allocatable, Topology: &v1.TopologyInfo{Nodes: []*v1.NUMANode{{ID: int64(m.Node)}}},
			})
		}
	}
	for p := range view.Pods() {
		notAllocatable(missing, p)
	}
	for r := range snap.Resources() {
		var list []ledger.Device
		for _, d := range r.Devices {
			if r.Healthy(d) {
				list = append(list, ledger.Device{ID: d.ID, Nodes: d.Nodes, Topology: d.Topology})
			}
		}
		out.Devices = append(out.Devices, devices(r.Name, list)...)
	}
	return out, name(ctx, missing)
}

// count counts a call of v1.
func (s *service) count(m Metric) {
	s.Counter.Count(Requests, V1)
	s.Counter.Count(m, V1)
}

// pod returns what a pod and its containers hold on a machine with some NUMA nodes, and adds the resources of devices that it cannot list.
func (s *service) pod(p *listed, nodes numa.Mask, missing map[string]bool) *v1.PodResources {
	out := &v1.PodResources{Name: p.name, Namespace: p.namespace}
	for _, record := range p.records {
		for _, c := range record.Pod.Walk() {
			if c.Role != workload.Init {
				out.Containers = append(out.Containers, container(record, c.Name, nodes))
			}
		}
		if s.features.PodLevelResourceManagers {
			for _, c := range heldBy(record, "") {
				out.CpuIds = append(out.CpuIds, cpus(c)...)
				out.Memory = append(out.Memory, memory(c)...)
			}
		}
		unlisted(missing, record)
	}
	return out
}
