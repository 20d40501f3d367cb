package cgroupfs

import (
	"cmp"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/moby/sys/mountinfo"

	"github.com/berthd/berth/managers/cgroup"
	"github.com/berthd/berth/managers/errdefs"
)

// pseudoControllers are part of version 2 without being listed among its controllers.
var pseudoControllers = []string{"devices", "freezer"}

// unifiedName is the listed name of the v2 hierarchy next to v1's, which has no controller.
const unifiedName = "unified"

// subsystemsV2 lists the controllers of a tree of version 2.
func subsystemsV2(mount string, controllers []string) (out []cgroup.Subsystem) {
	for _, name := range slices.Concat(controllers, pseudoControllers) {
		out = append(out, cgroup.Subsystem{Name: name, MountPoint: mount, Version: cgroup.V2})
	}
	slices.SortFunc(out, bySubsystem)
	return slices.CompactFunc(out, func(a, b cgroup.Subsystem) bool { return a.Name == b.Name })
}

// subsystemsV1 finds in /proc/self/cgroup and the mounts the v1 hierarchies and the v2 hierarchy next to them. If one is mounted several
// times, the shortest path is used (kubernetes#95488).
func subsystemsV1(self []byte, mounts []*mountinfo.Info) (out []cgroup.Subsystem, err error) {
	hierarchies := map[string]int{} // by the mount option
	for line := range strings.Lines(string(self)) {
		// 4:memory:/path; the second field of the unified hierarchy is empty.
		id, rest, _ := strings.Cut(strings.TrimSpace(line), ":")
		names, _, ok := strings.Cut(rest, ":")
		n, failed := strconv.Atoi(id)
		if !ok || failed != nil {
			return nil, errdefs.Unavailablef("list the cgroup hierarchies: /proc/self/cgroup has the line %q", line)
		}
		for name := range strings.SplitSeq(names, ",") {
			hierarchies[name] = n
		}
	}
	add := func(s cgroup.Subsystem) {
		i := slices.IndexFunc(out, func(o cgroup.Subsystem) bool { return o.Name == s.Name && o.Version == s.Version })
		switch {
		case i < 0:
			out = append(out, s)
		case len(s.MountPoint) < len(out[i].MountPoint):
			out[i] = s
		}
	}
	for _, m := range mounts {
		s := cgroup.Subsystem{Name: unifiedName, MountPoint: m.Mountpoint, Hierarchy: hierarchies[""], Version: cgroup.V2}
		switch m.FSType {
		case v2Type:
			add(s)
		case v1Type:
			s.Version = cgroup.V1
			for option := range strings.SplitSeq(m.VFSOptions, ",") {
				if id, known := hierarchies[option]; known {
					s.Name, s.Hierarchy = strings.TrimPrefix(option, "name="), id
					add(s)
				}
			}
		}
	}
	if len(out) == 0 {
		return nil, errdefs.Unsupportedf("list the cgroup hierarchies: none is mounted")
	}
	slices.SortFunc(out, bySubsystem)
	return out, nil
}

func bySubsystem(a, b cgroup.Subsystem) int { return cmp.Compare(a.Name, b.Name) }

// listV1 fills in the subsystems of the facts of a tree of version 1.
func (t *tree) listV1(mounts []*mountinfo.Info) error {
	self, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return errdefs.Unavailablef("list the cgroup hierarchies: %w", err)
	}
	t.facts.Subsystems, err = subsystemsV1(self, mounts)
	return err
}
