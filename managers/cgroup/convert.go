package cgroup

import (
	"math"
	"math/bits"
)

// Bounds of the kernel's cpu.shares and cpu.weight, and what one CPU weighs
// (Documentation/scheduler/sched-design-CFS.rst, Documentation/admin-guide/cgroup-v2.rst).
const (
	MinShares    = 2
	MaxShares    = 262144
	sharesPerCPU = 1024
	minWeight    = 1
	maxWeight    = 10000

	milliPerCPU = 1000

	// DefaultPeriodUS is the kernel's default length of a CPU quota period.
	DefaultPeriodUS = 100_000
	// MinQuotaUS is the smallest quota that the kernel takes.
	MinQuotaUS = 1000
)

// SharesFromMilliCPU converts a CPU request: 1024 shares a CPU, rounded down,
// within MinShares and MaxShares. The upper bound is reached at 256 CPUs.
func SharesFromMilliCPU(milliCPU int64) uint64 {
	const capAt = MaxShares * milliPerCPU / sharesPerCPU
	switch {
	case milliCPU <= 0:
		return MinShares
	case milliCPU >= capAt:
		return MaxShares
	}
	return max(uint64(milliCPU)*sharesPerCPU/milliPerCPU, MinShares)
}

// MilliCPUFromShares converts back, rounded up; 0 below MinShares.
func MilliCPUFromShares(shares int64) int64 {
	if shares < MinShares {
		return 0
	}
	q, r := shares/sharesPerCPU, shares%sharesPerCPU
	if q >= math.MaxInt64/milliPerCPU {
		return math.MaxInt64
	}
	return q*milliPerCPU + (r*milliPerCPU+sharesPerCPU-1)/sharesPerCPU
}

// QuotaFromMilliCPU converts a CPU limit into microseconds per period, rounded
// down, at least MinQuotaUS; 0, meaning none, for a limit of 0.
func QuotaFromMilliCPU(milliCPU int64, periodUS uint64) int64 {
	switch {
	case milliCPU == 0:
		return 0
	case milliCPU < 0:
		return MinQuotaUS
	}
	hi, lo := bits.Mul64(uint64(milliCPU), periodUS)
	if hi >= milliPerCPU {
		return math.MaxInt64
	}
	quota, _ := bits.Div64(hi, lo, milliPerCPU)
	return max(int64(min(quota, math.MaxInt64)), MinQuotaUS)
}

// MilliCPUFromQuota converts back, rounded down; 0 for no quota or no period.
func MilliCPUFromQuota(quotaUS int64, periodUS uint64) int64 {
	if quotaUS <= 0 || periodUS == 0 {
		return 0
	}
	hi, lo := bits.Mul64(uint64(quotaUS), milliPerCPU)
	if hi >= periodUS {
		return math.MaxInt64
	}
	milli, _ := bits.Div64(hi, lo, periodUS)
	return int64(min(milli, math.MaxInt64))
}

// SharesToWeight converts shares into v2's weight, linearly over the whole range
// (KEP-2254). The kubelet uses it for every level that it writes itself. 0,
// meaning absent, stays 0.
func SharesToWeight(shares uint64) uint64 {
	switch {
	case shares == 0:
		return 0
	case shares <= MinShares:
		return minWeight
	case shares >= MaxShares:
		return maxWeight
	}
	return minWeight + (shares-MinShares)*(maxWeight-minWeight)/(MaxShares-MinShares)
}

// WeightToShares converts back, rounded down. It does not always give the
// shares that the weight was made from: a weight stands for about 26 of them.
func WeightToShares(weight uint64) uint64 {
	switch {
	case weight == 0:
		return 0
	case weight >= maxWeight:
		return MaxShares
	}
	return (weight-minWeight)*(MaxShares-MinShares)/(maxWeight-minWeight) + MinShares
}

// RuntimeWeight converts shares into v2's weight as OCI runtimes do it for
// containers (runc since 1.3.2, crun since 1.23): a curve through the ends of
// both ranges and both defaults, 1024 shares and weight 100. 0 stays 0.
func RuntimeWeight(shares uint64) uint64 {
	switch {
	case shares == 0:
		return 0
	case shares <= MinShares:
		return minWeight
	case shares >= MaxShares:
		return maxWeight
	}
	l := math.Log2(float64(shares))
	return uint64(math.Ceil(math.Pow(10, (l*l+125*l)/612-7.0/34)))
}
