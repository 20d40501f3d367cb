package app

import (
	"testing"
	"testing/fstest"

	"github.com/berthd/berth/managers/cgroup"
)

// TestLacksQuotas is section 3.4 of the specification of cgroups: without both files the
// start continues, and the status has what is missing.
func TestLacksQuotas(t *testing.T) {
	t.Parallel()
	v1 := []cgroup.Subsystem{{Name: "memory", MountPoint: "/cg/memory", Version: cgroup.V1},
		{Name: "cpu", MountPoint: "/cg/cpu,cpuacct", Version: cgroup.V1}}
	v2 := []cgroup.Subsystem{{Name: "cpu", MountPoint: "/cg", Version: cgroup.V2}}
	files := func(names ...string) fstest.MapFS {
		out := fstest.MapFS{}
		for _, n := range names {
			out["cg/cpu,cpuacct/"+n] = &fstest.MapFile{}
		}
		return out
	}
	for name, tt := range map[string]struct {
		subsystems []cgroup.Subsystem
		files      fstest.MapFS
		lacks      bool
	}{
		"v1":                {v1, files("cpu.cfs_period_us", "cpu.cfs_quota_us"), false},
		"v1 without quotas": {v1, files("cpu.cfs_period_us"), true},
		"v1 without period": {v1, files("cpu.cfs_quota_us"), true},
		"v2":                {v2, files(), false},
		"in memory":         {nil, files(), false},
	} {
		got := lacksQuotas(cgroup.Facts{Subsystems: tt.subsystems}, tt.files)
		if (len(got) == 1 && got[0] == "CPU hardcapping unsupported") != tt.lacks || len(got) > 1 {
			t.Errorf("%s: %q", name, got)
		}
	}
}
