package cgroup_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/berthd/berth/managers/cgroup"
	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/workload"
)

// capture is one moment of a real kubelet 1.36.3 in a virtual machine: its pods
// and the contents of the control files. testdata/kubelet.json holds several, with
// both versions and both drivers.
type capture struct {
	Name        string
	Version     cgroup.Version
	CFSQuota    bool
	PIDsLimit   int64 `json:"podPidsLimit"`
	MemoryQoS   bool
	Policy      cgroup.ReservationPolicy
	Memory      int64
	Allocatable int64
	HugePages   []int64 `json:"hugePageSizes"`
	Pods        []capturedPod
}

type capturedPod struct {
	Name string
	Pod  workload.Pod
	// Tier is burstable, besteffort or pods.
	Tier string
	// Exclusive names the containers that own CPUs.
	Exclusive []string
	// Files are the control files of the pod's cgroup.
	Files map[string]string
	// Containers are the resources that the kubelet sent to the runtime.
	Containers map[string]criResources
}

// criResources are the runtime interface's LinuxContainerResources; a zero was
// not sent.
type criResources struct {
	Period    uint64            `json:"cpu_period"`
	Quota     int64             `json:"cpu_quota"`
	Shares    uint64            `json:"cpu_shares"`
	Memory    int64             `json:"memory_limit_in_bytes"`
	Swap      int64             `json:"memory_swap_limit_in_bytes"`
	OOM       int               `json:"oom_score_adj"`
	HugePages []criHugePages    `json:"hugepage_limits"`
	Unified   map[string]string `json:"unified"`
}

type criHugePages struct {
	Size  string `json:"page_size"`
	Limit uint64 `json:"limit"`
}

func captures(t *testing.T) []capture {
	t.Helper()
	data, err := os.ReadFile("testdata/kubelet.json")
	if err != nil {
		t.Fatal(err)
	}
	var out []capture
	if err := json.Unmarshal(data, &out); err != nil {
		t.Fatal(err)
	}
	return out
}

// config is what the captured kubelet was configured with.
func (c capture) config() cgroup.Config {
	config := cgroup.DefaultConfig(cgroup.Facts{
		Version: c.Version, PageBytes: 4096, HugePageSizes: c.HugePages, SwapLimits: true,
	})
	config.CFSQuota = c.CFSQuota
	config.PodPIDsLimit = c.PIDsLimit
	config.MemoryQoS, config.ReservationPolicy, config.ThrottlingFactor = c.MemoryQoS, c.Policy, 0.9
	config.MemoryBytes, config.AllocatableMemoryBytes = c.Memory, c.Allocatable
	return config
}

// record is the captured pod as the ledger has it.
func (p capturedPod) record(f workload.Features) *ledger.Pod {
	pod, _ := workload.Defaulted(p.Pod, f)
	r := &ledger.Pod{Pod: pod, QoS: pod.QoSClass(f)}
	for _, name := range p.Exclusive {
		r.Claims = append(r.Claims, ledger.Claim{
			Owner: ledger.Owner{Pod: pod.UID, Container: name},
			CPUs:  &ledger.CPUs{Set: cpuset.Of(1), Use: ledger.CPUExclusive},
		})
	}
	return r
}

// kernelDefaults are the files that stand in a cgroup for which nothing was
// written.
var kernelDefaults = map[cgroup.Version]map[string]string{
	cgroup.V1: {"cpu.cfs_quota_us": "-1", "cpu.cfs_period_us": "100000", "memory.limit_in_bytes": "9223372036854771712"},
	cgroup.V2: {"cpu.max": "max 100000", "memory.max": "max", "memory.min": "0", "memory.low": "0"},
}

func TestPodsAreLikeTheKubelets(t *testing.T) {
	t.Parallel()
	for _, c := range captures(t) {
		config := c.config()
		if err := config.Validate(); err != nil {
			t.Fatal(err)
		}
		for _, p := range c.Pods {
			t.Run(c.Name+"/"+p.Name, func(t *testing.T) {
				t.Parallel()
				layout, err := cgroup.NewLayout("/", cgroup.Cgroupfs)
				if err != nil {
					t.Fatal(err)
				}
				node, err := cgroup.PodNode(p.record(config.Features), layout, config)
				if err != nil {
					t.Fatal(err)
				}
				tier := map[string]string{"pods": "/kubepods", "burstable": "/kubepods/burstable", "besteffort": "/kubepods/besteffort"}
				if want := tier[p.Tier] + "/pod" + p.Pod.UID; node.Name.String() != want {
					t.Errorf("name %s, want %s", node.Name, want)
				}
				files := maps.Clone(kernelDefaults[c.Version])
				for _, f := range node.Values.Files(config.Facts) {
					files[f.Name] = f.Text
				}
				if files["memory.high"] == "max" {
					delete(files, "memory.high") // as in a new cgroup
				}
				if !maps.Equal(files, p.Files) {
					t.Errorf("files %v\nwant  %v", files, p.Files)
				}
			})
		}
	}
}

func TestContainersAreLikeTheKubelets(t *testing.T) {
	t.Parallel()
	for _, c := range captures(t) {
		config := c.config()
		for _, p := range c.Pods {
			record := p.record(config.Features)
			for _, name := range slices.Sorted(maps.Keys(p.Containers)) {
				t.Run(fmt.Sprintf("%s/%s/%s", c.Name, p.Name, name), func(t *testing.T) {
					t.Parallel()
					got := cgroup.ContainerResources(&record.Pod, record.Pod.Container(name), config,
						cgroup.ContainerExclusiveCPUs(record, name))
					c := record.Pod.Container(name)
					if got.Values.Unified["memory.high"] == "max" || c.Requests[workload.Memory]+c.Limits[workload.Memory] == 0 {
						delete(got.Values.Unified, "memory.high") // written since 1.37
					}
					compareContainer(t, got, p.Containers[name])
				})
			}
		}
	}
}

func compareContainer(t *testing.T, got cgroup.Resources, want criResources) {
	t.Helper()
	v := got.Values
	sent := criResources{
		Period: value(v.CPUPeriodUS), Quota: value(v.CPUQuotaUS), Shares: value(v.CPUShares),
		Memory: value(v.MemoryBytes), Swap: value(v.MemorySwapBytes), OOM: got.OOMScoreAdj, Unified: v.Unified,
	}
	for size, limit := range v.HugePages {
		sent.HugePages = append(sent.HugePages, criHugePages{cgroup.HugePageLabel(size), uint64(limit)})
	}
	for _, r := range []*criResources{&sent, &want} {
		slices.SortFunc(r.HugePages, func(a, b criHugePages) int { return strings.Compare(a.Size, b.Size) })
	}
	if g, w := fmt.Sprintf("%+v", sent), fmt.Sprintf("%+v", want); g != w {
		t.Errorf("got  %s\nwant %s", g, w)
	}
	if v.CPUWeight != nil && *v.CPUWeight != cgroup.RuntimeWeight(sent.Shares) {
		t.Errorf("weight %s is not the runtimes'", strconv.FormatUint(*v.CPUWeight, 10))
	}
}

func value[T any](p *T) (v T) {
	if p != nil {
		v = *p
	}
	return v
}
