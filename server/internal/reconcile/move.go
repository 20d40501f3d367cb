package reconcile

import (
	"context"
	"slices"

	"github.com/berthd/berth/managers/admission"
	"github.com/berthd/berth/managers/cgroup"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/numa"
	"github.com/berthd/berth/managers/placement"
)

var _ admission.Mover = (*Loop)(nil)

// CheckMove implements admission.Mover. The memory of a container moves when the memory nodes of its
// cgroup change, so berthd must know the cgroup.
func (l *Loop) CheckMove(ctx context.Context, view *ledger.View, uid string) error {
	if err := l.enter(ctx); err != nil {
		return err
	}
	defer l.mu.Unlock()
	l.track()
	for b := range view.BindingsOf(uid) {
		if _, known := l.cgroupOf(b); !known && l.mayRun(l.key(b)) {
			return errdefs.Refuse(errdefs.Infeasible, "container %s runs in a cgroup that berthd does not know, so berthd cannot see whether its memory has moved", b.Owner)
		}
	}
	return nil
}

// cgroupOf returns the cgroup of a container; false if it is not known.
func (l *Loop) cgroupOf(b ledger.Binding) (cgroup.Name, bool) {
	if l.NoPodCgroups && b.Own {
		return nil, false
	}
	return l.CgroupOf(b)
}

// Settled implements admission.Mover.
func (l *Loop) Settled(ctx context.Context, view *ledger.View, uid string) error {
	if err := l.Follow(ctx); err != nil {
		l.Log.DebugContext(ctx, "follow the ledger for a move", "uid", uid, "error", err) // the comparison shows whether it matters
	}
	if err := l.enter(ctx); err != nil {
		return err
	}
	defer l.mu.Unlock()
	l.track()
	pod, ok := view.Pod(uid)
	if !ok {
		return nil
	}
	for b := range view.BindingsOf(uid) {
		if err := l.settled(ctx, view, pod, b); err != nil {
			return err
		}
	}
	return nil
}

// settled compares a container with a view. The caller holds mu.
func (l *Loop) settled(ctx context.Context, view *ledger.View, pod *ledger.Pod, b ledger.Binding) error {
	if !l.tracks(b) {
		return nil // the agent moves it, and tracks it
	}
	c, known := l.tracker.Get(l.key(b))
	if !known || c.Phase == placement.Planned || c.Phase == placement.Exited || c.Phase == placement.Idle {
		return nil
	}
	want := cgroup.ContainerCpuset(view, b.Owner)
	if c.Anywhere || c.PossibleCPUs != want.CPUs {
		return errdefs.Unavailablef("container %s may still run on CPUs %s, and not on %s only", b.Owner, c.PossibleCPUs, want.CPUs)
	}
	if want.Mems.IsEmpty() {
		return nil
	}
	name, known := l.cgroupOf(b)
	if !known {
		return errdefs.Unavailablef("the cgroup of container %s is not known", b.Owner)
	}
	seen, err := l.Tree.Observe(ctx, name, 0)
	if err != nil {
		return err
	}
	o := seen.Find(name)
	if o.State == cgroup.Absent {
		return nil // it has just ended
	}
	if o.Values.Mems != want.Mems {
		return errdefs.Unavailablef("container %s may use memory of NUMA nodes %s, and not of %s only", b.Owner, o.Values.Mems, want.Mems)
	}
	if pod.Move == nil || !slices.Contains(pod.Move.Migrating, b.Owner.Container) {
		return nil
	}
	return l.migrated(ctx, b, name, want.Mems)
}

// fewBytes is how much memory of a container may be counted on other nodes after it has moved: the kernel
// counts by batches for each CPU.
const fewBytes = 4 << 20

// migrated returns whether the memory of a container's processes is on some nodes. The page cache may stay where
// it is, because the kernel moves only pages that processes have mapped.
func (l *Loop) migrated(ctx context.Context, b ledger.Binding, name cgroup.Name, nodes numa.Mask) error {
	meter, ok := l.Tree.(cgroup.Meter)
	if !ok {
		return nil
	}
	d, err := meter.Details(ctx, name)
	if err != nil {
		return err
	}
	var elsewhere, all uint64
	for id, bytes := range d.AnonymousBytes {
		if all += bytes; !nodes.Contains(id) {
			elsewhere += bytes
		}
	}
	if elsewhere > max(fewBytes, all/64) {
		return errdefs.Unavailablef("%d of %d bytes of container %s are not on NUMA nodes %s: pages that a device has pinned cannot move",
			elsewhere, all, b.Owner, nodes)
	}
	return nil
}
