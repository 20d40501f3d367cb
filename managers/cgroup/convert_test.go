package cgroup

import (
	"math"
	"testing"

	"pgregory.net/rapid"
)

func TestShares(t *testing.T) {
	t.Parallel()
	for milli, want := range map[int64]uint64{
		math.MinInt64: 2, -1: 2, 0: 2, 1: 2, 2: 2, 5: 5, 100: 102, 250: 256, 255: 261, 1000: 1024, 16000: 16384,
		255_999: 262142, 256_000: 262144, math.MaxInt64: 262144,
	} {
		if got := SharesFromMilliCPU(milli); got != want {
			t.Errorf("%dm has %d shares, want %d", milli, got, want)
		}
	}
	for shares, want := range map[int64]int64{-5: 0, 0: 0, 1: 0, 2: 2, 102: 100, 998: 975, 1024: 1000, math.MaxInt64: 9007199254740992000} {
		if got := MilliCPUFromShares(shares); got != want {
			t.Errorf("%d shares are %dm, want %dm", shares, got, want)
		}
	}
}

func TestQuota(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		milli  int64
		period uint64
		want   int64
	}{
		{0, 100_000, 0}, {-1, 100_000, 1000}, {1, 100_000, 1000}, {5, 100_000, 1000}, {10, 100_000, 1000},
		{1755, 100_000, 175_500}, {15, 10_000, 1000}, {100, 10_000, 1000}, {150, 10_000, 1500}, {300_000, 100_000, 30_000_000},
		{5, 0, 1000}, {math.MaxInt64, 1_000_000, math.MaxInt64}, {math.MaxInt64, 1000, math.MaxInt64},
	} {
		if got := QuotaFromMilliCPU(row.milli, row.period); got != row.want {
			t.Errorf("%dm in %dus: %d, want %d", row.milli, row.period, got, row.want)
		}
	}
	for _, row := range []struct {
		quota  int64
		period uint64
		want   int64
	}{
		{-1, 100_000, 0}, {0, 100_000, 0}, {100_000, 100_000, 1000}, {1000, 100_000, 10}, {2088777, 1_000_000, 2088},
		{1, 0, 0}, {math.MaxInt64, 1, math.MaxInt64},
	} {
		if got := MilliCPUFromQuota(row.quota, row.period); got != row.want {
			t.Errorf("%d in %dus: %dm, want %dm", row.quota, row.period, got, row.want)
		}
	}
}

func TestWeights(t *testing.T) {
	t.Parallel()
	for _, row := range []struct{ shares, linear, runtime, back uint64 }{
		{2, 1, 1, 2}, {10, 1, 4, 2}, {102, 4, 17, 80}, {256, 10, 35, 237}, {512, 20, 59, 500}, {1024, 39, 100, 998},
		{2048, 79, 174, 2046}, {4096, 157, 303, 4091}, {15360, 586, 893, 15338}, {65536, 2500, 3023, 65517},
		{262144, 10000, 10000, 262144},
	} {
		linear, curve := SharesToWeight(row.shares), RuntimeWeight(row.shares)
		if back := WeightToShares(linear); linear != row.linear || curve != row.runtime || back != row.back {
			t.Errorf("%d shares: weight %d, for runtimes %d, back %d; want %+v", row.shares, linear, curve, back, row)
		}
	}
	for _, f := range []func(uint64) uint64{SharesToWeight, RuntimeWeight, WeightToShares} {
		if f(0) != 0 {
			t.Error("0 means absent and stays 0")
		}
	}
	if SharesToWeight(math.MaxUint64) != 10000 || RuntimeWeight(1) != 1 || WeightToShares(math.MaxUint64) != 262144 {
		t.Error("out of range values are not cut")
	}
}

func TestConversionsAreMonotonous(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		a, b := rapid.Int64().Draw(t, "a"), rapid.Int64().Draw(t, "b")
		if a > b {
			a, b = b, a
		}
		period := rapid.Uint64Range(1000, 1_000_000).Draw(t, "period")
		if SharesFromMilliCPU(a) > SharesFromMilliCPU(b) || MilliCPUFromShares(a) > MilliCPUFromShares(b) ||
			MilliCPUFromQuota(a, period) > MilliCPUFromQuota(b, period) ||
			a > 0 && QuotaFromMilliCPU(a, period) > QuotaFromMilliCPU(b, period) {
			t.Fatalf("more gives less between %d and %d", a, b)
		}
		weight := rapid.Uint64Range(1, 10000).Draw(t, "weight")
		if shares := WeightToShares(weight); shares < MinShares || shares > MaxShares || SharesToWeight(shares) > weight {
			t.Fatalf("weight %d gives %d shares", weight, shares)
		}
	})
}

func TestHugePageLabel(t *testing.T) {
	t.Parallel()
	for size, want := range map[int64]string{
		64 << 10: "64KB", 2 << 20: "2MB", 3 << 20: "3MB", 1 << 30: "1GB", 16 << 30: "16GB", 1536 << 10: "1536KB", 512: "512B",
	} {
		if got := HugePageLabel(size); got != want {
			t.Errorf("%d: %s, want %s", size, got, want)
		}
	}
}
