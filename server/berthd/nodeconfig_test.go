package main

import (
	"path/filepath"
	"slices"
	"testing"

	nodev1 "github.com/berthd/berth/api/berth/node/v1"
)

// TestMountedSubsystems: every controller of the tree is mounted where the answer has it.
func TestMountedSubsystems(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.needKernel()
	d := n.start()
	config, err := nodev1.NewNodeServiceClient(d.conn).GetConfig(d.ctx(), &nodev1.GetConfigRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if limit := config.GetSystemCgroupsLimit(); len(limit) != 1 || limit["cpu"] != "0" {
		t.Errorf("the system's cgroups are limited to %v", limit)
	}
	for _, c := range config.GetControllers() {
		i := slices.IndexFunc(config.GetMountedSubsystems(), func(m *nodev1.MountedSubsystem) bool { return m.GetName() == c })
		if i < 0 {
			t.Errorf("%s is mounted nowhere: %v", c, config.GetMountedSubsystems())
			continue
		}
		m := config.GetMountedSubsystems()[i]
		if found, _ := filepath.Glob(m.GetMountPoint() + "/cgroup.procs"); len(found) != 1 ||
			m.GetVersion() != uint32(config.GetCgroupVersion()) || (m.GetHierarchyId() == 0) != (m.GetVersion() == 2) {
			t.Errorf("%v: there is no such mount", m)
		}
	}
}
