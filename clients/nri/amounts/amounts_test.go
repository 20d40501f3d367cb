package amounts

import (
	"maps"
	"strings"
	"testing"

	"github.com/containerd/nri/pkg/api"

	typesv1 "github.com/berthd/berth/api/berth/types/v1"
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
		if got := Request(r); got != milli {
			t.Fatalf("a request of %dm is rebuilt as %dm", milli, got)
		}
		if got := milliLimit(r); got != milli {
			t.Fatalf("a limit of %dm is rebuilt as %dm", milli, got)
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
		if err := Agree(row.spec, "main", c.GetLinux().GetResources()); (err == nil) != row.ok {
			t.Errorf("%v with %d shares and %d bytes: %v", row.spec, row.shares, row.memory, err)
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
		got, err := Rebuilt(row.of, row.qos == "Guaranteed")
		if err != nil || !maps.Equal(got.GetRequests(), row.requests) || !maps.Equal(got.GetLimits(), row.limits) {
			t.Errorf("%s: %v, %v", row.name, got, err)
		}
	}
	for _, bad := range []string{"", "2", "2TB", "MB", "-2MB", "0MB", "99999999999MB"} {
		r := &api.LinuxResources{HugepageLimits: []*api.HugepageLimit{{PageSize: bad, Limit: 1}}}
		if got, err := Rebuilt(r, false); err == nil || !strings.Contains(err.Error(), "expected") {
			t.Errorf("pages of %q: %v, %v", bad, got, err)
		}
	}
}
