package podspec

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// TestTakeAllocated: limits in the status of a container that runs are those of its cgroup, which has no quota on exclusive CPUs, and the
// kubelet keeps an older one then. With claims, the kubelet has added their amounts.
func TestTakeAllocated(t *testing.T) {
	t.Parallel()
	list := func(cpu, memory string) corev1.ResourceList {
		return corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu), corev1.ResourceMemory: resource.MustParse(memory)}
	}
	waits := []corev1.PodCondition{{Type: corev1.PodResizePending, Status: corev1.ConditionTrue}}
	for name, row := range map[string]struct {
		requests, limits, allocated, status corev1.ResourceList
		conditions                          []corev1.PodCondition
		want, wantLimits                    corev1.ResourceList
	}{
		"carried out": {list("2", "1Gi"), list("2", "1Gi"), list("2", "1Gi"), list("1", "3Gi"), nil, list("2", "1Gi"),
			list("2", "1Gi")},
		"to be allocated": {list("2", "1Gi"), list("2", "1Gi"), list("1", "1Gi"), list("1", "1Gi"), nil, list("1", "1Gi"),
			list("1", "1Gi")},
		"another limit, to be allocated": {list("2", "1Gi"), list("4", "1Gi"), list("2", "1Gi"), list("3", "1Gi"), waits,
			list("2", "1Gi"), list("3", "1Gi")},
	} {
		for _, init := range []bool{false, true} {
			containers := []corev1.Container{{Name: "main", Resources: corev1.ResourceRequirements{Requests: row.requests,
				Limits: row.limits}}}
			statuses := []corev1.ContainerStatus{{Name: "main", AllocatedResources: row.allocated,
				Resources: &corev1.ResourceRequirements{Limits: row.status}}}
			pod := &corev1.Pod{Spec: corev1.PodSpec{Containers: containers},
				Status: corev1.PodStatus{Conditions: row.conditions, ContainerStatuses: statuses}}
			if init {
				pod = &corev1.Pod{Spec: corev1.PodSpec{InitContainers: containers},
					Status: corev1.PodStatus{Conditions: row.conditions, InitContainerStatuses: statuses}}
			}
			TakeAllocated(pod)
			if got := containers[0].Resources; !sameAmounts(got.Requests, row.want) || !sameAmounts(got.Limits, row.wantLimits) {
				t.Errorf("%s, init %t: %v, want %v and %v", name, init, got, row.want, row.wantLimits)
			}
		}
	}
}
