package reconcile

import (
	"cmp"
	"context"
	"slices"

	"github.com/berthd/berth/managers/cgroup"
	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/errdefs"
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

// sharers are the sharers by their pods.
type sharers map[string][]sharer

func (s sharers) add(one sharer) { s[one.pod] = append(s[one.pod], one) }

// hasSandbox returns whether a cgroup is the sandbox of a pod.
func (s sharers) hasSandbox(name cgroup.Name, uid string) bool {
	return slices.ContainsFunc(s[uid], func(one sharer) bool { return one.sandbox && one.name.Equal(name) })
}

// all returns the sharers of some pods; nil means all pods.
func (s sharers) all(uids map[string]bool) (out []sharer) {
	if uids == nil {
		for _, some := range s {
			out = append(out, some...)
		}
		return out
	}
	for uid := range uids {
		out = append(out, s[uid]...)
	}
	return out
}

// noteSharers stores the sharers observed in a pass. A sandbox is kept until its cgroup is
// gone. The caller holds mu.
func (l *Loop) noteSharers(view *ledger.View, seen *cgroup.Snapshot) {
	before := l.sharers
	l.sharers = sharers{}
	var listed map[string][]runtime.Sandbox
	if synced := l.calls.synced; synced != nil && synced.ids == nil {
		listed = readySandboxes(synced.sandboxes)
		l.sandboxesKnown = true
	}
	for i := range seen.Nodes {
		o := &seen.Nodes[i]
		uid, ok := l.Layout.PodUID(o.Name.Parent())
		if !ok || o.State == cgroup.Absent {
			continue
		}
		one := sharer{name: o.Name, pod: uid}
		switch _, known := view.Pod(uid); {
		case !known:
			if !sharesUnknown(view, uid, o.Values.CPUs) {
				continue
			}
		default:
			one.sandbox = before.hasSandbox(o.Name, uid) || isSandbox(o.Name, listed[uid])
			if !one.sandbox {
				continue
			}
		}
		l.sharers.add(one)
		l.watchSharer(view, one)
	}
}

// knowSandboxes makes a pass if no pass had the runtime's list of all sandboxes yet. The caller
// holds mu.
func (l *Loop) knowSandboxes(ctx context.Context, view *ledger.View) error {
	if l.sandboxesKnown || l.Runtime == nil || l.NoPodCgroups {
		return nil
	}
	if err := l.pass(ctx, view); !l.sandboxesKnown {
		return errdefs.Unavailablef("sandboxes of an earlier berthd may run: %w", cmp.Or(err, errAway))
	}
	return nil // the loop reports an error of the pass
}

// forgetSharers forgets the sharers in a pod's cgroup, which was removed. The caller holds mu.
func (l *Loop) forgetSharers(uid string, removed cgroup.Name) {
	left := slices.DeleteFunc(l.sharers[uid], func(s sharer) bool {
		if s.name.Within(removed) {
			l.tracker.forget(ofCgroup(s.name))
			return true
		}
		return false
	})
	if l.sharers[uid] = left; len(left) == 0 {
		delete(l.sharers, uid)
	}
}

// forgetSandbox forgets that the cgroup of a runtime's container is a sandbox. It counts as one
// if the container was unknown when the opening of its pod ended. The caller holds mu.
func (l *Loop) forgetSandbox(b ledger.Binding) {
	some := l.sharers[b.Owner.Pod]
	at := slices.IndexFunc(some, func(s sharer) bool { return s.sandbox && !b.Own && isCalled(s.name, b.ID) })
	if at >= 0 {
		l.tracker.forget(ofCgroup(some[at].name))
		l.sharers[b.Owner.Pod] = slices.Delete(some, at, at+1)
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

// watchSharer adds a sharer to the tracker, or sets its CPUs. A sandbox that cannot be moved
// anywhere is left out, because it would block starts for good. The caller holds mu.
func (l *Loop) watchSharer(view *ledger.View, s sharer) {
	cpus := view.CommonCPUs()
	switch {
	case !s.sandbox:
		l.tracker.record(placement.Event{Kind: placement.Restore, Key: ofCgroup(s.name),
			Owner: placement.Owner{Pod: s.pod}, Name: "of an unknown living pod in cgroup " + l.names.spelt(s.name)})
	case cpus.IsEmpty():
		l.tracker.forget(ofCgroup(s.name))
		return
	default:
		l.tracker.watch(s.name, sandboxOf(s.pod))
	}
	l.tracker.Want(ofCgroup(s.name), cpus, cpuset.Set{})
}

// there returns whether the sharer is one in a view: the pod of a container may have been
// admitted, that of a sandbox removed.
func (s sharer) there(view *ledger.View) bool {
	_, known := view.Pod(s.pod)
	return known && s.sandbox || !s.sandbox && view.UnknownLive(s.pod)
}

// sharingNodes returns the wanted CPUs of the sharers of some pods; nil means all. The caller
// holds mu.
func (l *Loop) sharingNodes(view *ledger.View, uids map[string]bool) (nodes []cgroup.Node) {
	for _, s := range l.sharers.all(uids) {
		if cpus := view.CommonCPUs(); s.there(view) && !cpus.IsEmpty() && !l.leaving[s.pod] {
			nodes = append(nodes, cgroup.Node{Name: s.name, Values: cgroup.Values{Cpuset: cgroup.Cpuset{CPUs: cpus}}})
		}
	}
	return nodes
}

// presentSharers removes the sharers that are gone, because berthd does not create them.
func (l *Loop) presentSharers(nodes []cgroup.Node, seen *cgroup.Snapshot) []cgroup.Node {
	return slices.DeleteFunc(nodes, func(n cgroup.Node) bool {
		uid, _ := l.Layout.PodUID(n.Name.Parent())
		return slices.ContainsFunc(l.sharers[uid], func(s sharer) bool { return s.name.Equal(n.Name) }) &&
			seen.Find(n.Name).State == cgroup.Absent
	})
}

// findSandboxes finds the sandboxes of the pods of a list. The caller holds mu.
func (l *Loop) findSandboxes(ctx context.Context, listed *listing) {
	ready := readySandboxes(listed.sandboxes)
	for _, uid := range listed.pods {
		p, known := l.tracker.view.Pod(uid)
		isKnown := func(s runtime.Sandbox) bool {
			return slices.ContainsFunc(l.sharers[uid], func(o sharer) bool { return o.sandbox && isCalled(o.name, s.ID) })
		}
		if !known || !slices.ContainsFunc(ready[uid], func(s runtime.Sandbox) bool { return !isKnown(s) }) {
			continue
		}
		name, err := l.Layout.Pod(p.QoS, uid)
		if err != nil {
			continue
		}
		seen, err := l.Tree.Observe(ctx, name, 1)
		if err != nil {
			continue // the next pass tries again
		}
		for _, o := range seen.Nodes {
			if o.State != cgroup.Absent && len(o.Name) > len(name) &&
				slices.ContainsFunc(ready[uid], func(s runtime.Sandbox) bool { return isCalled(o.Name, s.ID) && !isKnown(s) }) {
				one := sharer{name: o.Name, pod: uid, sandbox: true}
				l.sharers.add(one)
				l.watchSharer(l.tracker.view, one)
				l.drift.recheck(o.Name) // so it is written with its pod
			}
		}
	}
}
