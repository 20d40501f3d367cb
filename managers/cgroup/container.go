package cgroup

import (
	"strconv"

	"github.com/berthd/berth/managers/workload"
)

// Further files of v2 that containers get.
const (
	fileOOMGroup = "memory.oom.group"
	fileSwapMax  = "memory.swap.max"
)

// Resources are one container's values for its runtime.
type Resources struct {
	// Values without a Cpuset: that is the CPU and memory managers' to give.
	Values Values
	// OOMScoreAdj goes into /proc/PID/oom_score_adj of the container's processes.
	OOMScoreAdj int
}

// ContainerResources gives what a container gets. noQuota lifts its CPU limit,
// for a container with exclusive CPUs. A container without a limit of its own
// takes that of the pod as a whole, and one that requests no CPU weighs as much
// as its limit. CPUWeight is set on v2 by the runtimes' conversion, which
// applies to containers only.
func ContainerResources(p *workload.Pod, ctr *workload.Container, c Config, noQuota bool) Resources {
	podLevel := c.Features.PodLevelResources && p.HasPodLevel()
	cpuLimit, memoryLimit := ctr.Limits[workload.CPU], ctr.Limits[workload.Memory]
	if podLevel {
		if cpuLimit == 0 {
			cpuLimit = p.Resources.Limits[workload.CPU]
		}
		if memoryLimit == 0 {
			memoryLimit = p.Resources.Limits[workload.Memory]
		}
	}
	v := Values{CPUShares: new(containerShares(ctr, cpuLimit)), HugePages: c.containerHugePages(p, ctr, podLevel)}
	if c.Facts.Version == V2 {
		v.CPUWeight = new(RuntimeWeight(*v.CPUShares))
	}
	if memoryLimit != 0 {
		v.MemoryBytes = &memoryLimit
	}
	if c.CFSQuota {
		quota := Unlimited
		if !noQuota {
			quota = c.quota(cpuLimit)
		}
		v.CPUQuotaUS, v.CPUPeriodUS = &quota, &c.PeriodUS
	}
	class := p.QoSClass(c.Features)
	if c.Facts.Version == V2 {
		v.Unified = c.containerUnified(p, ctr, class)
	} else if c.Facts.SwapLimits && memoryLimit != 0 {
		v.MemorySwapBytes = &memoryLimit
	}
	return Resources{Values: v, OOMScoreAdj: oomScoreAdj(p, ctr, class, c)}
}

func containerShares(ctr *workload.Container, cpuLimit int64) uint64 {
	if request, ok := ctr.Requests[workload.CPU]; ok {
		return SharesFromMilliCPU(request)
	}
	return SharesFromMilliCPU(cpuLimit)
}

// containerHugePages gives a limit for every page size of the tree; the
// container's own limits go over those of the pod as a whole.
func (c Config) containerHugePages(p *workload.Pod, ctr *workload.Container, podLevel bool) map[int64]int64 {
	limits := c.hugePages(nil)
	given := []workload.Quantities{ctr.Limits}
	if podLevel {
		given = []workload.Quantities{p.Resources.Limits, ctr.Limits}
	}
	for _, amounts := range given {
		for r, bytes := range amounts.Sorted() {
			if size, err := workload.HugePageSize(r); err == nil {
				limits[size] = bytes
			}
		}
	}
	return limits
}

// containerUnified gives the files of v2: killing whole, swap, memory QoS.
func (c Config) containerUnified(p *workload.Pod, ctr *workload.Container, class workload.QoSClass) map[string]string {
	files := make(map[string]string)
	if !c.SingleProcessOOMKill {
		files[fileOOMGroup] = "1"
	}
	if c.Facts.SwapLimits {
		files[fileSwapMax] = strconv.FormatInt(c.swapBytes(p, ctr, class), 10)
	}
	files[fileMemoryHigh] = "max" // in place of what an earlier configuration or size of the container had set
	if !c.memoryQoS() {
		return files
	}
	request, limit := ctr.Requests[workload.Memory], ctr.Limits[workload.Memory]
	if c.ReservesRequests() && request != 0 {
		files[reservationFile(class)] = strconv.FormatInt(request, 10)
	} else {
		files[fileMemoryMin], files[fileMemoryLow] = "0", "0"
	}
	base := limit
	switch {
	case limit != 0:
	case c.Features.PodLevelResources && p.HasPodLevel() && p.Resources.Limits[workload.Memory] != 0:
		return files // the pod's cgroup is throttled, and all in it
	default:
		base = c.AllocatableMemoryBytes
	}
	if request != limit || request == 0 {
		c.setMemoryHigh(files, request, base)
	}
	return files
}

// setMemoryHigh sets the amount above which the kernel throttles a cgroup: the
// throttling factor's share of the way from its request to a limit, in whole pages.
func (c Config) setMemoryHigh(files map[string]string, request, limit int64) {
	if limit == 0 || c.ThrottlingFactor == 0 || c.Facts.PageBytes <= 0 {
		return
	}
	pages := int64((float64(request) + (float64(limit)-float64(request))*c.ThrottlingFactor) / float64(c.Facts.PageBytes))
	if high := pages * c.Facts.PageBytes; high > request {
		files[fileMemoryHigh] = strconv.FormatInt(high, 10)
	}
}

// swapBytes gives a container's share of the swap space under LimitedSwap, in
// proportion to its memory request; 0 for a container that may not swap.
func (c Config) swapBytes(p *workload.Pod, ctr *workload.Container, class workload.QoSClass) int64 {
	request := ctr.Requests[workload.Memory]
	if !c.maySwap(p, ctr, class) {
		return 0
	}
	if c.MemoryBytes == 0 || request > c.MemoryBytes {
		return 0
	}
	return int64(float64(request) / float64(c.MemoryBytes) * float64(c.SwapBytes))
}

// MaySwap reports whether a container gets a share of the swap space.
func MaySwap(p *workload.Pod, ctr *workload.Container, c Config) bool {
	return c.Facts.Version == V2 && c.Facts.SwapLimits && c.maySwap(p, ctr, p.QoSClass(c.Features))
}

func (c Config) maySwap(p *workload.Pod, ctr *workload.Container, class workload.QoSClass) bool {
	return c.SwapBehavior == LimitedSwap && class == workload.Burstable && !critical(p) &&
		ctr.Requests[workload.Memory] != ctr.Limits[workload.Memory]
}
