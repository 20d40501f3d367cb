package reconcile

import (
	"github.com/berthd/berth/managers/cgroup"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/ledger"
)

// names are the names of the cgroups of pods and containers, and whose they are.
type names struct{ cgroup.Layout }

// pod returns a pod and the name of its cgroup.
func (ns names) pod(view *ledger.View, uid string) (*ledger.Pod, cgroup.Name, error) {
	p, ok := view.Pod(uid)
	if !ok {
		return nil, nil, errdefs.Internalf("pod %s is not in the view that its cgroup should follow", uid)
	}
	name, err := ns.Pod(p.QoS, uid)
	return p, name, err
}

// container returns the name of a container's cgroup.
func (ns names) container(p *ledger.Pod, container string) (cgroup.Name, error) {
	pod, err := ns.Pod(p.QoS, p.UID())
	if err != nil {
		return nil, err
	}
	return ns.Container(pod, container)
}

// isOf returns whether a pod's cgroup is a pod's own, and not one of another class with its uid.
func (ns names) isOf(p *ledger.Pod, name cgroup.Name) bool {
	return name.Parent().Equal(ns.Tier(p.QoS))
}

// inPod returns the pod to whose cgroup a name belongs; empty for none.
func (ns names) inPod(name cgroup.Name) string {
	for n := name; len(n) > 0; n = n.Parent() {
		if uid, ok := ns.PodUID(n); ok {
			return uid
		}
	}
	return ""
}

// inContainer returns whether a name is the cgroup of a container of a pod, or below one.
func (ns names) inContainer(name cgroup.Name) bool {
	_, isPod := ns.PodUID(name)
	return !isPod && ns.inPod(name) != ""
}

// isContainer returns whether a cgroup is one of a pod's containers.
func (ns names) isContainer(view *ledger.View, uid string, name cgroup.Name) bool {
	for b := range view.BindingsOf(uid) {
		if b.Own && ns.Driver().Parse(b.CgroupPath).Equal(name) || !b.Own && isCalled(name, b.ID) {
			return true
		}
	}
	return false
}

// pathOf returns the path of a cgroup below the mount point.
func (ns names) pathOf(name cgroup.Name) string {
	literal, err := ns.Literal(name)
	if err != nil {
		return name.String() // a foreign cgroup without a name of berth
	}
	return literal
}
