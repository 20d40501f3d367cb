package cgroup

import (
	"maps"

	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/numa"
	"github.com/berthd/berth/managers/workload"
)

// Unlimited stands for no limit in quotas, memory, pids and huge pages, whatever
// word or number the kernel's file uses for it.
const Unlimited int64 = -1

// Cpuset lists where the processes of a cgroup may run and take memory from. An
// empty part is absent.
type Cpuset struct {
	CPUs cpuset.Set
	Mems numa.Mask
}

// Values of a cgroup. Every one may be absent (nil, or empty for Cpuset): then
// whatever is in force stays, on creation the kernel's default.
type Values struct {
	// CPUShares is the weight against siblings in the unit of v1's cpu.shares,
	// 2 to 262144. On v2 it becomes cpu.weight by SharesToWeight, unless
	// CPUWeight is set.
	CPUShares *uint64
	// CPUWeight is v2's cpu.weight, 1 to 10000. It has no meaning on v1.
	CPUWeight *uint64
	// CPUQuotaUS is the CPU time per period in microseconds, at least 1000, or
	// Unlimited.
	CPUQuotaUS *int64
	// CPUPeriodUS is the length of a period in microseconds.
	CPUPeriodUS *uint64
	// MemoryBytes limits memory; it may be Unlimited.
	MemoryBytes *int64
	// MemorySwapBytes limits memory and swap together on v1; it may be Unlimited.
	// On v2 swap is limited by Unified's memory.swap.max instead.
	MemorySwapBytes *int64
	// PIDs limits the number of processes; it may be Unlimited, and 0 is
	// written as 1 because systemd has no 0.
	PIDs *int64
	// HugePages holds a limit in bytes, or Unlimited, for each page size in bytes.
	// A size that is not in the map is left as it is.
	HugePages map[int64]int64
	// Unified holds further files of v2 with their text, such as memory.min.
	// On v1 they are left out.
	Unified map[string]string
	// Frozen is whether the cgroup's own freezer stops the processes in it and
	// below. It is never a desired value: see Node.Lives.
	Frozen *bool

	Cpuset
}

// Clone returns a copy that shares no map with v. The targets of the pointers are
// shared, and must not be written.
func (v Values) Clone() Values {
	v.HugePages = maps.Clone(v.HugePages)
	v.Unified = maps.Clone(v.Unified)
	return v
}

// Equal reports whether both are the same values.
func (v *Values) Equal(o *Values) bool {
	return same(v.CPUShares, o.CPUShares) && same(v.CPUWeight, o.CPUWeight) &&
		same(v.CPUQuotaUS, o.CPUQuotaUS) && same(v.CPUPeriodUS, o.CPUPeriodUS) &&
		same(v.MemoryBytes, o.MemoryBytes) && same(v.MemorySwapBytes, o.MemorySwapBytes) && same(v.PIDs, o.PIDs) &&
		maps.Equal(v.HugePages, o.HugePages) && maps.Equal(v.Unified, o.Unified) &&
		same(v.Frozen, o.Frozen) && v.Cpuset == o.Cpuset
}

// same reports whether both are absent or both have one value.
func same[T comparable](a, b *T) bool { return a == b || a != nil && b != nil && *a == *b }

// Merge returns v with the values that are present in over put on top.
func (v Values) Merge(over Values) Values {
	out := v.Clone()
	put(&out.CPUShares, over.CPUShares)
	put(&out.CPUWeight, over.CPUWeight)
	put(&out.CPUQuotaUS, over.CPUQuotaUS)
	put(&out.CPUPeriodUS, over.CPUPeriodUS)
	put(&out.MemoryBytes, over.MemoryBytes)
	put(&out.MemorySwapBytes, over.MemorySwapBytes)
	put(&out.PIDs, over.PIDs)
	put(&out.Frozen, over.Frozen)
	if out.HugePages == nil {
		out.HugePages = maps.Clone(over.HugePages)
	} else {
		maps.Copy(out.HugePages, over.HugePages)
	}
	if out.Unified == nil {
		out.Unified = maps.Clone(over.Unified)
	} else {
		maps.Copy(out.Unified, over.Unified)
	}
	if !over.CPUs.IsEmpty() {
		out.CPUs = over.CPUs
	}
	if !over.Mems.IsEmpty() {
		out.Mems = over.Mems
	}
	return out
}

// Only returns the values that a resource, cpu or memory, is about; all of them
// for an empty one. Any other is an error of class Unsupported.
func (v Values) Only(resource string) (Values, error) {
	switch resource {
	case "":
		return v, nil
	case string(workload.CPU):
		return Values{CPUShares: v.CPUShares, CPUWeight: v.CPUWeight, CPUQuotaUS: v.CPUQuotaUS, CPUPeriodUS: v.CPUPeriodUS}, nil
	case string(workload.Memory):
		return Values{MemoryBytes: v.MemoryBytes, MemorySwapBytes: v.MemorySwapBytes}, nil
	}
	return Values{}, errdefs.Unsupportedf("unsupported resource %.80q of a cgroup, expected %s or %s", resource, workload.CPU,
		workload.Memory)
}

// MilliCPU gives the weight as a request and the quota as a limit; 0 where there
// is none.
func (v Values) MilliCPU() (request, limit int64) {
	switch {
	case v.CPUShares != nil:
		request = MilliCPUFromShares(int64(*v.CPUShares))
	case v.CPUWeight != nil:
		request = MilliCPUFromShares(int64(WeightToShares(*v.CPUWeight)))
	}
	if v.CPUQuotaUS != nil && v.CPUPeriodUS != nil {
		limit = MilliCPUFromQuota(*v.CPUQuotaUS, *v.CPUPeriodUS)
	}
	return request, limit
}

func put[T any](to **T, from *T) {
	if from != nil {
		*to = from
	}
}
