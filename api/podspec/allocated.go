package podspec

import (
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// TakeAllocated replaces the requested amounts with those that the kubelet has allocated. The pod
// runs with the allocated amounts until a resize in place is carried out. The limits in the status are those of the
// cgroup: they differ from the allocated ones for exclusive CPUs and for claims. So a container that has what it requests
// keeps its limits.
func TakeAllocated(pod *corev1.Pod) {
	pending := slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodResizePending && c.Status == corev1.ConditionTrue
	})
	for _, list := range []struct {
		containers []corev1.Container
		statuses   []corev1.ContainerStatus
	}{
		{pod.Spec.InitContainers, pod.Status.InitContainerStatuses},
		{pod.Spec.Containers, pod.Status.ContainerStatuses},
	} {
		for i := range list.containers {
			c := &list.containers[i]
			for _, s := range list.statuses {
				if s.Name != c.Name || s.Resources == nil || s.AllocatedResources == nil || !pending &&
					sameAmounts(c.Resources.Requests, s.AllocatedResources) {
					continue
				}
				c.Resources.Requests = s.AllocatedResources
				if s.Resources.Limits != nil {
					c.Resources.Limits = s.Resources.Limits
				}
			}
		}
	}
}

// sameAmounts reports whether two lists have the same resources with the same amounts.
func sameAmounts(a, b corev1.ResourceList) bool {
	return maps.EqualFunc(a, b, func(a, b resource.Quantity) bool { return a.Cmp(b) == 0 })
}
