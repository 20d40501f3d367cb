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
	if err := l.mu.enter(ctx); err != nil {
		return err
	}
	defer l.mu.Unlock()
	if old, ok := l.View().Pod(uid); ok {
		if err := checkSwap(&old.Pod, &p.Pod, l.QoS.Cgroup); err != nil {
			return err
		}
	}
	planned, err := l.resizing(ctx, view, p)
	if err != nil {
		return err
	}
	return refuseBelowUse(planned.held, l.within(name))
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
// share of the swap space could not follow, unless the change restarts it.
func checkSwap(old, wanted *workload.Pod, cfg cgroup.Config) error {
	for i := range wanted.Containers {
		c := &wanted.Containers[i]
		have := old.Container(c.Name)
		if have == nil || have.Requests[workload.Memory] == c.Requests[workload.Memory] ||
			c.ResizePolicy[workload.Memory] == workload.RestartContainer {
			continue
		}
		if cgroup.MaySwap(old, have, cfg) {
			return errdefs.Refuse(errdefs.Infeasible, "In-place resize of containers with swap is not supported (container %s)", c.Name)
		}
	}
	return nil
}

// resizing compares the pod's tiers, cgroup and containers with the amounts of a view.
// CPUs and memory nodes stay as they are, because the passes move containers, and because the view
// may be older than the admission of a pod with exclusive CPUs. The caller holds mu.
func (l *Loop) resizing(ctx context.Context, view *ledger.View, p *ledger.Pod) (*plan, error) {
	out := &plan{}
	node, err := cgroup.PodNode(p, l.Layout, l.QoS.Cgroup)
	if err != nil {
		return nil, err
	}
	for _, tier := range l.wanted.tiers(l.wanted.above(view, p)) {
		if node.Name.Within(tier.Name) {
			out.desired = append(out.desired, tier)
		}
	}
	if out.seen, err = l.kernel.observe(ctx, out.desired); err != nil {
		return nil, err
	}
	inside, err := l.Tree.Observe(ctx, node.Name, -1)
	if err != nil {
		return nil, fmt.Errorf("observe cgroup %s: %w", node.Name, err)
	}
	out.seen.Nodes = append(out.seen.Nodes, inside.Nodes...)
	if !l.NoPodCgroups {
		out.desired = append(out.desired, node)
	}
	if out.containers, err = l.resized(ctx, view, p); err != nil {
		return nil, err
	}
	if err := l.kernel.elsewhere(ctx, out.containers, out.seen); err != nil {
		return nil, err
	}
	for b := range view.BindingsOf(p.UID()) {
		if !b.Own {
			continue
		}
		n, err := cgroup.ContainerNode(view, b, l.QoS.Cgroup)
		if err != nil {
			return nil, err
		}
		n.Values.Cpuset = cgroup.ContainerCpuset(l.View(), b.Owner)
		if o := out.seen.Find(n.Name); o.State == cgroup.Valid {
			n.Values.Cpuset = o.Values.Cpuset
		}
		out.desired = append(out.desired, n)
	}
	for _, n := range out.containers.nodes() {
		if o := out.seen.Find(n.Name); o.State != cgroup.Absent {
			n.Values.Cpuset = o.Values.Cpuset
		}
		out.desired = append(out.desired, n)
	}
	l.wanted.compare(out)
	return out, nil
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
	if err := l.mu.enter(ctx); err != nil {
		return err
	}
	defer l.mu.Unlock()
	l.wanted.uncommitted[uid] = p
	planned, err := l.resizing(ctx, view, p)
	if err != nil {
		return err
	}
	committed, _ := l.View().Pod(uid)
	undone := committed == p
	if !undone {
		if err := refuseBelowUse(planned.held, l.within(name)); err != nil {
			return err
		}
	}
	if _, err := l.writer.prepare(ctx, planned.containers); err != nil { // a pass sends the CPUs that are held
		return err
	}
	for _, op := range planned.ops {
		l.drift.forget(op.Name)
	}
	done := l.writer.apply(ctx, planned.containers, planned.ops, func(op cgroup.Op, err error) error {
		switch {
		case !op.Name.Within(l.within(name)):
			// As for a new pod, the next pass tries again.
			l.Log.ErrorContext(ctx, "updating the tier of a resized pod failed", "uid", uid, "error", err)
		case !errors.Is(err, cgroup.ErrBelowUse):
			return err
		case !undone: // the cgroup has used more since it was observed
			return errdefs.Refuse(errdefs.ResizeDeferred, "cannot decrease memory limits: %w", err)
		default:
			l.Log.WarnContext(ctx, "a memory limit stays until less is used", "cgroup", op.Name.String(), "error", err)
		}
		return nil
	})
	if done.stopped {
		return done.err
	}
	return nil
}

// resizable returns the values of a container that a resize may change.
func resizable(view *ledger.View, p *ledger.Pod, container string, cfg cgroup.Config) (cgroup.Values, bool) {
	c := p.Pod.Container(container)
	if c == nil {
		return cgroup.Values{}, false
	}
	values := cgroup.AdmittedResources(view, p, c, cfg).Values
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
	values, ok := resizable(view, p, b.Owner.Container, l.QoS.Cgroup)
	if !ok {
		return cgroup.Values{Cpuset: cgroup.ContainerCpuset(view, b.Owner)}, nil
	}
	name, err := l.kernel.alive(ctx, view, b, l.tracker.cgroups[b.ID])
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
