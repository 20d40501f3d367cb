package podresources

import (
	"cmp"
	"context"
	"slices"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/device"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/workload"
)

// Ledger gives the current view.
type Ledger interface{ View() *ledger.View }

// CPUs has the CPUs that can be exclusive; *cpu.Manager implements it.
type CPUs interface{ Allocatable() cpuset.Set }

// Inventory gives what the device plugins have reported; *device.Manager
// implements it.
type Inventory interface{ Inventory() *device.Snapshot }

// Parts are what the services read, and where they count.
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
}

// New makes the service for v1. With PodLevelResourceManagers the answers carry
// what pods hold as a whole (KEP-5526, Kubernetes 1.37).
func New(parts Parts, features workload.Features) v1.PodResourcesListerServer {
	return &service{Parts: parts, features: features}
}

// List implements PodResourcesLister.
func (s *service) List(context.Context, *v1.ListPodResourcesRequest) (*v1.ListPodResourcesResponse, error) {
	s.count(ListRequests)
	pods := active(s.Ledger.View())
	out := &v1.ListPodResourcesResponse{PodResources: make([]*v1.PodResources, len(pods))}
	for i, p := range pods {
		out.PodResources[i] = s.pod(p)
	}
	return out, nil
}

// Get implements PodResourcesLister. The status of a pod that is not there is
// the kubelet's: clients match on it.
func (s *service) Get(_ context.Context, req *v1.GetPodResourcesRequest) (*v1.GetPodResourcesResponse, error) {
	s.count(GetRequests)
	p := newest(s.Ledger.View(), req.GetPodNamespace(), req.GetPodName())
	if p == nil {
		s.Counter.Count(GetErrors, V1)
		return nil, status.Errorf(codes.Unknown, "pod %s in namespace %s not found", req.GetPodName(), req.GetPodNamespace())
	}
	return &v1.GetPodResourcesResponse{PodResources: s.pod(p)}, nil
}

// GetAllocatableResources implements PodResourcesLister. It returns all allocatable resources,
// used or not. Soon after a start it waits for the plugins.
func (s *service) GetAllocatableResources(ctx context.Context, _ *v1.AllocatableResourcesRequest) (*v1.AllocatableResourcesResponse, error) {
	s.count(AllocatableRequests)
	out := &v1.AllocatableResourcesResponse{CpuIds: ids(s.CPUs.Allocatable())}
	for _, m := range s.Ledger.View().Rules().Memory {
		if m.Allocatable > 0 {
			out.Memory = append(out.Memory, &v1.ContainerMemory{
				MemoryType: m.Resource, Size: m.Allocatable, Topology: &v1.TopologyInfo{Nodes: []*v1.NUMANode{{ID: int64(m.Node)}}},
			})
		}
	}
	snap, err := s.complete(ctx)
	if err != nil {
		return nil, err
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
	return out, nil
}

// count counts a call of v1.
func (s *service) count(m Metric) {
	s.Counter.Count(Requests, V1)
	s.Counter.Count(m, V1)
}

// pod returns what a pod and its containers hold.
func (s *service) pod(p *ledger.Pod) *v1.PodResources {
	out := &v1.PodResources{Name: p.Pod.Name, Namespace: p.Pod.Namespace}
	for _, c := range p.Pod.Walk() {
		if c.Role != workload.Init {
			out.Containers = append(out.Containers, container(p, c.Name))
		}
	}
	if s.features.PodLevelResourceManagers {
		for _, c := range heldBy(p, "") {
			out.CpuIds = append(out.CpuIds, cpus(c)...)
			out.Memory = append(out.Memory, memory(c)...)
		}
	}
	return out
}

// active returns the pods by namespace and name. Resource claims are no pods.
func active(view *ledger.View) []*ledger.Pod {
	pods := slices.SortedStableFunc(view.Pods(), func(a, b *ledger.Pod) int {
		return cmp.Or(cmp.Compare(a.Pod.Namespace, b.Pod.Namespace), cmp.Compare(a.Pod.Name, b.Pod.Name))
	})
	return slices.DeleteFunc(pods, func(p *ledger.Pod) bool { return p.Pod.ResourceClaim != nil })
}

// newest finds a pod by its name, nil if there is none. A pod and its successor of the same name
// can exist at once; the later one counts.
func newest(view *ledger.View, namespace, name string) *ledger.Pod {
	var found *ledger.Pod
	for p := range view.Pods() {
		if p.Pod.ResourceClaim == nil && p.Pod.Namespace == namespace && p.Pod.Name == name && (found == nil || p.AdmittedAt.After(found.AdmittedAt)) {
			found = p
		}
	}
	return found
}
