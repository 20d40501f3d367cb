package podresources

import (
	"context"

	"k8s.io/kubelet/pkg/apis/podresources/v1alpha1"

	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/numa"
	"github.com/berthd/berth/managers/workload"
)

// alpha is the service v1alpha1, which old readers still use: app containers and their devices without topology.
type alpha struct {
	v1alpha1.UnimplementedPodResourcesListerServer
	ledger  Ledger
	counter Counter
}

// List implements PodResourcesLister.
func (s *alpha) List(context.Context, *v1alpha1.ListPodResourcesRequest) (*v1alpha1.ListPodResourcesResponse, error) {
	s.counter.Count(Requests, V1Alpha1)
	out := &v1alpha1.ListPodResourcesResponse{}
	view := s.ledger.View()
	for _, p := range active(view) {
		pod := &v1alpha1.PodResources{Name: p.name, Namespace: p.namespace}
		for _, record := range p.records {
			for _, c := range record.Pod.Walk() {
				if c.Role == workload.App {
					pod.Containers = append(pod.Containers, alphaContainer(record, c.Name, view.Machine().NodeMask()))
				}
			}
		}
		out.PodResources = append(out.PodResources, pod)
	}
	return out, nil
}

func alphaContainer(p *ledger.Pod, name string, nodes numa.Mask) *v1alpha1.ContainerResources {
	out := &v1alpha1.ContainerResources{Name: name}
	for _, d := range container(p, name, nodes).GetDevices() {
		out.Devices = append(out.Devices, &v1alpha1.ContainerDevices{ResourceName: d.GetResourceName(), DeviceIds: d.GetDeviceIds()})
	}
	return out
}
