package reconcile

import (
	"context"
	"fmt"

	"github.com/berthd/berth/managers/cgroup"
)

// nested adds CPUs for cgroups that a container has created below its own, as docker in
// docker does: v1 narrows no cgroup below those inside it, and widens none again. A nested
// cgroup with all CPUs of its container keeps all. Another one keeps those of its CPUs that
// are left, or gets all if none is left. On v2 the kernel does this itself. The caller
// holds mu.
func (l *Loop) nested(desired []cgroup.Node, seen *cgroup.Snapshot) []cgroup.Node {
	if !l.v1() {
		return desired
	}
	wanted := make(map[string]cgroup.Cpuset, len(desired))
	for _, n := range desired {
		wanted[n.Name.String()] = n.Values.Cpuset
	}
	had := make(map[string]cgroup.Cpuset, len(seen.Nodes))
	for _, o := range seen.Nodes {
		had[o.Name.String()] = o.Values.Cpuset
	}
	for _, o := range seen.Nodes { // parents before children
		if !l.names.inContainer(o.Name) || o.State == cgroup.Absent {
			continue
		}
		parent := o.Name.Parent().String()
		above, follows := wanted[parent]
		if _, known := wanted[o.Name.String()]; known || !follows || !l.confines(o.Name.Parent()) || above.CPUs.IsEmpty() {
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

// confines returns whether a cgroup restricts the CPUs of all below it: one of a container, or
// of an opening pod.
func (l *Loop) confines(name cgroup.Name) bool {
	uid, isPod := l.Layout.PodUID(name)
	o, opens := l.opening[uid]
	return isPod && opens && o.name.Equal(name) || l.names.inContainer(name)
}

// observeInside observes the cgroups of nodes, and on v1 also everything below those
// that confine it.
func (l *Loop) observeInside(ctx context.Context, nodes []cgroup.Node) (*cgroup.Snapshot, error) {
	if !l.v1() {
		return l.observe(ctx, nodes)
	}
	all := &cgroup.Snapshot{Facts: l.QoS.Cgroup.Facts}
	for _, n := range nodes {
		depth := 0
		if l.confines(n.Name) {
			depth = -1
		}
		seen, err := l.Tree.Observe(ctx, n.Name, depth)
		if err != nil {
			return nil, fmt.Errorf("observe cgroup %s: %w", n.Name, err)
		}
		all.Nodes = append(all.Nodes, seen.Nodes...)
	}
	return all, nil
}
