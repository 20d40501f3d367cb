package reconcile

import (
	"context"
	"slices"
	"strings"

	"github.com/berthd/berth/managers/cgroup"
	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/server/runtime"
)

// Sandboxes created by a runtime run on the shared CPUs. CRI has no field for this, and a
// runtime never writes the CPUs of a sandbox, so berthd does: the tracker moves them away
// before a container with exclusive CPUs starts. They are found in a pass, and when the
// first container of their pod starts.

// sandboxesIn returns the cgroups of sandboxes of the view's pods: the observed cgroups
// that are named after a listed sandbox.
func (l *Loop) sandboxesIn(view *ledger.View, listed []runtime.Sandbox, seen *cgroup.Snapshot) (names []cgroup.Name) {
	ids := map[string][]string{} // by pod
	for _, s := range listed {
		if _, known := view.Pod(s.Pod); known && s.Ready {
			ids[s.Pod] = append(ids[s.Pod], s.ID)
		}
	}
	for i := range seen.Nodes {
		n := &seen.Nodes[i]
		uid, ok := l.Layout.PodUID(n.Name.Parent())
		if ok && n.State != cgroup.Absent && slices.ContainsFunc(ids[uid], func(id string) bool { return isCalled(n.Name, id) }) {
			names = append(names, n.Name)
		}
	}
	return names
}

// noteSandboxes stores the sandboxes observed in a pass. Without a list of all, earlier
// ones are kept. The caller holds mu.
func (l *Loop) noteSandboxes(view *ledger.View, seen *cgroup.Snapshot) {
	if heard := l.calls.heard; heard != nil && heard.ids == nil {
		l.sandboxes = l.sandboxesIn(view, heard.sandboxes, seen)
	} else {
		l.sandboxes = slices.DeleteFunc(l.sandboxes, func(n cgroup.Name) bool { return seen.Find(n).State == cgroup.Absent })
	}
	for _, name := range l.sandboxes {
		l.watchSandbox(view, name)
	}
}

// watchSandbox adds a sandbox to the tracker. A sandbox that cannot be moved anywhere is left
// out, because it would block starts for good. The caller holds mu.
func (l *Loop) watchSandbox(view *ledger.View, name cgroup.Name) {
	if l.sharedBy(view, name).IsEmpty() {
		l.forget(name.String())
		return
	}
	l.watch(name, l.inPod(name)+"/(sandbox)")
	l.shares(view, name)
}

// podsOfStarts returns the pods of the given containers that are being started. The caller
// holds mu.
func (l *Loop) podsOfStarts(ids []string) (uids []string) {
	for _, c := range l.tracker.Starts() {
		uid, _, ok := strings.Cut(c.Name, "/")
		if ok && slices.Contains(ids, c.ID) && !slices.Contains(uids, uid) {
			uids = append(uids, uid)
		}
	}
	return uids
}

// findSandboxes finds the sandboxes of pods in which a container starts. The caller holds
// mu.
func (l *Loop) findSandboxes(ctx context.Context, listed *listing) {
	for _, uid := range listed.pods {
		p, known := l.tracked.Pod(uid)
		if !known || slices.ContainsFunc(l.sandboxes, func(n cgroup.Name) bool { return l.inPod(n) == uid }) {
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
		for _, found := range l.sandboxesIn(l.tracked, listed.sandboxes, seen) {
			l.sandboxes = append(l.sandboxes, found)
			l.watchSandbox(l.tracked, found)
		}
	}
}

// sharedBy returns the CPUs of a cgroup without a binding: the shared CPUs. A sandbox gets the
// reserved CPUs if no CPU is shared.
func (l *Loop) sharedBy(view *ledger.View, name cgroup.Name) cpuset.Set {
	shared := view.SharedCPUs()
	if shared.IsEmpty() && slices.ContainsFunc(l.sandboxes, name.Equal) {
		return view.Rules().ReservedCPUs.Minus(view.Rules().OfflineCPUs)
	}
	return shared
}

// sharingNodes returns the cgroups of sharing with their CPUs, without those that are absent
// from a snapshot.
func (l *Loop) sharingNodes(view *ledger.View, seen *cgroup.Snapshot) (nodes []cgroup.Node) {
	for _, name := range l.sharing(view) {
		cpus := l.sharedBy(view, name)
		if !cpus.IsEmpty() && (seen == nil || seen.Find(name).State != cgroup.Absent) {
			nodes = append(nodes, cgroup.Node{Name: name, Values: cgroup.Values{Cpuset: cgroup.Cpuset{CPUs: cpus}}})
		}
	}
	return nodes
}

// sharing returns the cgroups on the shared CPUs without a binding: sandboxes, and
// containers of unknown living pods.
func (l *Loop) sharing(view *ledger.View) []cgroup.Name {
	names := l.stillSharing(view)
	for _, name := range l.sandboxes {
		if _, known := view.Pod(l.inPod(name)); known {
			names = append(names, name)
		}
	}
	return names
}
