package policy

import (
	"maps"
	"reflect"
	"strings"
	"testing"

	"github.com/containerd/nri/pkg/api"

	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/managers/workload"
)

// TestSharesAreInverted goes through every request up to 300 CPUs as the kubelet
// turns it into shares.
func TestSharesAreInverted(t *testing.T) {
	t.Parallel()
	for milli := int64(3); milli <= 300_000; milli++ {
		r := &api.LinuxResources{Cpu: &api.LinuxCPU{
			Shares: api.UInt64(uint64(milli * 1024 / 1000)),
			Quota:  api.Int64(milli * 100), Period: api.UInt64(uint64(100_000)),
		}}
		if got := milliRequest(r); got != milli {
			t.Fatalf("a request of %dm is rebuilt as %dm", milli, got)
		}
		if got := milliLimit(r); got != milli {
			t.Fatalf("a limit of %dm is rebuilt as %dm", milli, got)
		}
	}
}

func TestRebuilt(t *testing.T) {
	t.Parallel()
	cpu := func(shares uint64, quota int64) *api.LinuxCPU {
		return &api.LinuxCPU{Shares: api.UInt64(shares), Quota: api.Int64(quota), Period: api.UInt64(uint64(100_000))}
	}
	memory := func(limit int64) *api.LinuxMemory { return &api.LinuxMemory{Limit: api.Int64(limit)} }
	for _, row := range []struct {
		name             string
		of               *api.LinuxResources
		qos              string
		requests, limits map[string]string
	}{
		{"nothing", nil, "", nil, nil},
		{"best effort", &api.LinuxResources{Cpu: cpu(2, 0)}, "BestEffort", nil, nil},
		{"burstable", &api.LinuxResources{Cpu: cpu(512, 100_000), Memory: memory(1 << 30)}, "Burstable", map[string]string{"cpu": "500m"},
			map[string]string{"cpu": "1000m", "memory": "1073741824"}},
		{"guaranteed", &api.LinuxResources{Cpu: cpu(2048, 200_000), Memory: memory(1 << 30)}, "Guaranteed",
			map[string]string{"cpu": "2000m"}, map[string]string{"cpu": "2000m", "memory": "1073741824"}},
		{"guaranteed, no quotas", &api.LinuxResources{Cpu: cpu(2048, -1), Memory: memory(1 << 30)}, "Guaranteed",
			map[string]string{"cpu": "2000m"}, map[string]string{"cpu": "2000m", "memory": "1073741824"}},
		{"of no kubelet", &api.LinuxResources{Cpu: cpu(2048, 200_000), Memory: memory(1 << 30)}, "", map[string]string{"cpu": "2000m"},
			map[string]string{"cpu": "2000m", "memory": "1073741824"}},
		{"unlimited", &api.LinuxResources{Cpu: cpu(1024, -1), Memory: memory(1<<63 - 4096)}, "", map[string]string{"cpu": "1000m"}, nil},
		{"more shares than quota", &api.LinuxResources{Cpu: cpu(4096, 100_000)}, "", map[string]string{"cpu": "1000m"},
			map[string]string{"cpu": "1000m"}},
		{"huge pages", &api.LinuxResources{HugepageLimits: []*api.HugepageLimit{{PageSize: "2MB", Limit: 4 << 20}, {PageSize: "1GB"}}},
			"", nil, map[string]string{"hugepages-2Mi": "4194304"}},
	} {
		got, err := rebuilt(row.of, row.qos == "Guaranteed")
		if err != nil || !maps.Equal(got.GetRequests(), row.requests) || !maps.Equal(got.GetLimits(), row.limits) {
			t.Errorf("%s: %v, %v", row.name, got, err)
		}
	}
	for _, bad := range []string{"", "2", "2TB", "MB", "-2MB", "0MB", "99999999999MB"} {
		r := &api.LinuxResources{HugepageLimits: []*api.HugepageLimit{{PageSize: bad, Limit: 1}}}
		if got, err := rebuilt(r, false); err == nil || !strings.Contains(err.Error(), "expected") {
			t.Errorf("pages of %q: %v, %v", bad, got, err)
		}
	}
}

func TestQoS(t *testing.T) {
	t.Parallel()
	for parent, want := range map[string]string{
		"/kubepods/pod1f":                      "Guaranteed",
		"/kubepods/burstable/pod1f":            "Burstable",
		"/kubepods/besteffort/pod1f":           "BestEffort",
		"/kubelet/kubepods/pod1f":              "Guaranteed",
		"/kubepods.slice/kubepods-pod1f.slice": "Guaranteed",
		"/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod1f.slice": "Burstable",
		"kubepods-besteffort-pod1f.slice":                                         "BestEffort",
		"/kubepods/podburstable":                                                  "Guaranteed",
		"/machine/pod1f":                                                          "",
		"":                                                                        "",
	} {
		if got := qosOf(parent); got != want {
			t.Errorf("%q: %q, want %q", parent, got, want)
		}
	}
}

func TestAgree(t *testing.T) {
	t.Parallel()
	spec := func(requests, limits map[string]string) *typesv1.Pod {
		return &typesv1.Pod{Spec: &typesv1.PodSpec{Containers: []*typesv1.Container{{Name: "main",
			Resources: &typesv1.ResourceRequirements{Requests: requests, Limits: limits}}}}}
	}
	cpu := func(text string) map[string]string { return map[string]string{"cpu": text} }
	memory := func(text string) map[string]string { return map[string]string{"memory": text} }
	for _, row := range []struct {
		spec   *typesv1.Pod
		shares uint64
		memory int64
		ok     bool
	}{
		{spec(cpu("2"), nil), 2048, 0, true},
		{spec(nil, cpu("2")), 2048, 0, true},
		{spec(cpu("1"), cpu("2")), 1024, 0, true},
		{spec(cpu("1"), cpu("2")), 2048, 0, false},
		{spec(cpu("100m"), nil), 102, 0, true},
		{spec(cpu("2"), nil), 2, 0, false},
		{spec(nil, nil), 2, 0, true},
		{spec(nil, nil), 1024, 0, false},
		{spec(cpu("2m"), nil), 2, 0, true},
		{spec(cpu("2"), nil), 0, 0, true},
		{spec(cpu("much"), nil), 2, 0, false},
		{&typesv1.Pod{}, 1024, 0, true},
		{spec(cpu("1"), memory("1Gi")), 1024, 1 << 30, true},
		{spec(cpu("1"), memory("1Gi")), 1024, 1 << 31, false},
		{spec(cpu("1"), memory("1Gi")), 1024, 1 << 29, false},
		{spec(cpu("1"), memory("1Gi")), 1024, 0, true},
		{spec(cpu("1"), nil), 1024, 1 << 30, true}, // the pod's
		{spec(cpu("1"), memory("much")), 1024, 1 << 30, false},
	} {
		c := &api.Container{Name: "main", Linux: &api.LinuxContainer{Resources: &api.LinuxResources{Cpu: &api.LinuxCPU{}}}}
		if row.shares > 0 {
			c.Linux.Resources.Cpu.Shares = api.UInt64(row.shares)
		}
		if row.memory > 0 {
			c.Linux.Resources.Memory = &api.LinuxMemory{Limit: api.Int64(row.memory)}
		}
		if err := agree(row.spec, "main", c.GetLinux().GetResources()); (err == nil) != row.ok {
			t.Errorf("%v with %d shares and %d bytes: %v", row.spec, row.shares, row.memory, err)
		}
	}
}

// TestWithoutClaims: what the kubelet adds to limits for claims is subtracted where there is a limit.
func TestWithoutClaims(t *testing.T) {
	t.Parallel()
	m := &member{added: map[workload.Resource]int64{workload.CPU: 1500, workload.Memory: gib, "hugepages-2Mi": 8 << 20}}
	resources := func(milli, memory int64, pages uint64) *api.LinuxResources {
		r := size(100, milli, memory)
		r.Cpu.Period = api.UInt64(uint64(50_000)) // cpuCFSQuotaPeriod of the kubelet
		r.Cpu.Quota = api.Int64(milli * 50)
		r.HugepageLimits = []*api.HugepageLimit{{PageSize: "2MB", Limit: pages}, {PageSize: "1GB", Limit: gib}}
		return r
	}
	for name, row := range map[string]struct{ has, want *api.LinuxResources }{
		"with limits":    {resources(1600, 3*gib, 12<<20), resources(100, 2*gib, 4<<20)},
		"without limits": {resources(-1, -1, 8<<20), resources(-1, -1, 0)},
		"the pod's":      {resources(1000, gib/2, 1<<20), resources(1000, gib/2, 0)},
	} {
		before := row.has.Copy()
		if got := m.without(row.has); !reflect.DeepEqual(got, row.want) {
			t.Errorf("%s: %v, want %v", name, got, row.want)
		}
		if !reflect.DeepEqual(row.has, before) {
			t.Errorf("%s: the runtime's resources have become %v", name, row.has)
		}
	}
}
