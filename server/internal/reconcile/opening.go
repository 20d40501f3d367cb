package reconcile

import (
	"github.com/berthd/berth/managers/cgroup"
	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/placement"
)

// opening is a pod of a runtime without a container. The runtime starts the process of its
// sandbox before it reports it, on the CPUs of the pod's cgroup. So that cgroup has only the
// shared CPUs and the own CPUs of the pod, and the tracker has it.
//
// At the next start the cgroups in it get CPUs of their own, and the pod's cgroup gets all:
// a runtime writes its containers' CPUs at times that berthd does not choose.
type opening struct {
	name cgroup.Name
	// own are the pod's own CPUs while it is being admitted.
	own cpuset.Set
}

// openings are the opening pods. They do no I/O. Guarded by Loop.mu.
type openings struct {
	cfg     *Config
	names   names
	tracker *tracker
	pods    map[string]opening // by uid
	// found means that a pass has looked for opening pods. Those of an earlier berthd are unknown until then.
	found bool
}

// cpus returns the CPUs of an opening pod's cgroup; none if it is not restricted.
func (o *openings) cpus(view *ledger.View, uid string) cpuset.Set {
	cpus := view.CommonCPUs()
	if p, known := view.Pod(uid); known {
		return cpus.Union(ownCPUs(view, p))
	}
	return cpus.Union(o.pods[uid].own)
}

// ownCPUs returns the CPUs of a pod's containers that are not shared.
func ownCPUs(view *ledger.View, p *ledger.Pod) (own cpuset.Set) {
	for i := range p.Pod.Containers {
		own = own.Union(view.RunsOn(ledger.Owner{Pod: p.UID(), Container: p.Pod.Containers[i].Name}))
	}
	return own.Minus(view.CommonCPUs())
}

// at returns the opening pod of a cgroup. A pod of another class may have the same uid: its cgroup is another one.
func (o *openings) at(name cgroup.Name) (uid string, opens bool) {
	uid, isPod := o.names.PodUID(name)
	one, opens := o.pods[uid]
	return uid, isPod && opens && one.name.Equal(name)
}

// confines returns whether a cgroup restricts the CPUs of all below it: one of a container, or
// of an opening pod.
func (o *openings) confines(name cgroup.Name) bool {
	_, opens := o.at(name)
	return opens || o.names.inContainer(name)
}

// restrict sets the CPUs of opening pods' cgroups in nodes.
func (o *openings) restrict(view *ledger.View, nodes []cgroup.Node) {
	for i := range nodes {
		if uid, opens := o.at(nodes[i].Name); opens {
			nodes[i].Values.CPUs = o.cpus(view, uid)
		}
	}
}

// add adds an opening pod, whose cgroup has some CPUs, also to the tracker.
func (o *openings) add(view *ledger.View, uid string, one opening, present cpuset.Set) {
	o.pods[uid] = one
	o.tracker.watch(one.name, sandboxOf(uid))
	o.tracker.record(placement.Event{Kind: placement.ShownRunning, Key: ofCgroup(one.name)})
	o.tracker.record(placement.Event{Kind: placement.KernelRuns, Key: ofCgroup(one.name), CPUs: present})
	o.want(view, uid)
}

// sandboxOf is the owner of a pod's sandbox.
func sandboxOf(uid string) placement.Owner { return placement.Owner{Pod: uid, Container: "(sandbox)"} }

// want sets the CPUs of an opening pod's cgroup in the tracker.
func (o *openings) want(view *ledger.View, uid string) {
	if one, ok := o.pods[uid]; ok {
		o.tracker.Want(ofCgroup(one.name), o.cpus(view, uid), cpuset.Set{})
	}
}

// again restricts the cgroup of a pod again after its last container has ended: the runtime
// may start another sandbox in it before the next container.
func (o *openings) again(view *ledger.View, uid string) {
	p, known := view.Pod(uid)
	_, opens := o.pods[uid]
	if !known || opens || o.cfg.Runtime == nil || o.cfg.NoPodCgroups || hasContainers(view, uid) || o.tracker.isStarting(uid) {
		return
	}
	if name, err := o.names.Pod(p.QoS, uid); err == nil {
		o.add(view, uid, opening{name: name}, view.Rules().Machine.CPUs())
	}
}

// find finds the pods that were opening when berthd ended: their cgroups have fewer CPUs than those above, or a runtime is to
// start their first container. allowed returns the CPUs of a cgroup.
func (o *openings) find(view *ledger.View, seen *cgroup.Snapshot, allowed func(cgroup.Observed) cpuset.Set) {
	if o.found || o.cfg.NoPodCgroups {
		return
	}
	o.found = true
	above := map[string]cpuset.Set{}
	for i := range seen.Nodes {
		at := &seen.Nodes[i]
		uid, isPod := o.names.PodUID(at.Name)
		p, known := view.Pod(uid)
		if !isPod || !known || !o.names.isOf(p, at.Name) || at.State == cgroup.Absent || at.Values.CPUs.IsEmpty() {
			continue
		}
		parent := at.Name.Parent()
		if _, known := above[parent.String()]; !known {
			above[parent.String()] = allowed(seen.Find(parent))
		}
		if !above[parent.String()].IsSubsetOf(at.Values.CPUs) || o.cfg.Runtime != nil && !hasContainers(view, uid) {
			o.add(view, uid, opening{name: at.Name}, at.Values.CPUs)
		}
	}
}

// stop forgets an opening pod.
func (o *openings) stop(uid string) {
	if one, ok := o.pods[uid]; ok {
		delete(o.pods, uid)
		o.tracker.forget(ofCgroup(one.name))
	}
}

func hasContainers(view *ledger.View, uid string) bool {
	for range view.BindingsOf(uid) {
		return true
	}
	return false
}
