package cgroup

import (
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/workload"
)

// ReservationPolicy defines how memory requests become guarantees under memory QoS
// (KEP-2570).
type ReservationPolicy string

const (
	// ReserveNone writes no guarantees.
	ReserveNone ReservationPolicy = "None"
	// ReserveTiered guarantees requests: memory.min for Guaranteed pods,
	// memory.low for others.
	ReserveTiered ReservationPolicy = "TieredReservation"
)

// SwapBehavior defines whether containers may swap (KEP-2400).
type SwapBehavior string

const (
	// NoSwap is the default; the empty string means the same.
	NoSwap SwapBehavior = "NoSwap"
	// LimitedSwap gives Burstable containers swap in proportion to their memory.
	LimitedSwap SwapBehavior = "LimitedSwap"
)

// Config configures the values of pods and containers, which also depend on the pods
// themselves. The names in comments are those of a KubeletConfiguration.
type Config struct {
	Features workload.Features
	// CFSQuota is cpuCFSQuota: whether CPU limits become quotas.
	CFSQuota bool
	// PeriodUS is cpuCFSQuotaPeriod in microseconds.
	PeriodUS uint64
	// DefaultQuotas makes quotas for the default period although another one may
	// be written: what remains of PeriodUS when the kubelet's feature gate
	// CustomCPUCFSQuotaPeriod is switched off.
	DefaultQuotas bool
	// QuotaWithExclusiveCPUs leaves those with CPUs of their own their quota: the
	// kubelet's feature gate DisableCPUQuotaWithExclusiveCPUs, switched off.
	QuotaWithExclusiveCPUs bool
	// PodPIDsLimit is podPidsLimit; none unless above 0.
	PodPIDsLimit int64
	// MemoryQoS is the feature gate of that name; it acts on v2 only.
	MemoryQoS bool
	// ReservationPolicy is memoryReservationPolicy; empty means ReserveNone.
	ReservationPolicy ReservationPolicy
	// ThrottlingFactor is memoryThrottlingFactor, in (0, 1]; 0 sets no memory.high.
	ThrottlingFactor float64
	// SwapBehavior is memorySwap.swapBehavior.
	SwapBehavior SwapBehavior
	// SingleProcessOOMKill is singleProcessOOMKill. False lets the kernel kill a
	// container whole, on v2.
	SingleProcessOOMKill bool

	// Facts of the tree that the values are for.
	Facts Facts
	// MemoryBytes is the machine's memory, SwapBytes its swap space.
	MemoryBytes, SwapBytes int64
	// AllocatableMemoryBytes is what is left for pods without the reservations;
	// 0 if unknown.
	AllocatableMemoryBytes int64
}

// DefaultConfig returns the kubelet's defaults for a tree.
func DefaultConfig(f Facts) Config {
	return Config{
		Features:             workload.Features{PodLevelResources: true},
		CFSQuota:             true,
		PeriodUS:             DefaultPeriodUS,
		PodPIDsLimit:         Unlimited,
		MemoryQoS:            true,
		ReservationPolicy:    ReserveNone,
		SwapBehavior:         NoSwap,
		SingleProcessOOMKill: f.Version == V1,
		Facts:                f,
	}
}

// Validate reports all settings that are out of range, with class Invalid and
// the names of a KubeletConfiguration.
func (c Config) Validate() error {
	var vs errdefs.Violations
	if c.PeriodUS < 1000 || c.PeriodUS > 1_000_000 {
		vs.Addf("cpuCFSQuotaPeriod", "is %dus, expected 1ms to 1s", c.PeriodUS)
	}
	switch c.ReservationPolicy {
	case "", ReserveNone:
	case ReserveTiered:
		if !c.MemoryQoS {
			vs.Addf("memoryReservationPolicy", "%s needs the feature gate MemoryQoS", ReserveTiered)
		}
	default:
		vs.Addf("memoryReservationPolicy", "is %q, expected %s or %s", c.ReservationPolicy, ReserveNone, ReserveTiered)
	}
	if !(c.ThrottlingFactor >= 0 && c.ThrottlingFactor <= 1) {
		vs.Addf("memoryThrottlingFactor", "is %v, expected more than 0 and at most 1", c.ThrottlingFactor)
	}
	switch c.SwapBehavior {
	case "", NoSwap:
	case LimitedSwap:
		if c.Facts.Version == V1 {
			vs.Addf("memorySwap.swapBehavior", "%s needs cgroup v2", LimitedSwap)
		}
	default:
		vs.Addf("memorySwap.swapBehavior", "is %q, expected %s or %s", c.SwapBehavior, NoSwap, LimitedSwap)
	}
	if c.Facts.Version == V1 && !c.SingleProcessOOMKill {
		vs.Addf("singleProcessOOMKill", "is false, which needs cgroup v2")
	}
	return vs.Err("cgroup configuration")
}

// quota converts a CPU limit for the configured period.
func (c Config) quota(milliCPU int64) int64 {
	if c.DefaultQuotas {
		return QuotaFromMilliCPU(milliCPU, DefaultPeriodUS)
	}
	return QuotaFromMilliCPU(milliCPU, c.PeriodUS)
}

// memoryQoS reports whether memory QoS is in force.
func (c Config) memoryQoS() bool { return c.MemoryQoS && c.Facts.Version == V2 }

// ReservesRequests reports whether the memory that pods request is protected: memory QoS with ReserveTiered.
func (c Config) ReservesRequests() bool { return c.memoryQoS() && c.ReservationPolicy == ReserveTiered }

// ExclusiveCPUs reports whether a pod's cgroup goes without a CPU quota because
// of exclusive CPUs: any container owning some is enough. Under KEP-5526 a pod
// with resources of its own needs every container to be isolated.
func ExclusiveCPUs(p *ledger.Pod, f workload.Features) bool {
	all := f.PodLevelResourceManagers && p.Pod.HasPodLevel()
	for _, c := range p.Pod.Walk() {
		if owns := ContainerExclusiveCPUs(p, c.Name); owns != all {
			return owns
		}
	}
	return all && len(p.Pod.Containers) > 0
}

// ContainerExclusiveCPUs reports whether a container owns CPUs of its own, and so
// gets no CPU quota.
func ContainerExclusiveCPUs(p *ledger.Pod, container string) bool {
	for i := range p.Claims {
		c := &p.Claims[i]
		if c.Owner.Container == container && c.CPUs != nil && !c.CPUs.Set.IsEmpty() &&
			(c.CPUs.Use == ledger.CPUExclusive || c.CPUs.Use == ledger.CPUPodExclusive) {
			return true
		}
	}
	return false
}
