package reconcile

import (
	"github.com/berthd/berth/managers/cgroup"
)

// nested adds CPUs for cgroups that a container has created below its own, as docker in
// docker does: v1 narrows no cgroup below those inside it, and widens none again. A nested
// cgroup with all CPUs of its container keeps all. Another one keeps those of its CPUs that
// are left, or gets all if none is left. On v2 the kernel does this itself. Only what is below
// a cgroup that confines is nested.
func (ns names) nested(desired []cgroup.Node, seen *cgroup.Snapshot, confines func(cgroup.Name) bool) []cgroup.Node {
	wanted := make(map[string]cgroup.Cpuset, len(desired))
	for _, n := range desired {
		wanted[n.Name.String()] = n.Values.Cpuset
	}
	had := make(map[string]cgroup.Cpuset, len(seen.Nodes))
	for _, o := range seen.Nodes {
		had[o.Name.String()] = o.Values.Cpuset
	}
	for _, o := range seen.Nodes { // parents before children
		if !ns.inContainer(o.Name) || o.State == cgroup.Absent {
			continue
		}
		parent := o.Name.Parent().String()
		above, follows := wanted[parent]
		if _, known := wanted[o.Name.String()]; known || !follows || !confines(o.Name.Parent()) || above.CPUs.IsEmpty() {
			continue
		}
		cpus := o.Values.CPUs.Intersect(above.CPUs)
		if cpus.IsEmpty() || o.Values.CPUs == had[parent].CPUs {
			cpus = above.CPUs
		}
		wanted[o.Name.String()] = cgroup.Cpuset{CPUs: cpus}
		if cpus != o.Values.CPUs {
			desired = append(desired, cgroup.Node{Name: o.Name, Values: cgroup.Values{Cpuset: cgroup.Cpuset{CPUs: cpus}}})
		}
	}
	return desired
}
