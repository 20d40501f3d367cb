package reconcile

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/berthd/berth/managers/cgroup"
	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/placement"
	"github.com/berthd/berth/server/internal/runtime"
)

// This file reads and writes the cgroups of opening pods and of their sandboxes.

// beginOpening restricts the cgroup of a new pod, if a runtime will start a sandbox in it. A cgroup that is already there may be of a
// pod that was opening when the ledger was lost: then it has fewer CPUs than the one above. It returns whether the pod is opening
// since. The caller holds mu.
func (l *Loop) beginOpening(ctx context.Context, view *ledger.View, p *ledger.Pod, node *cgroup.Node, seen *cgroup.Snapshot) (bool, error) {
	now := l.View() // other pods may have been committed since view
	o := seen.Find(node.Name)
	if o.State == cgroup.Absent {
		if l.Runtime == nil {
			return false, nil
		}
		one := opening{node.Name, ownCPUs(view, p)}
		l.opening.pods[p.UID()] = one
		node.Values.CPUs = l.opening.cpus(now, p.UID())
		l.opening.add(now, p.UID(), one, node.Values.CPUs)
		return true, nil
	}
	if _, opens := l.opening.pods[p.UID()]; opens || o.Values.CPUs.IsEmpty() {
		return false, nil
	}
	above, err := l.Tree.Observe(ctx, o.Name.Parent(), 0)
	if err != nil {
		return false, fmt.Errorf("check the cgroup above pod %s: %w", p.UID(), err)
	}
	if l.kernel.allowed(above.Find(o.Name.Parent())).IsSubsetOf(o.Values.CPUs) {
		return false, nil
	}
	l.opening.add(now, p.UID(), opening{o.Name, ownCPUs(view, p)}, o.Values.CPUs)
	return true, nil
}

// endOpening prepares the cgroup of a pod for its first container. The cgroups in it are of
// its sandbox, except that of a container that is bound or being started. The caller holds mu.
func (l *Loop) endOpening(ctx context.Context, view *ledger.View, uid, starting string) error {
	o, ok := l.opening.pods[uid]
	if !ok {
		return nil
	}
	seen, err := l.Tree.Observe(ctx, o.name, 1)
	if err != nil {
		return fmt.Errorf("look for the sandbox of pod %s: %w", uid, err)
	}
	for i := range seen.Nodes {
		child := &seen.Nodes[i]
		if len(child.Name) == len(o.name) || isCalled(child.Name, starting) || l.names.isContainer(view, uid, child.Name) {
			continue
		}
		// One that cannot be moved blocks containers with exclusive CPUs, and not its own pod.
		if err := l.moveSandbox(ctx, view, sharer{name: child.Name, pod: uid, sandbox: true}, child.Values.CPUs); err != nil {
			l.Log.WarnContext(ctx, "a sandbox is not moved to the shared CPUs", "pod", uid, "name", child.Name.String(), "error", err)
		}
	}
	above, err := l.Tree.Observe(ctx, o.name.Parent(), 0)
	if err != nil {
		return fmt.Errorf("check the cgroup above pod %s: %w", uid, err)
	}
	if parent := above.Find(o.name.Parent()); seen.Find(o.name).State != cgroup.Absent && parent.State != cgroup.Absent {
		if err := l.writer.setCPUs(ctx, o.name, l.kernel.allowed(parent)); err != nil {
			return fmt.Errorf("give pod %s all CPUs of the cgroup above: %w", uid, err)
		}
	}
	l.opening.stop(uid)
	l.drift.forget(o.name)
	return nil
}

// moveSandbox gives a sandbox its CPUs, wherever its pod's cgroup may run afterwards. The
// caller holds mu.
func (l *Loop) moveSandbox(ctx context.Context, view *ledger.View, s sharer, present cpuset.Set) error {
	cpus := view.CommonCPUs()
	if cpus.IsEmpty() {
		return nil
	}
	if l.sharers.hasSandbox(s.name, s.pod) {
		l.sharers.watch(view, s)
	} else {
		l.sharers.add(view, s)
	}
	if present != cpus {
		if err := l.writer.setCPUs(ctx, s.name, cpus); err != nil {
			return fmt.Errorf("move the sandbox of pod %s: %w", s.pod, err)
		}
	}
	l.tracker.record(placement.Event{Kind: placement.ShownRunning, Key: ofCgroup(s.name)})
	l.tracker.record(placement.Event{Kind: placement.KernelRuns, Key: ofCgroup(s.name), CPUs: cpus})
	return nil
}

// endOpenings ends the opening of pods whose containers have started without a call. The caller
// holds mu.
func (l *Loop) endOpenings(ctx context.Context, view *ledger.View) {
	for uid := range l.opening.pods {
		if l.Runtime != nil && !hasContainers(view, uid) {
			continue
		}
		if err := l.endOpening(ctx, view, uid, ""); err != nil {
			l.Log.WarnContext(ctx, "prepare the cgroup of a pod that runs", "pod", uid, "error", err)
		}
	}
}

// knowSandboxes makes a pass if no pass had the runtime's list of all sandboxes yet. The caller
// holds mu.
func (l *Loop) knowSandboxes(ctx context.Context, view *ledger.View) error {
	if l.sharers.known || l.Runtime == nil || l.NoPodCgroups {
		return nil
	}
	if err := l.pass(ctx, view); !l.sharers.known {
		return errdefs.Unavailablef("sandboxes of an earlier berthd may run: %w", cmp.Or(err, errAway))
	}
	return nil // the loop reports an error of the pass
}

// findSandboxes finds the sandboxes of the pods of a list. The caller holds mu.
func (l *Loop) findSandboxes(ctx context.Context, listed *listing) {
	ready := readySandboxes(listed.sandboxes)
	for _, uid := range listed.pods {
		p, known := l.tracker.view.Pod(uid)
		isKnown := func(s runtime.Sandbox) bool {
			return slices.ContainsFunc(l.sharers.pods[uid], func(o sharer) bool { return o.sandbox && isCalled(o.name, s.ID) })
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
				l.sharers.add(l.tracker.view, one)
				l.drift.recheck(o.Name) // so it is written with its pod
			}
		}
	}
}
