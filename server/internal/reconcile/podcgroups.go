package reconcile

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/berthd/berth/managers/cgroup"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/placement"
	"github.com/berthd/berth/managers/qos"
	"github.com/berthd/berth/managers/workload"
)

// EnsurePod implements admission.CgroupManager.
func (l *Loop) EnsurePod(ctx context.Context, view *ledger.View, uid string) (parent string, created bool, err error) {
	p, name, err := l.names.pod(view, uid)
	if err != nil || l.NoPodCgroups {
		return "", false, err
	}
	if parent, err = l.Layout.Literal(name); err != nil {
		return "", false, err
	}
	if err := l.mu.enter(ctx); err != nil {
		return "", false, err
	}
	defer l.mu.Unlock()
	node, err := cgroup.PodNode(p, l.Layout, l.QoS.Cgroup)
	if err != nil {
		return "", false, err
	}
	l.wanted.endLeaving(uid, name)
	l.ending.revoke(name) // it may have been removed since the last pass
	l.wanted.uncommitted[uid] = p
	// The tiers are written first, because a tier's weight must include the pod before the
	// pod runs.
	tiers := l.drift.changed(l.wanted.enforced(qos.Above(l.wanted.above(view, p), l.Layout, l.QoS, p.QoS)))
	seen, err := l.lookShortly(ctx, tiers, node, uid)
	if err != nil {
		return "", false, err
	}
	opens, err := l.sandboxes.beginOpening(ctx, view, p, &node, seen)
	if err != nil {
		return "", false, err
	}
	created, err = l.ensurePod(ctx, tiers, node, seen)
	if errors.Is(err, cgroup.ErrBelowUse) {
		// The cgroup existed, and uses more than the pod may have.
		if seen, err = l.kernel.observe(ctx, append(tiers, node)); err == nil {
			created, err = l.ensurePod(ctx, tiers, node, seen)
		}
	}
	if err != nil && opens {
		l.sandboxes.opening.stop(uid)
		l.drift.forget(name)
	}
	if err != nil {
		return "", false, err
	}
	return parent, created, nil
}

// RecordClaims implements admission.CgroupManager.
func (l *Loop) RecordClaims(ctx context.Context, view *ledger.View, uid string, there bool) (restore func() error, err error) {
	restore = func() error { return nil }
	p, _, err := l.names.pod(view, uid)
	if err != nil || l.records.Records == nil {
		return restore, err
	}
	if err := l.mu.enter(ctx); err != nil {
		return restore, err
	}
	defer l.mu.Unlock()
	before, err := l.records.Admit(ctx, view, p, there)
	if before == nil {
		return restore, err
	}
	undoing := context.WithoutCancel(ctx)
	return func() error {
		l.mu.Lock()
		defer l.mu.Unlock()
		return l.records.Restore(undoing, before)
	}, err
}

// ensurePod writes the tiers and the cgroup of a pod, where they differ from the observed
// tree. It returns whether it created the pod's cgroup. The caller holds mu.
func (l *Loop) ensurePod(ctx context.Context, tiers []cgroup.Node, pod cgroup.Node, seen *cgroup.Snapshot) (created bool, err error) {
	nodes, _ := l.names.hold(append(slices.Clone(tiers), pod), seen)
	ops := cgroup.Diff(nodes, seen)
	for _, op := range ops {
		l.drift.forget(op.Name)
	}
	done := l.writer.apply(ctx, runtimeContainers{}, ops, func(op cgroup.Op, err error) error {
		if op.Kind == cgroup.Create || op.Name.Equal(pod.Name) {
			return err
		}
		// A limit that the tier cannot have now does not concern this pod; the next
		// pass tries again.
		l.Log.ErrorContext(ctx, "updating the tier of a new pod failed", "cgroup", pod.Name.String(), "error", err)
		return nil
	})
	if done.stopped {
		return false, done.err
	}
	l.drift.hold(nodes, done.failed)
	return slices.ContainsFunc(done.created, pod.Name.Equal), nil
}

// lookShortly observes a pod's cgroup. It assumes that the tiers have the values that
// berthd wrote; the next pass repairs changes by other programs. A new pod without an
// orphan in the last pass is assumed to have no cgroup; the creation shows whether that is
// true.
func (l *Loop) lookShortly(ctx context.Context, tiers []cgroup.Node, pod cgroup.Node, uid string) (*cgroup.Snapshot, error) {
	var wanted []cgroup.Node
	sure := make([]cgroup.Observed, 0, len(tiers)+1)
	for _, n := range tiers {
		if values := l.drift.of(n.Name); values != nil {
			sure = append(sure, cgroup.Observed{Name: n.Name, State: cgroup.Valid, Values: *values})
		} else {
			wanted = append(wanted, n)
		}
	}
	_, known := l.View().Pod(uid)
	orphan := slices.ContainsFunc(l.orphans, pod.Name.Equal)
	if l.drift.kept == nil || l.drift.of(pod.Name) != nil || known || orphan {
		wanted = append(wanted, pod)
	} else {
		sure = append(sure, cgroup.Observed{Name: pod.Name})
	}
	seen, err := l.kernel.observe(ctx, wanted)
	if err != nil {
		return nil, err
	}
	seen.Nodes = append(sure, seen.Nodes...)
	return seen, nil
}

// ForgetPod implements admission.CgroupManager.
func (l *Loop) ForgetPod(ctx context.Context, view *ledger.View, uid string) error {
	_, name, err := l.names.pod(view, uid)
	if err != nil {
		return err
	}
	l.mu.Lock()
	delete(l.wanted.uncommitted, uid)
	l.mu.Unlock()
	return l.removePodCgroup(ctx, view, uid, name)
}

// RemovePod implements admission.CgroupManager.
func (l *Loop) RemovePod(ctx context.Context, view *ledger.View, uid string) error {
	_, name, err := l.names.pod(view, uid)
	if err != nil {
		return err
	}
	if err := l.mu.enter(ctx); err != nil {
		return err
	}
	outside, err := l.lister.outside(ctx, view, uid)
	if err != nil {
		l.mu.Unlock()
		return err
	}
	l.wanted.leaving[uid] = true
	l.recordAll(view, uid, placement.Stop)
	l.mu.Unlock()
	for _, name := range outside {
		err = errors.Join(err, l.RemoveCgroup(ctx, name))
	}
	err = errors.Join(err, l.removePodCgroup(ctx, view, uid, name))
	l.mu.Lock()
	defer l.mu.Unlock()
	if err != nil {
		l.wanted.endLeaving(uid, name)
		l.recordAll(view, uid, placement.Withdraw)
		return err
	}
	l.recordAll(view, uid, placement.Ended)
	return nil
}

// recordAll applies an event to all containers and sandboxes of a pod. The caller holds mu.
func (l *Loop) recordAll(view *ledger.View, uid string, kind placement.EventKind) {
	var sandboxes []cgroup.Name
	if o, opens := l.sandboxes.opening.pods[uid]; opens {
		sandboxes = append(sandboxes, o.name)
	}
	for _, s := range l.sandboxes.sharers.pods[uid] {
		sandboxes = append(sandboxes, s.name)
	}
	for _, name := range sandboxes {
		l.tracker.record(placement.Event{Kind: kind, Key: ofCgroup(name)})
		if kind == placement.Withdraw {
			l.tracker.record(placement.Event{Kind: placement.ShownRunning, Key: ofCgroup(name)}) // no start is in progress
		}
	}
	for b := range view.BindingsOf(uid) {
		l.tracker.record(placement.Event{Kind: kind, Key: l.tracker.key(b)})
	}
}

// RemoveCgroup kills the processes in a cgroup and removes it. The caller does not hold mu.
func (l *Loop) RemoveCgroup(ctx context.Context, name cgroup.Name) error {
	defer l.timed(OpDestroy, l.Now())
	l.ending.add(name)
	err := l.Tree.Remove(ctx, name)
	l.ending.end(name, err == nil)
	l.mu.Lock()
	l.drift.forgetAll(name)
	if err == nil {
		if uid, opens := l.sandboxes.opening.at(name); opens {
			l.sandboxes.opening.stop(uid)
		}
		if uid, isPod := l.Layout.PodUID(name); isPod {
			l.sandboxes.sharers.forget(uid, name)
		}
		l.tracker.forget(ofCgroup(name))
	}
	l.mu.Unlock()
	if err != nil {
		return err
	}
	return l.forgetRecord(ctx, name)
}

// ContainerPath returns the path of a container's cgroup below the mount point; empty if a
// runtime creates it.
func (l *Loop) ContainerPath(p *ledger.Pod, container string) (string, error) {
	if l.Runtime != nil || l.NoPodCgroups {
		return "", nil
	}
	name, err := l.names.container(p, container)
	if err != nil {
		return "", err
	}
	return l.Layout.Literal(name)
}

// Vacant implements admission.CgroupManager.
func (l *Loop) Vacant(ctx context.Context, b ledger.Binding, starting int) (bool, error) {
	pids, err := l.Tree.Procs(ctx, l.Layout.Driver().Parse(b.CgroupPath))
	return !slices.ContainsFunc(pids, func(pid int) bool { return pid != starting }), err
}

// RemoveContainer implements admission.CgroupManager.
func (l *Loop) RemoveContainer(ctx context.Context, b ledger.Binding) error {
	return l.RemoveCgroup(ctx, l.Layout.Driver().Parse(b.CgroupPath))
}

// UnknownPods implements admission.CgroupManager.
func (l *Loop) UnknownPods(ctx context.Context, view *ledger.View) (uids []string, err error) {
	names, err := l.unknownCgroups(ctx, view)
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		if uid, ok := l.Layout.PodUID(name); ok {
			uids = append(uids, uid)
		}
	}
	slices.Sort(uids)
	return slices.Compact(uids), nil
}

// RemoveUnknown implements admission.CgroupManager.
func (l *Loop) RemoveUnknown(ctx context.Context, view *ledger.View, uid string) error {
	if now := l.View(); now.Generation() > view.Generation() {
		view = now // it may have been admitted since
	}
	p, known := view.Pod(uid)
	var errs []error
	if l.NoPodCgroups {
		name, err := l.Layout.Pod(workload.Guaranteed, uid)
		if err != nil || known {
			return err
		}
		return l.forgetRecord(ctx, name)
	}
	for _, class := range workload.QoSClasses {
		if known && p.QoS == class {
			continue
		}
		name, err := l.Layout.Pod(class, uid)
		if err != nil {
			return err
		}
		seen, err := l.Tree.Observe(ctx, name, 0)
		if err != nil {
			errs = append(errs, fmt.Errorf("observe cgroup %s: %w", name, err))
			continue
		}
		if seen.Find(name).State != cgroup.Absent {
			errs = append(errs, l.RemoveOrphan(ctx, name))
		} else {
			errs = append(errs, l.forgetRecord(ctx, name))
		}
	}
	return errors.Join(errs...)
}

// unknownCgroups returns the cgroups of pods that the view does not have.
func (l *Loop) unknownCgroups(ctx context.Context, view *ledger.View) ([]cgroup.Name, error) {
	if l.NoPodCgroups {
		return nil, nil
	}
	seen, err := l.Tree.Observe(ctx, l.Layout.Pods(), 2)
	if err != nil {
		return nil, fmt.Errorf("observe the cgroup tree: %w", err)
	}
	return l.Layout.Orphans(seen, ClassesOf(view)), nil
}
