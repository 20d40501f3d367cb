package cgroupfs

import (
	"bytes"
	"cmp"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/berthd/berth/managers/cgroup"
	"github.com/berthd/berth/managers/errdefs"
)

// pseudoControllers are part of version 2 without being listed among its controllers.
var pseudoControllers = []string{"devices", "freezer"}

// unifiedName is the listed name of the v2 hierarchy beside v1's, which has no controller.
const unifiedName = "unified"

// subsystemsV2 lists the controllers of a tree of version 2.
func subsystemsV2(mount string, controllers []string) (out []cgroup.Subsystem) {
	for _, name := range slices.Concat(controllers, pseudoControllers) {
		out = append(out, cgroup.Subsystem{Name: name, MountPoint: mount, Version: cgroup.V2})
	}
	slices.SortFunc(out, bySubsystem)
	return slices.CompactFunc(out, func(a, b cgroup.Subsystem) bool { return a.Name == b.Name })
}

// subsystemsV1 parses /proc/self/cgroup and /proc/self/mountinfo for the v1 hierarchies and the
// v2 hierarchy beside them. If one is mounted several times, the shortest path is used
// (kubernetes#95488).
func subsystemsV1(self, mountinfo []byte) (out []cgroup.Subsystem, err error) {
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
	for line := range bytes.Lines(mountinfo) {
		before, after, ok := strings.Cut(string(line), " - ")
		left, right := strings.Fields(before), strings.Fields(after)
		if !ok || len(left) < 5 || len(right) < 3 {
			continue
		}
		point := unescaped.Replace(left[4])
		switch right[0] {
		case "cgroup2":
			add(cgroup.Subsystem{Name: unifiedName, MountPoint: point, Hierarchy: hierarchies[""], Version: cgroup.V2})
		case "cgroup":
			for option := range strings.SplitSeq(right[2], ",") {
				if id, known := hierarchies[option]; known {
					add(cgroup.Subsystem{Name: strings.TrimPrefix(option, "name="), MountPoint: point, Hierarchy: id, Version: cgroup.V1})
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

// unescaped reads the paths of mountinfo (proc_pid_mountinfo(5)).
var unescaped = strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`)

func bySubsystem(a, b cgroup.Subsystem) int { return cmp.Compare(a.Name, b.Name) }

// listSubsystems fills in the subsystems of the tree's facts.
func (d *Driver) listSubsystems() (err error) {
	if d.facts.Version == cgroup.V2 {
		d.facts.Subsystems = subsystemsV2(d.mount, d.facts.Controllers)
		return nil
	}
	self, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return errdefs.Unavailablef("list the cgroup hierarchies: %w", err)
	}
	mountinfo, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return errdefs.Unavailablef("list the cgroup hierarchies: %w", err)
	}
	d.facts.Subsystems, err = subsystemsV1(self, mountinfo)
	return err
}
