package cpu

import (
	"github.com/berthd/berth/managers/workload"
)

// demand answers how many CPUs of its own a pod and its containers get.
type demand struct {
	pod        *workload.Pod
	guaranteed bool
	// left is true for a pod with pod-level resources that this configuration
	// does not give CPUs: all of it runs in the shared pool.
	left bool
	// whole is true for a pod with pod-level resources that it does give CPUs.
	whole bool
}

func (m *Manager) demand(pod *workload.Pod) demand {
	f := workload.Features{
		PodLevelResources:        m.features.PodLevelResources,
		PodLevelResourceManagers: m.features.PodLevelResources && m.features.PodLevelResourceManagers,
	}
	podLevel := pod.HasPodLevel()
	return demand{
		pod:        pod,
		guaranteed: pod.QoSClass(f) == workload.Guaranteed,
		left:       podLevel && !f.PodLevelResourceManagers,
		whole:      podLevel && f.PodLevelResourceManagers,
	}
}

// of is the number of CPUs of its own that a container gets; 0 means that it
// shares. Only Guaranteed pods get CPUs, and only for whole numbers. A container
// of a pod with pod-level resources must be Guaranteed by itself too (KEP-5526).
func (d *demand) of(c *workload.Container) int {
	if !d.guaranteed || d.whole && !c.Guaranteed() {
		return 0
	}
	return c.Requests.WholeCPUs()
}

// total is the number of CPUs that the pod holds at its busiest moment.
func (d *demand) total() int {
	if !d.whole {
		return int(workload.PodTotal(d.pod, func(c *workload.Container) int64 { return int64(d.of(c)) }))
	}
	if !d.guaranteed {
		return 0
	}
	return d.pod.Resources.Requests.WholeCPUs()
}

// starved is the refusal of a pod whose containers with CPUs of their own use up
// what it has as a whole, and leave none to a container that shares; nil if they do
// not. CPUs of an init container come back; those of sidecars and app containers do
// not.
func (d *demand) starved(total int) *EmptyPodPoolError {
	held, shares := 0, false
	for _, c := range d.pod.Walk() {
		n := d.of(c)
		switch {
		case c.Role != workload.Init:
			held += n
			shares = shares || n == 0
		case n == 0 && held >= total:
			return &EmptyPodPoolError{Init: true}
		}
	}
	if shares && held >= total {
		return &EmptyPodPoolError{}
	}
	return nil
}
