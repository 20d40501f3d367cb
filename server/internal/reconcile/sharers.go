package reconcile

import (
	"slices"

	"github.com/berthd/berth/managers/cgroup"
	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/placement"
	"github.com/berthd/berth/server/internal/runtime"
)

// sharer is a cgroup on the shared CPUs without a binding. The tracker moves it away before a
// container with exclusive CPUs starts. There are two kinds:
//
//   - the sandbox of a pod in the ledger, created by a runtime. CRI has no field for its
//     CPUs, and a runtime never writes them, so berthd does. It is found in a pass, after
//     the runtime's event, and when the first container of its pod starts.
//   - a container of an unknown living pod that runs on other CPUs than those of its pod's
//     claims. A pass finds it.
type sharer struct {
	name    cgroup.Name
	pod     string
	sandbox bool
}

// sharers are the known sharers. They do no I/O. Guarded by Loop.mu.
type sharers struct {
	names   names
	tracker *tracker
	pods    map[string][]sharer // by uid
	// known means that a pass had the runtime's list of all sandboxes. Those of an earlier berthd are unknown until then.
	known bool
}

// add adds a sharer, also to the tracker.
func (s *sharers) add(view *ledger.View, one sharer) {
	s.pods[one.pod] = append(s.pods[one.pod], one)
	s.watch(view, one)
}

// hasSandbox returns whether a cgroup is the sandbox of a pod.
func (s *sharers) hasSandbox(name cgroup.Name, uid string) bool {
	return slices.ContainsFunc(s.pods[uid], func(one sharer) bool { return one.sandbox && one.name.Equal(name) })
}

// all returns the sharers of some pods; nil means all pods.
func (s *sharers) all(uids map[string]bool) (out []sharer) {
	if uids == nil {
		for _, some := range s.pods {
			out = append(out, some...)
		}
		return out
	}
	for uid := range uids {
		out = append(out, s.pods[uid]...)
	}
	return out
}

// note replaces the sharers by those observed in a pass. listed are all sandboxes of the runtime; complete is false without a list.
// A sandbox is kept until its cgroup is gone.
func (s *sharers) note(view *ledger.View, seen *cgroup.Snapshot, listed []runtime.Sandbox, complete bool) {
	before := sharers{pods: s.pods}
	s.pods, s.known = map[string][]sharer{}, s.known || complete
	ready := readySandboxes(listed)
	for i := range seen.Nodes {
		o := &seen.Nodes[i]
		uid, ok := s.names.PodUID(o.Name.Parent())
		if !ok || o.State == cgroup.Absent {
			continue
		}
		_, known := view.Pod(uid)
		switch {
		case known && (before.hasSandbox(o.Name, uid) || isSandbox(o.Name, ready[uid])):
			s.add(view, sharer{name: o.Name, pod: uid, sandbox: true})
		case !known && sharesUnknown(view, uid, o.Values.CPUs):
			s.add(view, sharer{name: o.Name, pod: uid})
		}
	}
}

// forget forgets the sharers in a pod's cgroup, which was removed.
func (s *sharers) forget(uid string, removed cgroup.Name) {
	left := slices.DeleteFunc(s.pods[uid], func(one sharer) bool {
		if one.name.Within(removed) {
			s.tracker.forget(ofCgroup(one.name))
			return true
		}
		return false
	})
	if s.pods[uid] = left; len(left) == 0 {
		delete(s.pods, uid)
	}
}

// forgetSandbox forgets that the cgroup of a runtime's container is a sandbox. It counts as one
// if the container was unknown when the opening of its pod ended.
func (s *sharers) forgetSandbox(b ledger.Binding) {
	some := s.pods[b.Owner.Pod]
	at := slices.IndexFunc(some, func(one sharer) bool { return one.sandbox && !b.Own && isCalled(one.name, b.ID) })
	if at >= 0 {
		s.tracker.forget(ofCgroup(some[at].name))
		s.pods[b.Owner.Pod] = slices.Delete(some, at, at+1)
	}
}

// sharesUnknown returns whether a container of an unknown living pod, on some CPUs, uses
// others than those of the pod's claims.
func sharesUnknown(view *ledger.View, uid string, cpus cpuset.Set) bool {
	u, unknown := view.UnknownLivePod(uid)
	if !unknown || u.Source == "" || cpus.IsEmpty() {
		return false
	}
	var own cpuset.Set
	for i := range u.Claims {
		if c := u.Claims[i].CPUs; c != nil {
			own = own.Union(c.Set)
		}
	}
	return own.IsEmpty() || !cpus.IsSubsetOf(own)
}

func readySandboxes(listed []runtime.Sandbox) map[string][]runtime.Sandbox {
	out := map[string][]runtime.Sandbox{}
	for _, s := range listed {
		if s.Ready {
			out[s.Pod] = append(out[s.Pod], s)
		}
	}
	return out
}

// isSandbox returns whether a cgroup is named after one of some sandboxes.
func isSandbox(name cgroup.Name, sandboxes []runtime.Sandbox) bool {
	return slices.ContainsFunc(sandboxes, func(s runtime.Sandbox) bool { return isCalled(name, s.ID) })
}

// watch adds a sharer to the tracker, or sets its CPUs. A sandbox that cannot be moved
// anywhere is left out, because it would block starts for good.
func (s *sharers) watch(view *ledger.View, one sharer) {
	cpus, key := view.CommonCPUs(), ofCgroup(one.name)
	switch {
	case !one.sandbox:
		s.tracker.record(placement.Event{Kind: placement.Restore, Key: key, Owner: placement.Owner{Pod: one.pod},
			Name: "of an unknown living pod in cgroup " + s.names.pathOf(one.name)})
	case cpus.IsEmpty():
		s.tracker.forget(key)
		return
	default:
		s.tracker.watch(one.name, sandboxOf(one.pod))
	}
	s.tracker.Want(key, cpus, cpuset.Set{})
}

// there returns whether the sharer is one in a view: the pod of a container may have been
// admitted, that of a sandbox removed.
func (s sharer) there(view *ledger.View) bool {
	_, known := view.Pod(s.pod)
	return known && s.sandbox || !s.sandbox && view.UnknownLive(s.pod)
}

// nodes returns the wanted CPUs of the sharers of some pods; nil means all.
func (s *sharers) nodes(view *ledger.View, uids map[string]bool) (nodes []cgroup.Node) {
	for _, one := range s.all(uids) {
		if cpus := view.CommonCPUs(); one.there(view) && !cpus.IsEmpty() {
			nodes = append(nodes, cgroup.Node{Name: one.name, Values: cgroup.Values{Cpuset: cgroup.Cpuset{CPUs: cpus}}})
		}
	}
	return nodes
}

// present removes the sharers that are gone, because berthd does not create them.
func (s *sharers) present(nodes []cgroup.Node, seen *cgroup.Snapshot) []cgroup.Node {
	return slices.DeleteFunc(nodes, func(n cgroup.Node) bool {
		uid, _ := s.names.PodUID(n.Name.Parent())
		return slices.ContainsFunc(s.pods[uid], func(one sharer) bool { return one.name.Equal(n.Name) }) &&
			seen.Find(n.Name).State == cgroup.Absent
	})
}
