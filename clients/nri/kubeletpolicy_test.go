package main

import (
	"testing"

	podresourcesv1 "k8s.io/kubelet/pkg/apis/podresources/v1"
)

// TestKubeletManagers: allocatable CPUs or memory show that a manager of the kubelet is on. Without them, the managers are off if the
// kubelet lists pods: it starts its managers before it has any, and its API before that.
func TestKubeletManagers(t *testing.T) {
	t.Parallel()
	r, serve := newResources(t)
	if reason, known := r.managers(t.Context()); known {
		t.Errorf("without a kubelet: %v", reason)
	}
	kubelet := &resourcesServer{}
	serve(kubelet)
	cpus := &podresourcesv1.AllocatableResourcesResponse{CpuIds: []int64{1}}
	memory := &podresourcesv1.AllocatableResourcesResponse{Memory: []*podresourcesv1.ContainerMemory{{MemoryType: "memory", Size: 1}}}
	pods := []*podresourcesv1.PodResources{{Name: "berth"}}
	for _, row := range []struct {
		name        string
		allocatable *podresourcesv1.AllocatableResourcesResponse
		pods        []*podresourcesv1.PodResources
		on, known   bool
	}{
		{"the kubelet is starting", nil, nil, false, false},
		{"the static policy", cpus, nil, true, true},
		{"with pods", cpus, pods, true, true},
		{"the kubelet is started again", nil, nil, false, false},
		{"the memory manager", memory, pods, true, true},
		{"both are off", nil, pods, false, true},
		{"the kubelet is started again, and they were off", nil, nil, false, true},
		{"they are on again", cpus, pods, true, true},
		{"and the kubelet is started again", nil, nil, false, false},
	} {
		kubelet.allocatable, kubelet.pods = row.allocatable, row.pods
		if reason, known := r.managers(t.Context()); known != row.known || (reason != nil) != row.on {
			t.Errorf("%s: %v, known %v", row.name, reason, known)
		}
	}
}
