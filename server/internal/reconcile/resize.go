package reconcile

import (
	"context"
	"errors"
	"fmt"

	"github.com/berthd/berth/managers/cgroup"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/workload"
)

// CheckResize implements admission.CgroupManager. A limit below the current use is refused
// on both versions: v1 would refuse it itself, v2 would kill.
func (l *Loop) CheckResize(ctx context.Context, view *ledger.View, uid string) error {
	p, name, err := l.names.pod(view, uid)
	if err != nil {
		return err
	}
	if err := l.enter(ctx); err != nil {
		return err
	}
	defer l.mu.Unlock()
	if old, ok := l.View().Pod(uid); ok {
		if err := l.checkSwap(&old.Pod, &p.Pod); err != nil {
			return err
		}
	}
	nodes, seen, _, err := l.resizing(ctx, view, p)
	if err != nil {
		return err
	}
	_, held := l.names.hold(nodes, seen)
	return refuseBelowUse(held, l.within(name))
}

// within is the cgroup that contains all cgroups of a pod: its own, or any.
func (l *Loop) within(pod cgroup.Name) cgroup.Name {
	if l.NoPodCgroups {
		return nil
	}
	return pod
}

// refuseBelowUse refuses to resize a pod while one of its cgroups uses more memory.
func refuseBelowUse(held []cgroup.HeldLimit, pod cgroup.Name) error {
	for _, h := range held {
		if h.Name.Within(pod) {
			return errdefs.Refuse(errdefs.ResizeDeferred,
				"cannot decrease memory limits: attempting to set the memory limit of %s (%d) below current usage (%d)",
				h.Name, h.Bytes, h.UsedBytes)
		}
	}
	return nil
}

// checkSwap refuses a changed memory request for a container that may swap, because its
// share of the swap space could not follow, unless the change restarts it. The caller holds
// mu.
func (l *Loop) checkSwap(old, wanted *workload.Pod) error {
	for i := range wanted.Containers {
		c := &wanted.Containers[i]
		have := old.Container(c.Name)
		if have == nil || have.Requests[workload.Memory] == c.Requests[workload.Memory] ||
			c.ResizePolicy[workload.Memory] == workload.RestartContainer {
			continue
		}
		if cgroup.MaySwap(old, have, l.QoS.Cgroup) {
			return errdefs.Refuse(errdefs.Infeasible, "In-place resize of containers with swap is not supported (container %s)", c.Name)
		}
	}
	return nil
}

// resizing returns the wanted values of the pod's tiers, cgroup and containers, their
// observed values, and the runtime's containers among them. The amounts are those of the view.
// CPUs and memory nodes stay as they are, because the passes move containers, and because the view
// may be older than the admission of a pod with exclusive CPUs. The caller holds mu.
func (l *Loop) resizing(ctx context.Context, view *ledger.View, p *ledger.Pod) ([]cgroup.Node, *cgroup.Snapshot, runtimeContainers, error) {
	var none runtimeContainers
	node, err := cgroup.PodNode(p, l.Layout, l.QoS.Cgroup)
	if err != nil {
		return nil, nil, none, err
	}
	var nodes []cgroup.Node
	for _, tier := range l.tiers(l.above(view, p)) {
		if node.Name.Within(tier.Name) {
			nodes = append(nodes, tier)
		}
	}
	seen, err := l.kernel.observe(ctx, nodes)
	if err != nil {
		return nil, nil, none, err
	}
	inside, err := l.Tree.Observe(ctx, node.Name, -1)
	if err != nil {
		return nil, nil, none, fmt.Errorf("observe cgroup %s: %w", node.Name, err)
	}
	seen.Nodes = append(seen.Nodes, inside.Nodes...)
	if !l.NoPodCgroups {
		nodes = append(nodes, node)
	}
	for b := range view.BindingsOf(p.UID()) {
		if !b.Own {
			continue
		}
		n, err := cgroup.ContainerNode(view, b, l.QoS.Cgroup)
		if err != nil {
			return nil, nil, none, err
		}
		n.Values.Cpuset = cgroup.ContainerCpuset(l.View(), b.Owner)
		if o := seen.Find(n.Name); o.State == cgroup.Valid {
			n.Values.Cpuset = o.Values.Cpuset
		}
		nodes = append(nodes, n)
	}
	g, err := l.resized(ctx, view, p)
	if err != nil {
		return nil, nil, none, err
	}
	if err := l.kernel.elsewhere(ctx, g, seen); err != nil {
		return nil, nil, none, err
	}
	for _, n := range g.nodes() {
		if o := seen.Find(n.Name); o.State != cgroup.Absent {
			n.Values.Cpuset = o.Values.Cpuset
		}
		nodes = append(nodes, n)
	}
	if l.NoPodCgroups {
		nodes = made(nodes, seen)
	}
	return g.present(nodes, seen), seen, g, nil
}

// Resize implements admission.CgroupManager. The order of the writes is that of a pass:
// values that grow are written from the outside in, values that shrink from the inside out.
// If a resize is undone, a limit that would go below the current use stays; the passes try
// it again.
func (l *Loop) Resize(ctx context.Context, view *ledger.View, uid string) error {
	p, name, err := l.names.pod(view, uid)
	if err != nil {
		return err
	}
	if err := l.enter(ctx); err != nil {
		return err
	}
	defer l.mu.Unlock()
	l.uncommitted[uid] = p
	nodes, seen, g, err := l.resizing(ctx, view, p)
	if err != nil {
		return err
	}
	nodes, held := l.names.hold(nodes, seen)
	committed, _ := l.View().Pod(uid)
	undone := committed == p
	if !undone {
		if err := refuseBelowUse(held, l.within(name)); err != nil {
			return err
		}
	}
	l.applying = g
	defer func() { l.applying = runtimeContainers{} }()
	if _, err := l.prepare(ctx, g); err != nil { // a pass sends the CPUs that are held
		return err
	}
	for _, op := range cgroup.Diff(nodes, seen) {
		l.drift.forget(op.Name)
		_, err := l.ensure(ctx, op)
		switch {
		case err == nil:
		case op.Name.Within(l.within(name)) && errors.Is(err, cgroup.ErrBelowUse):
			// The cgroup has used more since it was observed.
			if !undone {
				return errdefs.Refuse(errdefs.ResizeDeferred, "cannot decrease memory limits: %w", err)
			}
			l.Log.WarnContext(ctx, "a memory limit stays until less is used", "cgroup", op.Name.String(), "error", err)
		case op.Name.Within(l.within(name)):
			return err
		default:
			// As for a new pod, the next pass tries again.
			l.Log.ErrorContext(ctx, "updating the tier of a resized pod failed", "uid", uid, "error", err)
		}
	}
	return nil
}

// resizable returns the values of a container that a resize may change.
func (l *Loop) resizable(view *ledger.View, p *ledger.Pod, container string) (cgroup.Values, bool) {
	c := p.Pod.Container(container)
	if c == nil {
		return cgroup.Values{}, false
	}
	values := cgroup.AdmittedResources(view, p, c, l.QoS.Cgroup).Values
	values.HugePages = nil // these cannot be resized
	return values, true
}

// startValues returns the values that a container of a runtime starts with. The pod may have been resized after the
// agent has read the amounts with which the container was created, for example while the runtime pulled the image. If the
// container runs already, a memory limit below its use is left out. The caller holds mu.
func (l *Loop) startValues(ctx context.Context, view *ledger.View, b ledger.Binding) (cgroup.Values, error) {
	p, _, err := l.names.pod(view, b.Owner.Pod)
	if err != nil {
		return cgroup.Values{}, err
	}
	values, ok := l.resizable(view, p, b.Owner.Container)
	if !ok {
		return cgroup.Values{Cpuset: cgroup.ContainerCpuset(view, b.Owner)}, nil
	}
	name, err := l.alive(ctx, view, b)
	if err != nil || name == nil {
		return values, err
	}
	seen, err := l.Tree.Observe(ctx, name, 0)
	if err != nil {
		return cgroup.Values{}, fmt.Errorf("observe the cgroup of container %s: %w", b.Owner, err)
	}
	nodes, _ := cgroup.HoldLimits([]cgroup.Node{{Name: name, Values: values}}, seen, func(cgroup.Name) bool { return true })
	return nodes[0].Values, nil
}
