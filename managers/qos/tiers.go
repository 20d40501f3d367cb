package qos

import (
	"strconv"

	"github.com/berthd/berth/managers/cgroup"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/workload"
)

// unboundedHugePages is the limit of tiers: far above any machine, so that only
// pods are limited.
const unboundedHugePages = int64(1) << 62

// Config configures tiers; they also depend on the pods.
type Config struct {
	// Cgroup is what pods' values depend on too.
	Cgroup cgroup.Config
	// ReservedMemory is the percentage of higher classes' memory requests that is
	// kept from lower ones (qosReserved, gate QOSReserved); none unless above 0.
	ReservedMemory Percent
}

// Requests are sums over the pods of one class.
type Requests struct {
	MilliCPU    int64
	MemoryBytes int64
}

// Sums adds up the effective requests of the view's pods by class. Memory counts
// pod-level resources even where the feature is off, as the kubelet has it.
func Sums(view *ledger.View, f workload.Features) map[workload.QoSClass]Requests {
	withPodLevel := f
	withPodLevel.PodLevelResources = true
	cpu := view.ClassRequests(f)
	memory := cpu
	if withPodLevel != f {
		memory = view.ClassRequests(withPodLevel)
	}
	sums := make(map[workload.QoSClass]Requests, 3)
	for _, class := range workload.QoSClasses {
		sums[class] = Requests{MilliCPU: cpu.Of(class, workload.CPU), MemoryBytes: memory.Of(class, workload.Memory)}
	}
	return sums
}

// Nodes gives the node of all pods and the two tiers with their values:
//
//   - CPU: BestEffort weighs least, Burstable as much as its pods request
//     together; the node of all pods is node allocatable's to weigh.
//   - Huge pages: no tier limits them.
//   - Memory QoS (KEP-2570), on v2: the node of all pods guarantees what Guaranteed
//     and Burstable pods request, and protects what Burstable ones request, as their
//     tier does. Without memory QoS or with the policy None both are zeroed.
//   - Reserved memory: lower tiers may not use what higher ones request.
func Nodes(view *ledger.View, l cgroup.Layout, c Config) []cgroup.Node {
	sums := Sums(view, c.Cgroup.Features)
	guaranteed, burstable := sums[workload.Guaranteed], sums[workload.Burstable]

	huge := hugePages(c)
	high := cgroup.Values{HugePages: huge, CPUShares: shares(cgroup.SharesFromMilliCPU(burstable.MilliCPU))}
	low := cgroup.Values{HugePages: huge, CPUShares: shares(cgroup.MinShares)}

	var minimum, protected int64
	if c.Cgroup.ReservesRequests() {
		minimum, protected = workload.Sum(guaranteed.MemoryBytes, burstable.MemoryBytes), burstable.MemoryBytes
	}
	if c.Cgroup.Facts.Version == cgroup.V2 {
		high.Unified = map[string]string{"memory.low": strconv.FormatInt(protected, 10)}
	}
	if allocatable := c.Cgroup.AllocatableMemoryBytes; c.ReservedMemory > 0 && allocatable > 0 {
		forBurstable := allocatable - c.ReservedMemory.of(guaranteed.MemoryBytes)
		forBestEffort := forBurstable - c.ReservedMemory.of(burstable.MemoryBytes)
		high.MemoryBytes, low.MemoryBytes = limit(forBurstable), limit(forBestEffort)
	}
	return []cgroup.Node{
		{Name: l.Pods(), Values: allPods(c, minimum, protected)},
		{Name: l.Tier(workload.Burstable), Values: high},
		{Name: l.Tier(workload.BestEffort), Values: low},
	}
}

// Above gives those of Nodes that the pods of a class are in, the uppermost first.
func Above(view *ledger.View, l cgroup.Layout, c Config, class workload.QoSClass) []cgroup.Node {
	if class == workload.Guaranteed && !c.Cgroup.ReservesRequests() {
		// The node of all pods has nothing that depends on them.
		return []cgroup.Node{{Name: l.Pods(), Values: allPods(c, 0, 0)}}
	}
	nodes := Nodes(view, l, c)
	switch class {
	case workload.Burstable:
		return nodes[:2]
	case workload.BestEffort:
		return append(nodes[:1], nodes[2])
	}
	return nodes[:1]
}

// allPods gives the values of the node of all pods, with the bytes of memory that it guarantees and protects.
func allPods(c Config, minimum, protected int64) cgroup.Values {
	v := cgroup.Values{HugePages: hugePages(c)}
	if c.Cgroup.Facts.Version == cgroup.V2 {
		v.Unified = map[string]string{"memory.min": strconv.FormatInt(minimum, 10), "memory.low": strconv.FormatInt(protected, 10)}
	}
	return v
}

func hugePages(c Config) map[int64]int64 {
	limits := make(map[int64]int64, len(c.Cgroup.Facts.HugePageSizes))
	for _, size := range c.Cgroup.Facts.HugePageSizes {
		limits[size] = unboundedHugePages
	}
	return limits
}

func shares(n uint64) *uint64 { return &n }

// limit gives a memory limit; none is written for 0 or less, where nothing is
// left for a tier. (The kubelet hands a negative number to the kernel.)
func limit(bytes int64) *int64 {
	if bytes <= 0 {
		return nil
	}
	return &bytes
}

// AboveUsage raises memory limits that the tiers' present use exceeds to that
// use: the way on after the kernel refused a limit.
func AboveUsage(nodes []cgroup.Node, seen *cgroup.Snapshot) []cgroup.Node {
	out := make([]cgroup.Node, len(nodes))
	for i, n := range nodes {
		out[i] = n
		if used := seen.Find(n.Name).MemoryUsageBytes; n.Values.MemoryBytes != nil && used > *n.Values.MemoryBytes {
			out[i].Values.MemoryBytes = &used
		}
	}
	return out
}
