package cgroup

import (
	"fmt"
	"strconv"
	"testing"

	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/workload"
)

// containerRows were computed with the formulas of Kubernetes 1.36.3 (KEP-2570,
// KEP-2400) on a node of 64 GiB with 8 GiB of swap.
var containerRows = []struct {
	name  string
	pod   workload.Pod
	ctr   int
	swap  SwapBehavior
	oom   int
	files map[string]string
}{
	{"guaranteed", pod(equal(workload.App, 2000, 4096)), 0, LimitedSwap, -997, map[string]string{
		"cpu.weight": "174", "cpu.max": "200000 100000", "memory.max": "4294967296", "memory.min": "4294967296", "memory.swap.max": "0"}},
	{"no limits", pod(ctr(workload.App, 500, 256, no, no)), 0, LimitedSwap, 997, map[string]string{
		"cpu.weight": "59", "memory.low": "268435456", "memory.high": "59941634048", "memory.swap.max": "33554432"}},
	{"burstable", pod(ctr(workload.App, 250, 128, 1000, 512)), 0, LimitedSwap, 999, map[string]string{
		"cpu.weight": "35", "cpu.max": "100000 100000", "memory.max": "536870912", "memory.low": "134217728", "memory.high": "496603136",
		"memory.swap.max": "16777216"}},
	{"nothing, in a burstable pod", pod(ctr(workload.App, 250, 128, 1000, 512), workload.Container{}), 1, LimitedSwap, 999,
		map[string]string{
			"cpu.weight": "1", "memory.min": "0", "memory.low": "0", "memory.high": "59914792960", "memory.swap.max": "0"}},
	{"best effort", pod(workload.Container{}), 0, LimitedSwap, 1000, map[string]string{
		"cpu.weight": "1", "memory.min": "0", "memory.low": "0", "memory.high": "59914792960", "memory.swap.max": "0"}},
	{"overhead is not the container's", withOverhead(pod(equal(workload.App, 1000, 1024)), 250, 120), 0, NoSwap, -997, map[string]string{
		"cpu.weight": "100", "cpu.max": "100000 100000", "memory.max": "1073741824", "memory.min": "1073741824", "memory.swap.max": "0"}},
	{"takes the pod's limits", withPodLevel(pod(workload.Container{}, workload.Container{}), amounts(2000, 2048, no),
		amounts(2000, 2048, no)), 1,
		NoSwap, -997, map[string]string{"cpu.weight": "174", "cpu.max": "200000 100000", "memory.max": "2147483648", "memory.min": "0",
			"memory.low": "0", "memory.swap.max": "0"}},
	{"shares what the pod requests beyond its containers", withPodLevel(pod(ctr(workload.App, 500, 512, no, no), workload.Container{}),
		amounts(1000, 1024, no), amounts(2000, 2048, no)), 0, LimitedSwap, 989, map[string]string{
		"cpu.weight": "59", "cpu.max": "200000 100000", "memory.max": "2147483648", "memory.low": "536870912",
		"memory.swap.max": "67108864"}},
	{"weighs as much as the pod's limit", withPodLevel(pod(ctr(workload.App, 500, 512, no, no), workload.Container{}),
		amounts(1000, 1024, no), amounts(2000, 2048, no)), 1, LimitedSwap, 997, map[string]string{
		"cpu.weight": "174", "cpu.max": "200000 100000", "memory.max": "2147483648", "memory.min": "0", "memory.low": "0",
		"memory.swap.max": "0"}},
	{"own huge pages before the pod's", withPodLevel(withPages(pod(ctr(workload.App, no, 64, no, 64)), 64), amounts(1000, 1024, 256),
		amounts(1000, 1024, 256)),
		0, NoSwap, -997, map[string]string{"cpu.weight": "100", "cpu.max": "100000 100000", "memory.max": "67108864",
			"memory.min":      "67108864",
			"hugetlb.2MB.max": "67108864", "memory.swap.max": "0"}},
	{"a sidecar outlives the smallest app container", pod(ctr(workload.Sidecar, no, 64, no, no), ctr(workload.App, no, 1024, no, no)),
		0, NoSwap, 985, map[string]string{"cpu.weight": "1", "memory.low": "67108864", "memory.high": "59921502208",
			"memory.swap.max": "0"}},
}

func TestContainerResources(t *testing.T) {
	t.Parallel()
	for _, row := range containerRows {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			c := exampleConfig()
			c.SwapBehavior = row.swap
			got := ContainerResources(&row.pod, &row.pod.Containers[row.ctr], c, false)
			if got.OOMScoreAdj != row.oom {
				t.Errorf("oom_score_adj %d, want %d", got.OOMScoreAdj, row.oom)
			}
			want := map[string]string{"hugetlb.2MB.max": "0", "hugetlb.1GB.max": "0", "memory.oom.group": "1", "cpu.max": "max 100000",
				"memory.high": "max"}
			for file, text := range row.files {
				want[file] = text
			}
			expectFiles(t, got.Values, c.Facts, want)
		})
	}
}

func TestContainerSwitches(t *testing.T) {
	t.Parallel()
	p := pod(equal(workload.App, 2000, 64))
	c := exampleConfig()
	if v := ContainerResources(&p, &p.Containers[0], c, true).Values; *v.CPUQuotaUS != Unlimited || *v.CPUPeriodUS != DefaultPeriodUS {
		t.Errorf("with exclusive CPUs: quota %d, period %d", *v.CPUQuotaUS, *v.CPUPeriodUS)
	}
	c.CFSQuota = false
	if v := ContainerResources(&p, &p.Containers[0], c, false).Values; v.CPUQuotaUS != nil || v.CPUPeriodUS != nil {
		t.Error("a quota although quotas are off")
	}
	c.Facts.Version = V1
	v := ContainerResources(&p, &p.Containers[0], c, false).Values
	if v.CPUWeight != nil || v.Unified != nil || v.MemorySwapBytes == nil || *v.MemorySwapBytes != 64*mi {
		t.Errorf("on v1: weight %v, unified %v, memory and swap %v", v.CPUWeight, v.Unified, v.MemorySwapBytes)
	}
}

func TestOOMScore(t *testing.T) {
	t.Parallel()
	nodeCritical := pod(ctr(workload.App, 100, 64, no, no))
	priority := int32(criticalPriority + 1000)
	nodeCritical.Priority, nodeCritical.PriorityClassName = &priority, nodeCriticalClass
	static := nodeCritical
	static.Priority, static.Annotations = nil, map[string]string{workload.SourceAnnotation: "file"}
	fromAPI := static
	fromAPI.Annotations = map[string]string{workload.SourceAnnotation: workload.FromAPIServer}
	for _, row := range []struct {
		name   string
		pod    workload.Pod
		memory int64
		want   int
	}{
		{"node critical", nodeCritical, 64 * gi, -997},
		{"static and node critical", static, 64 * gi, -997},
		{"the class alone is not enough", fromAPI, 64 * gi, 999},
		{"request above the machine", pod(ctr(workload.App, no, 1024, no, no)), mi, 3},
		{"request as large as the machine", pod(ctr(workload.App, no, 1024, no, no)), gi, 3},
		{"half of the machine", pod(ctr(workload.App, no, 512, no, no)), gi, 500},
		{"no memory request", pod(ctr(workload.App, 100, no, no, no)), gi, 999},
		{"unknown machine", pod(ctr(workload.App, 100, 64, no, no)), 0, 1000},
	} {
		c := exampleConfig()
		c.MemoryBytes = row.memory
		if got := ContainerResources(&row.pod, &row.pod.Containers[0], c, false).OOMScoreAdj; got != row.want {
			t.Errorf("%s: %d, want %d", row.name, got, row.want)
		}
	}
}

func TestMemoryHigh(t *testing.T) {
	t.Parallel()
	for _, row := range []struct{ request, limit, allocatable, podLimit, want int64 }{
		{request: 128 * mi, limit: 512 * mi, want: 496603136}, {request: 256 * mi, want: 59941634048}, {limit: 512 * mi, want: 483180544},
		{request: mi, limit: mi}, {want: 59914792960}, {request: 70 * gi}, {request: 4095, limit: 4096},
		{request: mi, allocatable: -1}, {allocatable: -1},
		// The pod's cgroup is throttled.
		{request: mi, podLimit: gi}, {podLimit: gi}, {request: mi, limit: 512 * mi, podLimit: gi, want: 483287040},
	} {
		c := exampleConfig()
		if row.allocatable < 0 {
			c.AllocatableMemoryBytes = 0
		}
		ctr := workload.Container{Requests: workload.Quantities{workload.Memory: row.request},
			Limits: workload.Quantities{workload.Memory: row.limit}}
		p := workload.Pod{Containers: []workload.Container{ctr}}
		if row.podLimit > 0 {
			p.Resources = &workload.Resources{Limits: workload.Quantities{workload.Memory: row.podLimit}}
		}
		want := "max"
		if row.want > 0 {
			want = strconv.FormatInt(row.want, 10)
		}
		if got := ContainerResources(&p, &p.Containers[0], c, false).Values.Unified[fileMemoryHigh]; got != want {
			t.Errorf("%+v: %q, want %q", row, got, want)
		}
		c.ThrottlingFactor = 0
		if got := ContainerResources(&p, &p.Containers[0], c, false).Values.Unified[fileMemoryHigh]; got != "max" {
			t.Errorf("%+v without a factor: %q", row, got)
		}
		c.MemoryQoS = false
		if got := ContainerResources(&p, &p.Containers[0], c, false).Values.Unified[fileMemoryHigh]; got != "max" {
			t.Errorf("%+v without memory QoS: %q", row, got)
		}
	}
}

// TestMemoryHighOfPods: only pods with pod-level resources and a memory limit are throttled as a whole.
func TestMemoryHighOfPods(t *testing.T) {
	t.Parallel()
	amount := func(mi int64) workload.Quantities { return workload.Quantities{workload.Memory: mi << 20} }
	limited := workload.Container{Requests: amount(128), Limits: amount(512)}
	layout, err := NewLayout("/", Cgroupfs)
	if err != nil {
		t.Fatal(err)
	}
	for _, row := range []struct {
		name       string
		resources  *workload.Resources
		containers []workload.Container
		want       string
	}{
		{"no pod level", nil, []workload.Container{limited}, ""},
		{"a limit of the pod", &workload.Resources{Requests: amount(128), Limits: amount(512)}, []workload.Container{{}}, "496603136"},
		{"equal", &workload.Resources{Requests: amount(512), Limits: amount(512)}, []workload.Container{{}}, ""},
		{"only a request, containers are limited", &workload.Resources{Requests: amount(128)}, []workload.Container{limited}, "496603136"},
		{"only a request", &workload.Resources{Requests: amount(128)}, []workload.Container{limited, {}}, ""},
	} {
		c := exampleConfig()
		p := workload.Pod{Resources: row.resources, Containers: row.containers}
		if got := PodValues(&p, c, false).Unified[fileMemoryHigh]; got != row.want {
			t.Errorf("%s: %q, want %q", row.name, got, row.want)
		}
		c.ThrottlingFactor = 0
		if got, throttled := PodValues(&p, c, false).Unified[fileMemoryHigh]; throttled {
			t.Errorf("%s without a factor: %q", row.name, got)
		}
		// Its cgroup is no longer throttled, either.
		reset := ""
		if row.resources != nil {
			reset = "max"
		}
		p.UID = "u"
		node, err := PodNode(&ledger.Pod{Pod: p}, layout, c)
		if got := node.Values.Unified[fileMemoryHigh]; err != nil || got != reset {
			t.Errorf("%s: the cgroup has %q, %v, want %q", row.name, got, err, reset)
		}
	}
}

func TestSwapIsForBurstableOnly(t *testing.T) {
	t.Parallel()
	c := exampleConfig()
	c.SwapBehavior = LimitedSwap
	p := pod(ctr(workload.App, no, 64*1024+1, no, no), equal(workload.App, no, 64))
	for i, why := range []string{"request above the machine's memory", "request equals limit"} {
		if got := c.swapBytes(&p, &p.Containers[i], workload.Burstable); got != 0 {
			t.Errorf("%s: %d bytes of swap, want none", why, got)
		}
	}
	files := ContainerResources(&p, &p.Containers[0], c, false).Values.Unified
	if files[fileSwapMax] != "0" {
		t.Errorf("%s = %s", fileSwapMax, fmt.Sprint(files[fileSwapMax]))
	}
}
