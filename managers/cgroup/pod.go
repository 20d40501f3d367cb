package cgroup

import (
	"strconv"

	"github.com/berthd/berth/managers/workload"
)

// The files of v2 by which memory QoS acts.
const (
	fileMemoryMin  = "memory.min"
	fileMemoryLow  = "memory.low"
	fileMemoryHigh = "memory.high"
)

// PodValues gives what a pod's cgroup holds, from the pod's effective requests
// and limits. noQuota lifts the CPU limit although one is declared, for pods
// with exclusive CPUs. By class:
//
//   - Guaranteed: shares, quota, memory.
//   - Burstable: shares; quota and memory only where every part of the pod is
//     limited (workload.DeclaredLimits).
//   - BestEffort: the fewest shares.
//
// Huge pages follow from the requests, in every class; page sizes that the pod
// does not request get a limit of 0. A quota or memory limit of 0 can come out
// for a Guaranteed class that was handed in; it is left as it is, like an absent
// one. With memory QoS the request becomes memory.min or memory.low, and pods with
// pod-level resources and a memory limit get memory.high.
func PodValues(p *workload.Pod, c Config, noQuota bool) Values {
	requests, limits := workload.EffectiveRequests(p, c.Features), workload.EffectiveLimits(p, c.Features)
	declared := workload.DeclaredLimits(p, c.Features)
	class := p.QoSClass(c.Features)

	v := Values{
		CPUShares: new(SharesFromMilliCPU(requests[workload.CPU])),
		HugePages: c.hugePages(requests),
		Unified:   c.podUnified(p, class, requests[workload.Memory], limits[workload.Memory], declared.Memory),
	}
	switch class {
	case workload.Guaranteed:
		declared = workload.Declared{CPU: true, Memory: true}
	case workload.BestEffort:
		declared = workload.Declared{}
		v.CPUShares = new(uint64(MinShares))
	}
	if declared.CPU {
		quota := Unlimited
		if c.CFSQuota && !noQuota {
			quota = c.quota(limits[workload.CPU])
		}
		v.CPUQuotaUS, v.CPUPeriodUS = &quota, &c.PeriodUS
	}
	if declared.Memory {
		v.MemoryBytes = new(limits[workload.Memory])
	}
	if c.PodPIDsLimit > 0 {
		v.PIDs = &c.PodPIDsLimit
	}
	return v
}

// Lightest gives a cgroup the smallest weight and nothing else: what is left of a
// pod must not hinder others.
func Lightest() Values { return Values{CPUShares: new(uint64(MinShares))} }

// hugePages gives a limit for every page size of the tree and for every size in
// amounts; names that denote the same size add up. A name without a valid size
// counts for nothing: validation has refused it before.
func (c Config) hugePages(amounts workload.Quantities) map[int64]int64 {
	limits := make(map[int64]int64, len(c.Facts.HugePageSizes))
	for _, size := range c.Facts.HugePageSizes {
		limits[size] = 0
	}
	for r, bytes := range amounts {
		if !r.IsHugePages() {
			continue // nearly all; an error that is never read costs more than the rest here
		}
		if size, err := workload.HugePageSize(r); err == nil {
			limits[size] += bytes
		}
	}
	return limits
}

// podUnified gives the files of memory QoS; nil if there are none.
func (c Config) podUnified(p *workload.Pod, class workload.QoSClass, request, limit int64, limited bool) map[string]string {
	files := map[string]string{}
	if c.ReservesRequests() && request > 0 {
		files[reservationFile(class)] = strconv.FormatInt(request, 10)
	}
	if c.memoryQoS() && c.Features.PodLevelResources && p.HasPodLevel() && limited && request != limit {
		c.setMemoryHigh(files, request, limit)
	}
	if len(files) == 0 {
		return nil
	}
	return files
}

func reservationFile(class workload.QoSClass) string {
	if class == workload.Guaranteed {
		return fileMemoryMin
	}
	return fileMemoryLow
}
