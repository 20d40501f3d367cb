package cgroupfs

import (
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/berthd/berth/managers/cgroup"
	"github.com/berthd/berth/managers/errdefs"
)

// What a system with systemd has of version 1, with one more mount of memory as
// containers leave behind, and a hybrid set-up's hierarchy of version 2.
const (
	hybridSelf = `13:name=systemd:/init.scope
4:memory:/
3:cpu,cpuacct:/
2:cpuset:/
1:devices:/
0::/init.scope
`
	hybridMounts = `30 23 0:26 / /sys/fs/cgroup ro - tmpfs tmpfs ro,mode=755
31 30 0:27 / /sys/fs/cgroup/unified rw shared:5 - cgroup2 cgroup2 rw,nsdelegate
32 30 0:28 / /sys/fs/cgroup/systemd rw shared:6 - cgroup cgroup rw,xattr,name=systemd
33 30 0:29 /a /var/lib/machines/some\040thing/sys/fs/cgroup/memory rw - cgroup cgroup rw,memory
34 30 0:29 / /sys/fs/cgroup/memory rw shared:7 - cgroup cgroup rw,memory
35 30 0:30 / /sys/fs/cgroup/cpu,cpuacct rw shared:8 - cgroup cgroup rw,cpu,cpuacct
36 30 0:31 / /sys/fs/cgroup/cpuset rw shared:9 - cgroup cgroup rw,cpuset
37 30 0:32 / /sys/fs/cgroup/devices rw shared:10 - cgroup cgroup rw,devices
`
)

// TestSubsystems is section 3.2 of the specification of cgroups, with the hierarchies.
func TestSubsystems(t *testing.T) {
	t.Parallel()
	got, err := subsystemsV1([]byte(hybridSelf), mountsOf(t, hybridMounts))
	want := []cgroup.Subsystem{
		{Name: "cpu", MountPoint: "/sys/fs/cgroup/cpu,cpuacct", Hierarchy: 3, Version: cgroup.V1},
		{Name: "cpuacct", MountPoint: "/sys/fs/cgroup/cpu,cpuacct", Hierarchy: 3, Version: cgroup.V1},
		{Name: "cpuset", MountPoint: "/sys/fs/cgroup/cpuset", Hierarchy: 2, Version: cgroup.V1},
		{Name: "devices", MountPoint: "/sys/fs/cgroup/devices", Hierarchy: 1, Version: cgroup.V1},
		{Name: "memory", MountPoint: "/sys/fs/cgroup/memory", Hierarchy: 4, Version: cgroup.V1},
		{Name: "systemd", MountPoint: "/sys/fs/cgroup/systemd", Hierarchy: 13, Version: cgroup.V1},
		{Name: "unified", MountPoint: "/sys/fs/cgroup/unified", Version: cgroup.V2},
	}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("v1:\n got %+v, %v\nwant %+v", got, err, want)
	}
	got = subsystemsV2("/sys/fs/cgroup", []string{"cpu", "memory"})
	want = nil
	for _, name := range []string{"cpu", "devices", "freezer", "memory"} {
		want = append(want, cgroup.Subsystem{Name: name, MountPoint: "/sys/fs/cgroup", Version: cgroup.V2})
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("v2:\n got %+v\nwant %+v", got, want)
	}
	if _, err := subsystemsV1([]byte("0::/\n"), nil); errdefs.ClassOf(err) != errdefs.Unsupported {
		t.Errorf("nothing mounted: %v", err)
	}
	if _, err := subsystemsV1([]byte("garbage\n"), nil); err == nil || !strings.Contains(err.Error(), "garbage") {
		t.Errorf("a line that is none: %v", err)
	}
}

// TestSubsystemsOfThisMachine: every controller of the tree is among them.
func TestSubsystemsOfThisMachine(t *testing.T) {
	t.Parallel()
	facts := kernelTrees[0].open(t).Facts()
	for _, c := range facts.Controllers {
		if !slices.ContainsFunc(facts.Subsystems, func(s cgroup.Subsystem) bool {
			return s.Name == c && s.Version == facts.Version && s.MountPoint != ""
		}) {
			t.Errorf("%s is not among %+v", c, facts.Subsystems)
		}
	}
}
