package policy

import (
	"context"
	"fmt"
	"slices"

	admissionv1 "github.com/berthd/berth/api/berth/admission/v1"
	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/workload"
)

// DeviceSource knows the devices that the kubelet has allocated to pods.
type DeviceSource interface {
	// Devices returns the devices of a pod, by container; nil if the pod has none, or if the kubelet
	// cannot be asked at all. An error is temporary.
	Devices(ctx context.Context, namespace, name string) (map[string][]*typesv1.ExternalDevice, error)
}

// devices returns the devices that the kubelet has allocated to the containers of a pod, which
// berthd gets with the admission. The kubelet allocates them before it calls the runtime. An
// admission without them would place the pod for its whole life, so the admission fails if they
// cannot be read now: the kubelet repeats the call.
func (p *Policy) devices(ctx context.Context, s *sandbox, pod *typesv1.Pod) ([]*admissionv1.ExternalDevices, error) {
	if p.Devices == nil || pod == s.spec && !s.dynamic && !requestsDevices(pod) {
		return nil, nil
	}
	byContainer, err := p.Devices.Devices(ctx, s.namespace, s.name)
	if err != nil {
		return nil, errdefs.Unavailablef("read the devices of pod %s/%s from the kubelet: %w", s.namespace, s.name, err)
	}
	var out []*admissionv1.ExternalDevices
	for _, c := range slices.Concat(pod.GetSpec().GetInitContainers(), pod.GetSpec().GetContainers()) {
		list := byContainer[c.GetName()]
		if len(list) == 0 {
			continue
		}
		out = append(out, &admissionv1.ExternalDevices{ContainerName: c.GetName(), Devices: list})
		p.Log.Debug("CPUs and memory are aligned with devices of the kubelet", "pod", s.namespace+"/"+s.name, "container", c.GetName(), "devices", fmt.Sprint(list))
	}
	return out, nil
}

// requestsDevices returns whether a container of a specification requests an extended resource.
func requestsDevices(pod *typesv1.Pod) bool {
	for _, c := range slices.Concat(pod.GetSpec().GetInitContainers(), pod.GetSpec().GetContainers()) {
		for name := range c.GetResources().GetLimits() {
			if workload.Resource(name).IsExtended() {
				return true
			}
		}
	}
	return false
}
