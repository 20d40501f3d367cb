package reconcile

import (
	"context"
	"errors"
	"fmt"

	"github.com/berthd/berth/managers/cgroup"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/placement"
	"github.com/berthd/berth/managers/workload"
)

// resizes gives the cgroups of pods other amounts.
type resizes struct {
	shared
	mu     turns // those of the Loop, which guard the others
	writer *writer
	wanted *wanted
	lister *lister
}

// CheckResize implements admission.CgroupManager. A limit below the current use is refused
// on both versions: v1 would refuse it itself, v2 would kill.
func (r *resizes) CheckResize(ctx context.Context, view *ledger.View, uid string) error {
	p, name, err := r.names.pod(view, uid)
	if err != nil {
		return err
	}
	if err := r.mu.enter(ctx); err != nil {
		return err
	}
	defer r.mu.Unlock()
	if old, ok := r.cfg.View().Pod(uid); ok {
		if err := checkSwap(&old.Pod, &p.Pod, r.cfg.QoS.Cgroup); err != nil {
			return err
		}
	}
	planned, err := r.resizing(ctx, view, p)
	if err != nil {
		return err
	}
	return refuseBelowUse(planned.held, r.within(name))
}

// within is the cgroup that contains all cgroups of a pod: its own, or any.
func (r *resizes) within(pod cgroup.Name) cgroup.Name {
	if r.cfg.NoPodCgroups {
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
func (r *resizes) resizing(ctx context.Context, view *ledger.View, p *ledger.Pod) (*plan, error) {
	out := &plan{}
	node, err := cgroup.PodNode(p, r.cfg.Layout, r.cfg.QoS.Cgroup)
	if err != nil {
		return nil, err
	}
	for _, tier := range r.wanted.tiers(r.wanted.above(view, p)) {
		if node.Name.Within(tier.Name) {
			out.desired = append(out.desired, tier)
		}
	}
	if out.seen, err = r.kernel.observe(ctx, out.desired); err != nil {
		return nil, err
	}
	inside, err := r.cfg.Tree.Observe(ctx, node.Name, -1)
	if err != nil {
		return nil, fmt.Errorf("observe cgroup %s: %w", node.Name, err)
	}
	out.seen.Nodes = append(out.seen.Nodes, inside.Nodes...)
	if !r.cfg.NoPodCgroups {
		out.desired = append(out.desired, node)
	}
	if out.containers, err = r.resized(ctx, view, p); err != nil {
		return nil, err
	}
	if err := r.kernel.elsewhere(ctx, out.containers, out.seen); err != nil {
		return nil, err
	}
	for b := range view.BindingsOf(p.UID()) {
		if !b.Own {
			continue
		}
		n, err := cgroup.ContainerNode(view, b, r.cfg.QoS.Cgroup)
		if err != nil {
			return nil, err
		}
		n.Values.Cpuset = cgroup.ContainerCpuset(r.cfg.View(), b.Owner)
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
	r.wanted.compare(out)
	return out, nil
}

// Resize implements admission.CgroupManager. The order of the writes is that of a pass:
// values that grow are written from the outside in, values that shrink from the inside out.
// If a resize is undone, a limit that would go below the current use stays; the passes try
// it again.
func (r *resizes) Resize(ctx context.Context, view *ledger.View, uid string) error {
	p, name, err := r.names.pod(view, uid)
	if err != nil {
		return err
	}
	if err := r.mu.enter(ctx); err != nil {
		return err
	}
	defer r.mu.Unlock()
	r.wanted.uncommitted[uid] = p
	planned, err := r.resizing(ctx, view, p)
	if err != nil {
		return err
	}
	committed, _ := r.cfg.View().Pod(uid)
	undone := committed == p
	if !undone {
		if err := refuseBelowUse(planned.held, r.within(name)); err != nil {
			return err
		}
	}
	if _, err := r.writer.prepare(ctx, planned.containers); err != nil { // a pass sends the CPUs that are held
		return err
	}
	for _, op := range planned.ops {
		r.drift.forget(op.Name)
	}
	done := r.writer.apply(ctx, planned.containers, planned.ops, func(op cgroup.Op, err error) error {
		switch {
		case !op.Name.Within(r.within(name)):
			// As for a new pod, the next pass tries again.
			r.cfg.Log.ErrorContext(ctx, "updating the tier of a resized pod failed", "uid", uid, "error", err)
		case !errors.Is(err, cgroup.ErrBelowUse):
			return err
		case !undone: // the cgroup has used more since it was observed
			return errdefs.Refuse(errdefs.ResizeDeferred, "cannot decrease memory limits: %w", err)
		default:
			r.cfg.Log.WarnContext(ctx, "a memory limit stays until less is used", "cgroup", op.Name.String(), "error", err)
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

// resized returns the runtime's containers of a pod with all values that a resize may
// change. The caller holds mu.
func (r *resizes) resized(ctx context.Context, view *ledger.View, p *ledger.Pod) (runtimeContainers, error) {
	all, err := r.lister.containersOf(ctx, view, nil)
	if err != nil && !errors.Is(err, errUnlisted) {
		return runtimeContainers{}, err
	}
	for b := range view.BindingsOf(p.UID()) {
		if c, ok := r.tracker.Get(ofID(b.ID)); ok && !b.Own && c.Phase == placement.Unknown {
			return runtimeContainers{}, errdefs.Unavailablef("%w: container %s", errUnlisted, b.Owner)
		}
	}
	var out runtimeContainers
	for _, g := range all.all {
		if g.owner.Pod != p.UID() {
			continue
		}
		if values, ok := resizable(view, p, g.owner.Container, r.cfg.QoS.Cgroup); ok {
			g.values = values
			g.values.Cpuset = cgroup.ContainerCpuset(r.cfg.View(), g.owner) // view may be older
			out.add(g)
		}
	}
	return out, nil
}
