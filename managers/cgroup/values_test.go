package cgroup

import (
	"maps"
	"reflect"
	"testing"

	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/workload"
)

func TestOnly(t *testing.T) {
	t.Parallel()
	v := Values{CPUShares: new(uint64(2)), CPUQuotaUS: new(int64(1000)), MemoryBytes: new(int64(1)), PIDs: new(int64(7))}
	cpu, err := v.Only("cpu")
	if err != nil || cpu.CPUShares == nil || cpu.CPUQuotaUS == nil || cpu.MemoryBytes != nil || cpu.PIDs != nil {
		t.Errorf("cpu: %+v, %v", cpu, err)
	}
	memory, err := v.Only("memory")
	if err != nil || memory.MemoryBytes == nil || memory.CPUShares != nil || memory.PIDs != nil {
		t.Errorf("memory: %+v, %v", memory, err)
	}
	if all, err := v.Only(""); err != nil || all.PIDs == nil {
		t.Errorf("all: %+v, %v", all, err)
	}
	for _, resource := range []string{"pids", "ephemeral-storage"} {
		if _, err := v.Only(resource); errdefs.ClassOf(err) != errdefs.Unsupported {
			t.Errorf("%s: %v", resource, err)
		}
	}
}

// TestEveryValueIsCompared: what differs in any one field is not equal, also where
// that is absent on one side.
func TestEveryValueIsCompared(t *testing.T) {
	t.Parallel()
	full := func() Values {
		return Values{
			CPUShares: new(uint64(1)), CPUWeight: new(uint64(2)), CPUQuotaUS: new(int64(3)), CPUPeriodUS: new(uint64(4)),
			MemoryBytes: new(int64(5)), MemorySwapBytes: new(int64(6)), PIDs: new(int64(7)),
			HugePages: map[int64]int64{8: 9}, Unified: map[string]string{"a": "b"}, Frozen: new(true),
			Cpuset: Cpuset{CPUs: cpuset.Of(1, 300), Mems: 1},
		}
	}
	a, b := full(), full()
	if !a.Equal(&b) || !b.Equal(&a) {
		t.Error("equal values are not equal")
	}
	others := Values{
		CPUShares: new(uint64(0)), CPUWeight: new(uint64(0)), CPUQuotaUS: new(int64(0)), CPUPeriodUS: new(uint64(0)),
		MemoryBytes: new(int64(0)), MemorySwapBytes: new(int64(0)), PIDs: new(int64(0)),
		HugePages: map[int64]int64{8: 0}, Unified: map[string]string{"a": ""}, Frozen: new(false),
		Cpuset: Cpuset{CPUs: cpuset.Of(1, 301), Mems: 1},
	}
	for i := range reflect.TypeFor[Values]().NumField() {
		name := reflect.TypeFor[Values]().Field(i).Name
		for _, value := range []reflect.Value{reflect.ValueOf(others).Field(i), reflect.Zero(reflect.TypeFor[Values]().Field(i).Type)} {
			b := full()
			reflect.ValueOf(&b).Elem().Field(i).Set(value)
			if a.Equal(&b) || b.Equal(&a) {
				t.Errorf("%s is not compared with %v", name, value)
			}
		}
	}
}

// TestForLeavesTheValuesAlone: maps are shared only where nothing changes in them.
func TestForLeavesTheValuesAlone(t *testing.T) {
	t.Parallel()
	for _, f := range []Facts{
		{Version: V1, PageBytes: 4096, HugePageSizes: []int64{1 << 21}},
		{Version: V2, PageBytes: 4096, HugePageSizes: []int64{1 << 21}},
		{Version: V2, PageBytes: 4096, HugePageSizes: []int64{1 << 21, 1 << 30}, SwapLimits: true},
	} {
		v := Values{
			HugePages: map[int64]int64{1 << 21: 3<<21 + 1, 1 << 30: 1 << 30},
			Unified:   map[string]string{fileMemoryMin: "4097", fileSwapMax: "0", "memory.oom.group": "1"},
		}
		before := v.Clone()
		got := v.For(f)
		if !v.Equal(&before) {
			t.Errorf("%+v: For has made %v of %v", f, v, before)
		}
		if again := got.For(f); !again.Equal(&got) {
			t.Errorf("%+v: once more gives %v, not %v", f, again, got)
		}
		want := map[int64]int64{1 << 21: 3 << 21}
		if len(f.HugePageSizes) > 1 {
			want[1<<30] = 1 << 30
		}
		if !maps.Equal(got.HugePages, want) {
			t.Errorf("%+v: huge pages are %v, want %v", f, got.HugePages, want)
		}
		texts := map[string]string{fileMemoryMin: "4096", "memory.oom.group": "1"}
		if f.SwapLimits {
			texts[fileSwapMax] = "0"
		}
		if f.Version == V1 {
			texts = nil
		}
		if !maps.Equal(got.Unified, texts) {
			t.Errorf("%+v: files are %v, want %v", f, got.Unified, texts)
		}
	}
}

func TestValuesInMilliCPU(t *testing.T) {
	t.Parallel()
	tests := []struct {
		values         Values
		request, limit int64
	}{
		{Values{}, 0, 0},
		{Values{CPUShares: new(uint64(1024))}, 1000, 0},
		{Values{CPUWeight: new(uint64(39))}, 975, 0},
		{Values{CPUQuotaUS: new(int64(50000)), CPUPeriodUS: new(uint64(100000))}, 0, 500},
		{Values{CPUQuotaUS: new(Unlimited), CPUPeriodUS: new(uint64(100000))}, 0, 0},
		{Values{CPUQuotaUS: new(int64(50000))}, 0, 0},
	}
	for _, tt := range tests {
		if request, limit := tt.values.MilliCPU(); request != tt.request || limit != tt.limit {
			t.Errorf("%+v: %d and %d, want %d and %d", tt.values, request, limit, tt.request, tt.limit)
		}
	}
}

func TestMaySwap(t *testing.T) {
	t.Parallel()
	c := DefaultConfig(Facts{Version: V2, SwapLimits: true})
	c.SwapBehavior = LimitedSwap
	ctr := workload.Container{Name: "c", Requests: workload.Quantities{workload.Memory: 1}}
	pod := &workload.Pod{UID: "a", QoS: workload.Burstable, Containers: []workload.Container{ctr}}
	if !MaySwap(pod, &ctr, c) {
		t.Error("a Burstable container under LimitedSwap may swap")
	}
	for name, change := range map[string]func(*Config, *workload.Pod, *workload.Container){
		"no swap":           func(c *Config, _ *workload.Pod, _ *workload.Container) { c.SwapBehavior = NoSwap },
		"v1":                func(c *Config, _ *workload.Pod, _ *workload.Container) { c.Facts.Version = V1 },
		"no limits":         func(c *Config, _ *workload.Pod, _ *workload.Container) { c.Facts.SwapLimits = false },
		"guaranteed":        func(_ *Config, p *workload.Pod, _ *workload.Container) { p.QoS = workload.Guaranteed },
		"critical":          func(_ *Config, p *workload.Pod, _ *workload.Container) { p.Priority = new(int32(2_000_000_000)) },
		"request and limit": func(_ *Config, _ *workload.Pod, c *workload.Container) { c.Limits = c.Requests },
	} {
		c, p, ctr := c, *pod, ctr
		change(&c, &p, &ctr)
		if MaySwap(&p, &ctr, c) {
			t.Errorf("%s: it may swap", name)
		}
	}
}

// systemd keeps quotas in whole percents of a CPU.
func TestQuotasUnderSystemd(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		quota, want      int64
		period, wantedUS uint64
	}{
		{175500, 176000, 100000, 100000}, {100000, 100000, 100000, 100000}, {1000, 1000, 100000, 100000}, {1001, 2000, 100000, 100000},
		{1000, 1020, 3000, 3000}, {Unlimited, Unlimited, 10000, DefaultPeriodUS},
	} {
		v := Values{CPUQuotaUS: new(tt.quota), CPUPeriodUS: new(tt.period)}
		for version, f := range map[string]Facts{"v1": {Version: V1, Driver: Systemd}, "v2": {Version: V2, Driver: Systemd}} {
			got := v.For(f)
			if *got.CPUQuotaUS != tt.want || *got.CPUPeriodUS != tt.wantedUS {
				t.Errorf("%s, %d/%d: %d/%d, want %d/%d", version, tt.quota, tt.period, *got.CPUQuotaUS, *got.CPUPeriodUS, tt.want,
					tt.wantedUS)
			}
			if again := got.For(f); *again.CPUQuotaUS != *got.CPUQuotaUS {
				t.Errorf("%s, %d/%d: rounded twice: %d, %d", version, tt.quota, tt.period, *got.CPUQuotaUS, *again.CPUQuotaUS)
			}
		}
		if got := v.For(Facts{Version: V2, Driver: Cgroupfs}); *got.CPUQuotaUS != tt.quota {
			t.Errorf("without systemd %d becomes %d", tt.quota, *got.CPUQuotaUS)
		}
	}
}
