package cgroup

import (
	"math/bits"

	"github.com/berthd/berth/managers/workload"
)

// Scores by which the kernel's out-of-memory killer chooses, as the kubelet
// hands them out: the higher, the sooner.
const (
	oomGuaranteed    = -997
	oomBestEffort    = 1000
	oomBurstableLow  = 3
	oomBurstableHigh = 999
)

// From here on a priority is critical (the value of system-cluster-critical).
const criticalPriority = 2_000_000_000

const nodeCriticalClass = "system-node-critical"

// critical pods are static pods, their mirrors, and those of critical priority.
func critical(p *workload.Pod) bool {
	return p.Static() || p.Priority != nil && *p.Priority >= criticalPriority
}

// oomScoreAdj scores Burstable containers by the share of the machine's memory
// that they request: a container that requests more is killed later. What the pod requests
// beyond its containers is shared out evenly among them. A sidecar scores no
// higher than the app container that requests least, so that it outlives it.
func oomScoreAdj(p *workload.Pod, ctr *workload.Container, class workload.QoSClass, c Config) int {
	switch {
	case critical(p) && p.PriorityClassName == nodeCriticalClass, class == workload.Guaranteed:
		return oomGuaranteed
	case class == workload.BestEffort || c.MemoryBytes <= 0:
		return oomBestEffort
	}
	extra := c.unclaimedMemory(p)
	score := oomScore(ctr.Requests[workload.Memory]+extra, c.MemoryBytes)
	if ctr.Role == workload.Sidecar {
		if smallest, ok := smallestAppRequest(p); ok {
			score = min(score, oomScore(smallest+extra, c.MemoryBytes))
		}
	}
	return int(min(max(score, oomBurstableLow), oomBurstableHigh))
}

// oomScore is 1000 less the request's thousandths of the machine's memory.
func oomScore(request, machine int64) int64 {
	if request <= 0 {
		return oomBestEffort
	}
	hi, lo := bits.Mul64(uint64(request), oomBestEffort)
	if hi >= uint64(machine) {
		return 0
	}
	thousandths, _ := bits.Div64(hi, lo, uint64(machine))
	if thousandths > oomBestEffort {
		return 0
	}
	return oomBestEffort - int64(thousandths)
}

// unclaimedMemory is each container's part of the pod-level memory request that
// its containers do not request themselves.
func (c Config) unclaimedMemory(p *workload.Pod) int64 {
	if !c.Features.PodLevelResources || p.Resources == nil || len(p.Containers) == 0 {
		return 0
	}
	whole := p.Resources.Requests[workload.Memory]
	if whole == 0 {
		return 0
	}
	claimed := workload.PodTotal(p, func(ctr *workload.Container) int64 { return ctr.Requests[workload.Memory] })
	return (whole - claimed) / int64(len(p.Containers))
}

func smallestAppRequest(p *workload.Pod) (smallest int64, ok bool) {
	for _, ctr := range p.Walk() {
		if ctr.Role != workload.App {
			continue
		}
		if request := ctr.Requests[workload.Memory]; !ok || request < smallest {
			smallest, ok = request, true
		}
	}
	return smallest, ok
}
