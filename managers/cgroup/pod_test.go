package cgroup

import (
	"fmt"
	"maps"
	"strings"
	"testing"

	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/workload"
)

const (
	mi = int64(1) << 20
	gi = int64(1) << 30
)

// amounts are cpu in milli-CPU, memory and 2 MiB pages in MiB; -1 is absent.
func amounts(cpu, memory, pages int64) workload.Quantities {
	q := workload.Quantities{}
	for r, n := range map[workload.Resource]int64{workload.CPU: cpu, workload.Memory: memory * mi, "hugepages-2Mi": pages * mi} {
		if n >= 0 {
			q[r] = n
		}
	}
	return q
}

const no = int64(-1)

// ctr is a container with requests and limits in cpu and memory.
func ctr(role workload.Role, cpu, memory, cpuLimit, memoryLimit int64) workload.Container {
	return workload.Container{Role: role, Requests: amounts(cpu, memory, no), Limits: amounts(cpuLimit, memoryLimit, no)}
}

// equal is a container whose limits are its requests.
func equal(role workload.Role, cpu, memory int64) workload.Container {
	return ctr(role, cpu, memory, cpu, memory)
}

func pod(containers ...workload.Container) workload.Pod {
	for i := range containers {
		containers[i].Name = fmt.Sprintf("c%d", i)
	}
	return workload.Pod{UID: "u", Containers: containers}
}

func withOverhead(p workload.Pod, cpu, memory int64) workload.Pod {
	p.Overhead = amounts(cpu, memory, no)
	return p
}

func withPodLevel(p workload.Pod, requests, limits workload.Quantities) workload.Pod {
	p.Resources = &workload.Resources{Requests: requests, Limits: limits}
	return p
}

func withPages(p workload.Pod, pages int64) workload.Pod {
	p.Containers[0].Requests["hugepages-2Mi"], p.Containers[0].Limits["hugepages-2Mi"] = pages*mi, pages*mi
	return p
}

// exampleConfig is the node of the examples: 64 GiB with 2 GiB reserved.
func exampleConfig() Config {
	c := DefaultConfig(Facts{Version: V2, PageBytes: 4096, HugePageSizes: []int64{2 * mi, gi}, SwapLimits: true})
	c.PodPIDsLimit = 1024
	c.ReservationPolicy, c.ThrottlingFactor = ReserveTiered, 0.9
	c.MemoryBytes, c.AllocatableMemoryBytes, c.SwapBytes = 64*gi, 62*gi, 8*gi
	return c
}

// podRows were computed with the code of Kubernetes 1.37.2. Of each file: -1 means
// that it is not written.
var podRows = []struct {
	name                          string
	pod                           workload.Pod
	shares, weight, quota, memory int64
	minimum, low, pages           int64
}{
	{"guaranteed", pod(equal(workload.App, 2000, 4096)), 2048, 79, 200000, 4 * gi, 4 * gi, no, 0},
	{"two containers", pod(equal(workload.App, 1500, 1024), equal(workload.App, 255, 512)), 1797, 69, 175500, 1536 * mi, 1536 * mi, no, 0},
	{"smallest quota", pod(equal(workload.App, 5, 16)), 5, 1, 1000, 16 * mi, 16 * mi, no, 0},
	{"no limits", pod(ctr(workload.App, 500, 256, no, no)), 512, 20, no, no, no, 256 * mi, 0},
	{"burstable", pod(ctr(workload.App, 250, 128, 1000, 512)), 256, 10, 100000, 512 * mi, no, 128 * mi, 0},
	{"one container without anything", pod(ctr(workload.App, 250, 128, 1000, 512), workload.Container{}), 256, 10, no, no, no, 128 * mi, 0},
	{"memory limit only", pod(ctr(workload.App, 100, 64, no, 128)), 102, 4, no, 128 * mi, no, 64 * mi, 0},
	{"best effort", pod(workload.Container{}), 2, 1, no, no, no, no, 0},
	{"best effort with overhead", withOverhead(pod(workload.Container{}), 250, 120), 2, 1, no, no, no, 120 * mi, 0},
	{"huge pages", withPages(pod(ctr(workload.App, 100, 128, no, 256)), 64), 102, 4, no, 256 * mi, no, 128 * mi, 64 * mi},
	{"overhead", withOverhead(pod(equal(workload.App, 1000, 1024)), 250, 120), 1280, 49, 125000, 1144 * mi, 1144 * mi, no, 0},
	{"large init container", pod(equal(workload.Init, 2000, 1024), equal(workload.App, 500, 256)), 2048, 79, 200000, gi, gi, no, 0},
	{"sidecar before init container", pod(equal(workload.Sidecar, 200, 128), equal(workload.Init, 1000, 512),
		equal(workload.App, 500, 256)),
		1228, 47, 120000, 640 * mi, 640 * mi, no, 0},
	{"unlimited init container", pod(ctr(workload.Init, 50, no, no, no), ctr(workload.App, 500, 256, 1000, 512)), 512, 20, no, no, no,
		256 * mi, 0},
	{"pod level only", withPodLevel(pod(workload.Container{}, workload.Container{}), amounts(2000, 2048, no), amounts(2000, 2048, no)),
		2048, 79, 200000, 2 * gi, 2 * gi, no, 0},
	{"pod level above containers", withPodLevel(pod(ctr(workload.App, 500, 512, no, no), workload.Container{}), amounts(1000, 1024, no),
		amounts(2000, 2048, no)),
		1024, 39, 200000, 2 * gi, no, gi, 0},
	{"pod level cpu, container memory", withPodLevel(pod(ctr(workload.App, no, 128, no, 256)), amounts(500, no, no), amounts(1000, no, no)),
		512, 20, 100000, 256 * mi, no, 128 * mi, 0},
	{"more CPUs than shares can say", pod(equal(workload.App, 300_000, 16384)), 262144, 10000, 30000000, 16 * gi, 16 * gi, no, 0},
	{"one thousandth", pod(ctr(workload.App, 1, 64, 1, 128)), 2, 1, 1000, 128 * mi, no, 64 * mi, 0},
	{"pod level huge pages", withPodLevel(withPages(pod(ctr(workload.App, no, 64, no, 64)), 64), amounts(1000, 1024, 256),
		amounts(1000, 1024, 256)),
		1024, 39, 100000, gi, gi, no, 256 * mi},
	{"unlimited sidecar", pod(ctr(workload.Sidecar, 100, 64, no, no), ctr(workload.App, 500, 256, 1000, 512)), 614, 24, no, no, no,
		320 * mi, 0},
	{"unlimited init container after a limited sidecar", pod(ctr(workload.Sidecar, 100, 64, 200, 128),
		workload.Container{Role: workload.Init},
		ctr(workload.App, 500, 256, 1000, 512)), 614, 24, no, no, no, 320 * mi, 0},
	{"overhead on a limit that is there", withOverhead(pod(ctr(workload.App, 100, 64, 500, no)), 250, 120), 358, 14, 75000, no, no,
		184 * mi, 0},
}

func TestPodValues(t *testing.T) {
	t.Parallel()
	for _, row := range podRows {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			c := exampleConfig()
			c.ThrottlingFactor = 0
			want := map[string]string{
				"cpu.weight": fmt.Sprint(row.weight), "pids.max": "1024",
				"hugetlb.2MB.max": fmt.Sprint(row.pages), "hugetlb.1GB.max": "0",
			}
			for file, n := range map[string]int64{"memory.max": row.memory, "memory.min": row.minimum, "memory.low": row.low} {
				if n != no {
					want[file] = fmt.Sprint(n)
				}
			}
			if row.quota != no {
				want["cpu.max"] = fmt.Sprintf("%d 100000", row.quota)
			}
			expectFiles(t, PodValues(&row.pod, c, false), c.Facts, want)
			if row.quota != no {
				want["cpu.max"] = "max 100000"
			}
			expectFiles(t, PodValues(&row.pod, c, true), c.Facts, want)

			c.Facts.Version = V1
			want = map[string]string{
				"cpu.shares": fmt.Sprint(row.shares), "pids.max": "1024",
				"hugetlb.2MB.limit_in_bytes": fmt.Sprint(row.pages), "hugetlb.1GB.limit_in_bytes": "0",
			}
			if row.quota != no {
				want["cpu.cfs_quota_us"], want["cpu.cfs_period_us"] = fmt.Sprint(row.quota), "100000"
			}
			if row.memory != no {
				want["memory.limit_in_bytes"] = fmt.Sprint(row.memory)
			}
			expectFiles(t, PodValues(&row.pod, c, false), c.Facts, want)
		})
	}
}

func expectFiles(t *testing.T, v Values, f Facts, want map[string]string) {
	t.Helper()
	got := map[string]string{}
	for _, file := range v.Files(f) {
		got[file.Name] = file.Text
	}
	if !maps.Equal(got, want) {
		t.Errorf("v%d files %v\nwant     %v", f.Version, got, want)
	}
}

// A given class counts, whatever the containers request; a limit of 0
// is then present and means nothing.
func TestHandedInClass(t *testing.T) {
	t.Parallel()
	p := pod(workload.Container{})
	p.QoS = workload.Guaranteed
	v := PodValues(&p, exampleConfig(), false)
	if v.MemoryBytes == nil || *v.MemoryBytes != 0 || v.CPUQuotaUS == nil || *v.CPUQuotaUS != 0 {
		t.Errorf("limits of a Guaranteed pod without any: %v, %v; want zeros", v.MemoryBytes, v.CPUQuotaUS)
	}
	for _, f := range v.Files(exampleConfig().Facts) {
		if f.Name == "memory.max" {
			t.Errorf("a zero was turned into %s = %s", f.Name, f.Text)
		}
	}
}

func TestHugePagesOfEqualSizeAddUp(t *testing.T) {
	t.Parallel()
	p := pod(workload.Container{Requests: workload.Quantities{
		"hugepages-2Mi": 4 * mi, "hugepages-2048Ki": 6 * mi, "hugepages-": mi, "hugepages-64Ki": 64 << 10,
	}})
	v := PodValues(&p, exampleConfig(), false)
	want := map[int64]int64{2 * mi: 10 * mi, gi: 0, 64 << 10: 64 << 10}
	if !maps.Equal(v.HugePages, want) {
		t.Errorf("limits %v, want %v", v.HugePages, want)
	}
	if got := v.For(exampleConfig().Facts).HugePages; !maps.Equal(got, map[int64]int64{2 * mi: 10 * mi, gi: 0}) {
		t.Errorf("a size that the tree does not know is kept: %v", got)
	}
}

func TestExclusiveCPUs(t *testing.T) {
	t.Parallel()
	claim := func(container string, use ledger.CPUUse) ledger.Claim {
		return ledger.Claim{Owner: ledger.Owner{Pod: "u", Container: container}, CPUs: &ledger.CPUs{Set: cpuset.Of(1), Use: use}}
	}
	ordinary := pod(equal(workload.App, 1000, 64), equal(workload.App, 1000, 64))
	whole := withPodLevel(ordinary, amounts(4000, 64, no), amounts(4000, 64, no))
	managers := workload.Features{PodLevelResources: true, PodLevelResourceManagers: true}
	for _, row := range []struct {
		name     string
		pod      workload.Pod
		features workload.Features
		claims   []ledger.Claim
		want     bool
	}{
		{"none", ordinary, managers, nil, false},
		{"one is enough", ordinary, managers, []ledger.Claim{claim("c1", ledger.CPUExclusive)}, true},
		{"one of two in a pod with a set of its own", whole, managers, []ledger.Claim{claim("c1", ledger.CPUPodExclusive)}, false},
		{"both in a pod with a set of its own", whole, managers,
			[]ledger.Claim{claim("c0", ledger.CPUPodExclusive), claim("c1", ledger.CPUPodExclusive)}, true},
		{"shared part of the pod's set", whole, managers, []ledger.Claim{claim("c0", ledger.CPUPodShared),
			claim("c1", ledger.CPUPodShared)}, false},
		{"pod level without its managers", whole, workload.Features{PodLevelResources: true},
			[]ledger.Claim{claim("c1", ledger.CPUExclusive)}, true},
	} {
		if got := ExclusiveCPUs(&ledger.Pod{Pod: row.pod, Claims: row.claims}, row.features); got != row.want {
			t.Errorf("%s: %t, want %t", row.name, got, row.want)
		}
	}
}

func TestConfigValidate(t *testing.T) {
	t.Parallel()
	for _, v := range []Version{V1, V2} {
		if err := DefaultConfig(Facts{Version: v}).Validate(); err != nil {
			t.Errorf("defaults on v%d: %v", v, err)
		}
	}
	for field, change := range map[string]func(*Config){
		"cpuCFSQuotaPeriod":       func(c *Config) { c.PeriodUS = 999 },
		"memoryReservationPolicy": func(c *Config) { c.ReservationPolicy = "All" },
		"memoryThrottlingFactor":  func(c *Config) { c.ThrottlingFactor = 1.1 },
		"memorySwap.swapBehavior": func(c *Config) { c.SwapBehavior = LimitedSwap },
		"singleProcessOOMKill":    func(c *Config) { c.SingleProcessOOMKill = false },
	} {
		c := DefaultConfig(Facts{Version: V1})
		change(&c)
		err := c.Validate()
		if errdefs.ClassOf(err) != errdefs.Invalid || err == nil || !strings.Contains(err.Error(), field) {
			t.Errorf("%s: %v, want class invalid with the field", field, err)
		}
	}
	c := DefaultConfig(Facts{Version: V2})
	c.MemoryQoS, c.ReservationPolicy = false, ReserveTiered
	if err := c.Validate(); err == nil {
		t.Error("a reservation policy without its gate was accepted")
	}
}
