package cgroup

import (
	"slices"
	"strings"

	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/workload"
)

const (
	// podsComponent is the node of all pods below the configured root.
	podsComponent = "kubepods"
	// podPrefix precedes the uid in the component of a pod.
	podPrefix = "pod"
)

// tierComponents are the classes whose pods have a tier of their own.
var tierComponents = map[workload.QoSClass]string{
	workload.Burstable:  "burstable",
	workload.BestEffort: "besteffort",
}

// Layout maps pods to cgroups. The zero value has no root; use
// NewLayout.
type Layout struct {
	pods   Name
	tiers  map[workload.QoSClass]Name // of the classes that have one of their own
	driver Driver
}

// NewLayout places the node of all pods below a configured cgroup root, which
// is read by the cgroupfs rule whatever the driver, as the kubelet reads it: ""
// and "/" are the root of the tree, "/foo" is foo, under systemd foo.slice. A
// root that a driver could not write is an error of class Invalid.
func NewLayout(cgroupRoot string, driver Driver) (Layout, error) {
	root := ParseCgroupfs(cgroupRoot)
	if err := checkRoot(root, driver); err != nil {
		return Layout{}, errdefs.Invalidf("cgroup root %q: %w", cgroupRoot, err)
	}
	l := Layout{pods: root.join(podsComponent), tiers: map[workload.QoSClass]Name{}, driver: driver}
	for class, c := range tierComponents {
		l.tiers[class] = l.pods.join(c)
	}
	return l, nil
}

// checkRoot holds a root against what can be made and, under systemd, read back.
func checkRoot(root Name, driver Driver) error {
	if err := root.Check(); err != nil {
		return err
	}
	if driver != Systemd {
		return nil
	}
	for _, c := range root {
		if strings.Contains(c, "_") {
			return errdefs.Invalidf("component %q has an underscore, which the systemd driver keeps for dashes", c)
		}
		if IsSystemdStyle(c) {
			return errdefs.Invalidf("component %q ends in %s, which the systemd driver adds itself", c, sliceSuffix)
		}
	}
	return nil
}

// Driver returns the driver that writes the names.
func (l Layout) Driver() Driver { return l.driver }

// Root returns the configured cgroup root.
func (l Layout) Root() Name { return l.pods.Parent() }

// Pods returns the node of all pods, which is the tier of Guaranteed ones too.
func (l Layout) Pods() Name { return l.pods }

// Tier returns the parent of the pods of a class.
func (l Layout) Tier(class workload.QoSClass) Name {
	if tier, ok := l.tiers[class]; ok {
		return tier
	}
	return l.pods
}

// Pod returns the cgroup of a pod: its tier and "pod" with the uid. A uid that
// makes no component is an error of class Invalid.
func (l Layout) Pod(class workload.QoSClass, uid string) (Name, error) {
	if uid == "" {
		return nil, errdefs.Invalidf("cgroup of a pod: the uid is empty")
	}
	name, err := NewName(l.Tier(class), podPrefix+uid)
	if err != nil {
		return nil, err
	}
	return name, name.Check()
}

// Container returns the cgroup of a container that berth makes itself, below its
// pod's.
func (l Layout) Container(pod Name, container string) (Name, error) {
	name, err := NewName(pod, container)
	if err != nil {
		return nil, err
	}
	return name, name.Check()
}

// Literal formats a name for the layout's driver: the full path, as runtimes require
// a pod's cgroup named.
func (l Layout) Literal(n Name) (string, error) { return l.driver.Literal(n) }

// PodUID reads the uid back from the name of a pod's cgroup; false for any other
// name. Unlike the kubelet's reading, which only compares depths, the name must
// really lie in a tier, and a uid may contain "pod".
func (l Layout) PodUID(n Name) (string, bool) {
	uid, found := strings.CutPrefix(n.Base(), podPrefix)
	if !found || uid == "" {
		return "", false
	}
	for _, class := range workload.QoSClasses {
		if n.Parent().Equal(l.Tier(class)) {
			return uid, true
		}
	}
	return "", false
}

// PodCgroups returns the names of the pods' cgroups in a snapshot by uid. A pod
// may be found more than once: when its class changed while berth was away.
func (l Layout) PodCgroups(s *Snapshot) map[string][]Name {
	found := make(map[string][]Name)
	for i := range s.Nodes {
		if s.Nodes[i].State == Absent {
			continue
		}
		if uid, ok := l.PodUID(s.Nodes[i].Name); ok {
			found[uid] = append(found[uid], s.Nodes[i].Name)
		}
	}
	return found
}

// Orphans returns, in order, the pods' cgroups of a snapshot that should not be
// there. known returns the class of a pod that should be there.
func (l Layout) Orphans(s *Snapshot, known func(uid string) (workload.QoSClass, bool)) []Name {
	var orphans []Name
	for uid, names := range l.PodCgroups(s) {
		class, ok := known(uid)
		for _, n := range names {
			if !ok || !n.Parent().Equal(l.Tier(class)) {
				orphans = append(orphans, n)
			}
		}
	}
	slices.SortFunc(orphans, Name.Compare)
	return orphans
}
