package admission

import (
	"context"
	"errors"
	"fmt"

	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/topology"
)

// Remove ends a pod: it kills the pod's processes, removes its cgroup, and then frees its
// claims in one commit. In this order no running process shares CPUs with the next pod.
// Remove returns the released claims, and false if the pod was unknown. It is idempotent;
// after an error it may be repeated.
//
// A pod outside the scope is an error of class Precondition.
//
// For a running pod that is not in the ledger, processes are killed too before its known
// claims are freed.
func (e *Engine) Remove(ctx context.Context, uid string, scope Scope) ([]ledger.Claim, bool, error) {
	return e.remove(ctx, uid, scope, func(*ledger.Pod) bool { return true })
}

// remove is Remove for a pod for which ends returns true.
func (e *Engine) remove(ctx context.Context, uid string, scope Scope, ends func(*ledger.Pod) bool) ([]ledger.Claim, bool, error) {
	unlock, err := e.LockPod(ctx, uid)
	if err != nil {
		return nil, false, err
	}
	defer unlock()
	view := e.Ledger.View()
	pod, ok := view.Pod(uid)
	unknown, lives := view.UnknownLivePod(uid)
	switch {
	case !ok && lives:
		if err := scope.checkUnknown(&unknown); err != nil {
			return nil, false, err
		}
		e.waits(ctx)
		if err := e.CgroupManager.RemoveUnknown(ctx, view, uid); err != nil {
			return nil, false, fmt.Errorf("remove pod %s: %w", uid, err)
		}
		_, err := e.Update(ctx, func(d *ledger.Draft) error { d.ForgetUnknownLive(uid); return nil })
		if err != nil {
			return nil, false, fmt.Errorf("remove pod %s: %w", uid, err)
		}
		return nil, false, nil
	case !ok, !ends(pod):
		return nil, false, nil
	}
	if err := scope.Check(uid, pod.Agent()); err != nil {
		return nil, false, err
	}
	for range view.BindingsOf(uid) { // its processes may take a while to exit
		e.waits(ctx)
	}
	defer e.reserved.End(uid)()
	if err := e.CgroupManager.RemovePod(ctx, view, uid); err != nil {
		return nil, false, fmt.Errorf("remove pod %s: %w", uid, err)
	}
	if _, err := e.Update(ctx, func(d *ledger.Draft) error { d.RemovePod(uid); return nil }); err != nil {
		return nil, false, fmt.Errorf("remove pod %s: %w", uid, errors.Join(err, e.restore(ctx, uid)))
	}
	e.released(ctx, pod.Claims)
	return pod.Claims, true, nil
}

// released tells the providers which of their claims a commit has freed. Without managers, as
// while the policy changes again and again, they see it in the next view.
func (e *Engine) released(ctx context.Context, claims []ledger.Claim) {
	if b, err := e.Basis(e.Ledger.View); err == nil {
		b.Bus.Released(ctx, claims)
	}
}

// restore creates the cgroup of a pod again that could not be removed from the ledger: a
// pod in the ledger always has a cgroup. Ended processes are not restarted.
func (e *Engine) restore(ctx context.Context, uid string) error {
	view := e.Ledger.View()
	if _, known := view.Pod(uid); !known {
		return nil
	}
	_, _, err := e.CgroupManager.EnsurePod(context.WithoutCancel(ctx), view, uid)
	return err
}

// Started is the result of PreStart.
type Started struct {
	Binding ledger.Binding
	View    *ledger.View
}

// PreStart binds a runtime's container id to a container and prepares its cgroup; for pid
// see CgroupManager.EnsureContainer. It is idempotent. The container's ids that have
// certainly ended are removed. If too many of a runtime's ids may still run, the error is
// of class Precondition.
func (e *Engine) PreStart(ctx context.Context, owner ledger.Owner, id string, pid int) (Started, error) {
	unlock, err := e.LockPod(ctx, owner.Pod)
	if err != nil {
		return Started{}, err
	}
	defer unlock()
	view := e.Ledger.View()
	if err := checkOwner(view, owner); err != nil {
		return Started{}, err
	}
	if have, ok := view.Binding(id); ok && have.Owner != owner {
		return Started{}, bound(id, have.Owner)
	}
	e.waits(ctx)
	b, known := view.Binding(id)
	if !known {
		b = ledger.Binding{ID: id, Owner: owner, Sequence: nextSequence(view, owner)}
	}
	if err := e.prepareStart(ctx, view, b, known); err != nil {
		return Started{}, fmt.Errorf("start container %s: %w", owner, err)
	}
	ended, err := e.ended(ctx, view, b, pid)
	if err != nil {
		return Started{}, fmt.Errorf("find the processes of container %s: %w", owner, err)
	}
	path, err := e.CgroupManager.EnsureContainer(ctx, view, Start{Binding: b, PID: pid, Again: known})
	if err != nil {
		return Started{}, fmt.Errorf("start container %s: %w", owner, err)
	}
	b.CgroupPath, b.Own = path, path != ""
	generation := view.Generation()
	var finished []ledger.Claim
	bound, err := e.Update(ctx, func(d *ledger.Draft) error {
		if err := checkOwner(d.View(), owner); err != nil {
			return err
		}
		have, ok := d.View().Binding(id)
		switch {
		case ok && have.Owner != owner:
			return bound(id, have.Owner)
		case !ok || have != b:
			if err := bind(d, b, ended); err != nil {
				return err
			}
		}
		if finished, err = e.finish(d, owner); err != nil {
			return err
		}
		if generation = view.Generation(); !d.Empty() {
			generation++
		}
		return nil
	})
	if err != nil {
		return Started{}, fmt.Errorf("bind container id %s to %s: %w", id, owner, err)
	}
	if bound.Generation() != generation {
		// An admission in between may have taken CPUs on which this container was placed.
		// Its reconcile could not move the container, because it was not bound yet.
		if _, err := e.CgroupManager.EnsureContainer(ctx, bound, Start{Binding: b, PID: pid, Again: known, Still: true}); err != nil {
			return Started{}, fmt.Errorf("start container %s: %w", owner, err)
		}
	}
	if len(finished) > 0 {
		e.released(ctx, finished)
	}
	return Started{Binding: b, View: bound}, nil
}

// bound refuses an id that another container has.
func bound(id string, owner ledger.Owner) error {
	return errdefs.Existsf("container id %s belongs to %s already", id, owner).
		Coded(errdefs.ContainerIDBound, "container_id", id, "pod_uid", owner.Pod, "container_name", owner.Container)
}

// prepareStart calls plugins before a container starts, because they may reset its devices.
// It makes no call for a container that already runs: its id is bound already, or, after
// the ledger was lost, no id of the container is bound.
func (e *Engine) prepareStart(ctx context.Context, view *ledger.View, b ledger.Binding, known bool) error {
	others := false
	for o := range view.BindingsOf(b.Owner.Pod) {
		others = others || o.Owner == b.Owner
	}
	if known || !others {
		runs, err := e.CgroupManager.Started(ctx, view, b)
		if err != nil || runs {
			return err
		}
	}
	return e.Starter.PreStart(ctx, view, b.Owner)
}

// finish releases claims that are no longer needed when one of the pod's containers starts,
// for example those of a completed init container. A pod that is planned as a whole keeps them: an init phase may run again.
func (e *Engine) finish(d *ledger.Draft, starting ledger.Owner) ([]ledger.Claim, error) {
	b, err := e.BasisOn(d.Base())
	if err != nil {
		return nil, err
	}
	if b.Policy.Planning() == topology.ByPod {
		return nil, nil
	}
	pod, _ := d.View().Pod(starting.Pod)
	finished := b.Bus.Finished(pod, starting.Container)
	d.DropClaims(starting.Pod, finished...)
	return finished, nil
}

// PostStop removes the id of an ended container, and its cgroup if berth created it. It
// returns false if the id was unknown.
func (e *Engine) PostStop(ctx context.Context, id string) (bool, error) {
	b, ok := e.Ledger.View().Binding(id)
	if !ok {
		return false, nil
	}
	e.waits(ctx)
	unlock, err := e.LockPod(ctx, b.Owner.Pod)
	if err != nil {
		return false, err
	}
	defer unlock()
	if b, ok = e.Ledger.View().Binding(id); !ok {
		return false, nil
	}
	if b.Own && !shared(e.Ledger.View(), b) {
		if err := e.CgroupManager.RemoveContainer(ctx, b); err != nil {
			return true, fmt.Errorf("stop container %s: %w", b.Owner, err)
		}
	}
	view, err := e.Update(ctx, func(d *ledger.Draft) error { d.Unbind(id); return nil })
	if err != nil {
		return true, fmt.Errorf("forget container id %s: %w", id, err)
	}
	if b.Own && !shared(view, b) {
		// The reconcile loop may have created the cgroup again while the id was known.
		if err := e.CgroupManager.RemoveContainer(ctx, b); err != nil {
			return true, fmt.Errorf("stop container %s: %w", b.Owner, err)
		}
	}
	return true, nil
}

// shared returns whether another id of the same container uses the binding's cgroup. This
// happens if the container was restarted before its old id was removed.
func shared(view *ledger.View, b ledger.Binding) bool {
	for o := range view.BindingsOf(b.Owner.Pod) {
		if o.ID != b.ID && o.CgroupPath == b.CgroupPath {
			return true
		}
	}
	return false
}

// checkOwner returns an error unless the owner is a container of an admitted pod: that of
// ledger.View.NotAdmitted, or one of class NotFound.
func checkOwner(view *ledger.View, owner ledger.Owner) error {
	p, ok := view.Pod(owner.Pod)
	if !ok {
		return view.NotAdmitted(owner.Pod)
	}
	if p.Pod.Container(owner.Container) == nil {
		return errdefs.NotFoundf("pod %s has no container %q", owner.Pod, owner.Container).
			Coded(errdefs.ContainerNotFound, "pod_uid", owner.Pod, "container_name", owner.Container)
	}
	return nil
}
