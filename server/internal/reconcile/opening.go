package reconcile

import (
	"context"
	"fmt"

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

// openingCPUs returns the CPUs of an opening pod's cgroup; none if it is not restricted.
func (l *Loop) openingCPUs(view *ledger.View, uid string) cpuset.Set {
	cpus := view.CommonCPUs()
	if p, known := view.Pod(uid); known {
		return cpus.Union(ownCPUs(view, p))
	}
	return cpus.Union(l.opening[uid].own)
}

// restrictOpening sets the CPUs of opening pods' cgroups in nodes. The caller holds mu.
func (l *Loop) restrictOpening(view *ledger.View, nodes []cgroup.Node) {
	for i := range nodes {
		uid, _ := l.Layout.PodUID(nodes[i].Name)
		if o, opens := l.opening[uid]; opens && o.name.Equal(nodes[i].Name) {
			nodes[i].Values.CPUs = l.openingCPUs(view, uid)
		}
	}
}

// ownCPUs returns the CPUs of a pod's containers that are not shared.
func ownCPUs(view *ledger.View, p *ledger.Pod) (own cpuset.Set) {
	for i := range p.Pod.Containers {
		own = own.Union(view.RunsOn(ledger.Owner{Pod: p.UID(), Container: p.Pod.Containers[i].Name}))
	}
	return own.Minus(view.CommonCPUs())
}

// beginOpening restricts the cgroup of a new pod, if a runtime will start a sandbox in it. A cgroup
// that is already there may be of a pod that was opening when the ledger was lost. It returns
// whether the pod is opening since. The caller holds mu.
func (l *Loop) beginOpening(ctx context.Context, view *ledger.View, p *ledger.Pod, node *cgroup.Node, seen *cgroup.Snapshot) (bool, error) {
	if o := seen.Find(node.Name); o.State != cgroup.Absent {
		return l.findAgain(ctx, view, p.UID(), o)
	}
	if l.Runtime == nil {
		return false, nil
	}
	l.opening[p.UID()] = opening{node.Name, ownCPUs(view, p)}
	now := l.View() // other pods may have been committed since view
	node.Values.CPUs = l.openingCPUs(now, p.UID())
	l.watchOpening(now, p.UID(), node.Values.CPUs)
	return true, nil
}

// findAgain notes a pod that is admitted again as opening, if its cgroup has fewer CPUs than the
// one above. The caller holds mu.
func (l *Loop) findAgain(ctx context.Context, view *ledger.View, uid string, o cgroup.Observed) (bool, error) {
	if _, opens := l.opening[uid]; opens || o.Values.CPUs.IsEmpty() {
		return false, nil
	}
	above, err := l.Tree.Observe(ctx, o.Name.Parent(), 0)
	if err != nil {
		return false, fmt.Errorf("check the cgroup above pod %s: %w", uid, err)
	}
	if l.allowed(above.Find(o.Name.Parent())).IsSubsetOf(o.Values.CPUs) {
		return false, nil
	}
	p, _ := view.Pod(uid)
	l.opening[uid] = opening{o.Name, ownCPUs(view, p)}
	l.watchOpening(l.View(), uid, o.Values.CPUs)
	return true, nil
}

// openAgain restricts the cgroup of a pod again after its last container has ended: the runtime
// may start another sandbox in it before the next container. The caller holds mu.
func (l *Loop) openAgain(view *ledger.View, uid string) {
	p, known := view.Pod(uid)
	_, opens := l.opening[uid]
	if !known || opens || l.Runtime == nil || l.NoPodCgroups || l.leaving[uid] || hasContainers(view, uid) || l.tracker.isStarting(uid) {
		return
	}
	name, err := l.Layout.Pod(p.QoS, uid)
	if err != nil {
		return
	}
	l.opening[uid] = opening{name: name}
	l.watchOpening(view, uid, view.Rules().Machine.CPUs())
}

// sandboxOf is the owner of a pod's sandbox.
func sandboxOf(uid string) placement.Owner { return placement.Owner{Pod: uid, Container: "(sandbox)"} }

// watchOpening adds an opening pod's cgroup, with its present CPUs, to the tracker. The caller
// holds mu.
func (l *Loop) watchOpening(view *ledger.View, uid string, present cpuset.Set) {
	name := l.opening[uid].name
	l.tracker.watch(name, sandboxOf(uid))
	l.tracker.record(placement.Event{Kind: placement.ShownRunning, Key: ofCgroup(name)})
	l.tracker.record(placement.Event{Kind: placement.KernelRuns, Key: ofCgroup(name), CPUs: present})
	l.wantOpening(view, uid)
}

// wantOpening sets the CPUs of an opening pod's cgroup in the tracker. The caller holds mu.
func (l *Loop) wantOpening(view *ledger.View, uid string) {
	if o, ok := l.opening[uid]; ok {
		l.tracker.Want(ofCgroup(o.name), l.openingCPUs(view, uid), cpuset.Set{})
	}
}

// endOpening prepares the cgroup of a pod for its first container. The cgroups in it are of
// its sandbox, except that of a container that is bound or being started. The caller holds mu.
func (l *Loop) endOpening(ctx context.Context, view *ledger.View, uid, starting string) error {
	o, ok := l.opening[uid]
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
		all := cgroup.Values{Cpuset: cgroup.Cpuset{CPUs: l.allowed(parent)}}
		if _, err := l.ensure(ctx, cgroup.Op{Kind: cgroup.Set, Name: o.name, Values: all}); err != nil {
			return fmt.Errorf("give pod %s all CPUs of the cgroup above: %w", uid, err)
		}
	}
	l.stopOpening(uid)
	return nil
}

// moveSandbox gives a sandbox its CPUs, wherever its pod's cgroup may run afterwards. The
// caller holds mu.
func (l *Loop) moveSandbox(ctx context.Context, view *ledger.View, s sharer, present cpuset.Set) error {
	cpus := view.CommonCPUs()
	if cpus.IsEmpty() {
		return nil
	}
	if !l.sharers.hasSandbox(s.name, s.pod) {
		l.sharers.add(s)
	}
	l.watchSharer(view, s)
	if present != cpus {
		op := cgroup.Op{Kind: cgroup.Set, Name: s.name, Values: cgroup.Values{Cpuset: cgroup.Cpuset{CPUs: cpus}}}
		if _, err := l.ensure(ctx, op); err != nil {
			return fmt.Errorf("move the sandbox of pod %s: %w", s.pod, err)
		}
	}
	l.tracker.record(placement.Event{Kind: placement.ShownRunning, Key: ofCgroup(s.name)})
	l.tracker.record(placement.Event{Kind: placement.KernelRuns, Key: ofCgroup(s.name), CPUs: cpus})
	return nil
}

// stopOpening forgets an opening pod. The caller holds mu.
func (l *Loop) stopOpening(uid string) {
	if o, ok := l.opening[uid]; ok {
		delete(l.opening, uid)
		l.tracker.forget(ofCgroup(o.name))
		l.drift.forget(o.name)
	}
}

// findOpening finds the pods that were opening when berthd ended: their cgroups have fewer CPUs
// than those above, or a runtime is to start their first container. The caller holds mu.
func (l *Loop) findOpening(view *ledger.View, seen *cgroup.Snapshot) {
	if l.openingFound || l.NoPodCgroups {
		return
	}
	l.openingFound = true
	above := map[string]cpuset.Set{}
	for i := range seen.Nodes {
		o := &seen.Nodes[i]
		uid, isPod := l.Layout.PodUID(o.Name)
		if p, known := view.Pod(uid); !isPod || !known || !l.names.isOf(p, o.Name) || o.State == cgroup.Absent || o.Values.CPUs.IsEmpty() {
			continue
		}
		parent := o.Name.Parent()
		if _, known := above[parent.String()]; !known {
			above[parent.String()] = l.allowed(seen.Find(parent))
		}
		if above[parent.String()].IsSubsetOf(o.Values.CPUs) && (l.Runtime == nil || hasContainers(view, uid)) {
			continue
		}
		l.opening[uid] = opening{name: o.Name}
		l.watchOpening(view, uid, o.Values.CPUs)
	}
}

func hasContainers(view *ledger.View, uid string) bool {
	for range view.BindingsOf(uid) {
		return true
	}
	return false
}

// endOpenings ends the opening of pods whose containers have started without a call. The caller
// holds mu.
func (l *Loop) endOpenings(ctx context.Context, view *ledger.View) {
	for uid := range l.opening {
		if l.Runtime != nil && !hasContainers(view, uid) {
			continue
		}
		if err := l.endOpening(ctx, view, uid, ""); err != nil {
			l.Log.WarnContext(ctx, "prepare the cgroup of a pod that runs", "pod", uid, "error", err)
		}
	}
}
