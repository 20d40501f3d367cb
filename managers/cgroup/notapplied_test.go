package cgroup

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
)

func TestNotApplied(t *testing.T) {
	t.Parallel()
	all := Values{
		CPUShares: new(uint64(2)), CPUWeight: new(uint64(3)), CPUQuotaUS: new(int64(1000)), CPUPeriodUS: new(uint64(1000)),
		MemoryBytes: new(int64(1 << 20)), MemorySwapBytes: new(int64(1 << 20)), PIDs: new(int64(5)),
		HugePages: map[int64]int64{2 << 20: 0, 1 << 30: 0}, Unified: map[string]string{"memory.min": "0", "memory.swap.max": "0"},
	}
	for _, tt := range []struct {
		version Version
		swap    bool
		huge    []int64
		want    []string
	}{
		{V1, true, []int64{2 << 20, 1 << 30}, []string{"cpu_weight", `unified["memory.min"]`, `unified["memory.swap.max"]`}},
		{V1, false, nil, []string{
			"cpu_weight", "memory_swap_limit_bytes", "hugepage_limits", "hugepage_limits", `unified["memory.min"]`,
			`unified["memory.swap.max"]`,
		}},
		{V2, true, []int64{2 << 20}, []string{"cpu_shares", "memory_swap_limit_bytes", "hugepage_limits"}},
		{V2, false, []int64{2 << 20, 1 << 30}, []string{"cpu_shares", "memory_swap_limit_bytes", `unified["memory.swap.max"]`}},
	} {
		var got []string
		for _, n := range all.NotApplied(Facts{Version: tt.version, SwapLimits: tt.swap, HugePageSizes: tt.huge}) {
			if got = append(got, n.Field); n.Why == "" {
				t.Errorf("%s: nobody says why", n.Field)
			}
		}
		if !reflect.DeepEqual(got, tt.want) {
			t.Errorf("v%d, swap %t, huge pages %v: %q, want %q", tt.version, tt.swap, tt.huge, got, tt.want)
		}
	}
	shares := Values{CPUShares: new(uint64(1024))}
	if got := shares.NotApplied(Facts{Version: V2}); got != nil {
		t.Errorf("shares become a weight on v2: %v", got)
	}
}

// TestWhatIsAppliedHasAFile: a value by itself is in a file, or it is not applied.
func TestWhatIsAppliedHasAFile(t *testing.T) {
	t.Parallel()
	single := []Values{
		{CPUShares: new(uint64(2))}, {CPUWeight: new(uint64(3))}, {CPUQuotaUS: new(int64(1000))}, {CPUPeriodUS: new(uint64(1000))},
		{MemoryBytes: new(int64(1 << 20))}, {MemorySwapBytes: new(int64(1 << 20))}, {PIDs: new(int64(0))},
		{HugePages: map[int64]int64{2 << 20: 0}},
		{HugePages: map[int64]int64{4096: 0}}, {Unified: map[string]string{"memory.min": "0"}},
		{Unified: map[string]string{"memory.swap.max": "0"}},
	}
	for _, version := range []Version{V1, V2} {
		for _, swap := range []bool{false, true} {
			for _, sizes := range [][]int64{nil, {2 << 20}} {
				facts := Facts{Version: version, SwapLimits: swap, HugePageSizes: sizes, PageBytes: 4096}
				for i, v := range single {
					files, missing := v.Files(facts), v.NotApplied(facts)
					if (len(files) == 0) != (len(missing) == 1) {
						t.Errorf("value %d on %+v: files %v, not applied %v", i, facts, files, missing)
					}
					if slices.ContainsFunc(missing, func(n NotApplied) bool { return strings.Contains(fmt.Sprint(n), "%!") }) {
						t.Errorf("%v", missing)
					}
				}
			}
		}
	}
}
