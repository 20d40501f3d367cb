package reconcile

import (
	"context"
	"slices"
	"strings"

	"github.com/berthd/berth/managers/cgroup"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/server/runtime"
)

// Sandboxes that a runtime made run on the shared CPUs. CRI has no field for that, and a
// runtime never writes the CPUs of a sandbox, so berthd does: the tracker has them move
// away before a container with CPUs of its own starts. They are found in a pass, and when the
// first container of their pod starts.

// sandboxesIn gives the cgroups of the sandboxes of pods that the view has: those in a
// snapshot that are called after a sandbox of a list.
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

// noteSandboxes takes over the sandboxes that a pass has seen. Without a list of all, those
// that were known before are kept. The caller holds mu.
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

// watchSandbox has the tracker know a sandbox. The caller holds mu.
func (l *Loop) watchSandbox(view *ledger.View, name cgroup.Name) {
	l.watch(name, l.inPod(name)+"/(sandbox)")
	l.shares(view, name)
}

// podsOfStarts gives the pods of those of some containers that start. The caller holds mu.
func (l *Loop) podsOfStarts(ids []string) (uids []string) {
	for _, c := range l.tracker.Starts() {
		uid, _, ok := strings.Cut(c.Name, "/")
		if ok && slices.Contains(ids, c.ID) && !slices.Contains(uids, uid) {
			uids = append(uids, uid)
		}
	}
	return uids
}

// findSandboxes looks for the sandboxes of pods in which a container starts. The caller holds
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
			continue // the next pass looks again
		}
		for _, found := range l.sandboxesIn(l.tracked, listed.sandboxes, seen) {
			l.sandboxes = append(l.sandboxes, found)
			l.watchSandbox(l.tracked, found)
		}
	}
}

// sharing gives the cgroups that share the shared CPUs and have no binding: sandboxes, and
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
