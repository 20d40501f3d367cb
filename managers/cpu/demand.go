package cpu

import "github.com/berthd/berth/managers/workload"

// demand answers how many CPUs of its own a pod and its containers get.
type demand struct{ workload.Share }

func (m *Manager) demand(pod *workload.Pod) demand {
	return demand{pod.Share(m.features.Features)}
}

// of is the number of CPUs of its own that a container gets; 0 means that it
// shares. Only Guaranteed pods get CPUs, and only for whole numbers. A container
// of a pod with pod-level resources must be Guaranteed by itself too (KEP-5526).
func (d *demand) of(c *workload.Container) int {
	if !d.Guaranteed || !d.Apart(c) {
		return 0
	}
	return c.Requests.WholeCPUs()
}

// total is the number of CPUs that the pod holds at its busiest moment.
func (d *demand) total() int {
	if !d.Whole {
		return int(workload.PodTotal(d.Pod, func(c *workload.Container) int64 { return int64(d.of(c)) }))
	}
	if !d.Guaranteed {
		return 0
	}
	return d.Pod.Resources.Requests.WholeCPUs()
}

// starved is the refusal of a pod whose containers with CPUs of their own use up
// what it has as a whole, and leave none to a container that shares; nil if they do
// not.
func (d *demand) starved(total int) *EmptyPodPoolError {
	at, early := d.Starved([]int64{int64(total)}, func(c *workload.Container) []int64 {
		if n := d.of(c); n > 0 {
			return []int64{int64(n)}
		}
		return nil
	})
	if at < 0 {
		return nil
	}
	return &EmptyPodPoolError{Init: early}
}
