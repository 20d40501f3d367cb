package reconcile

import (
	"context"
	"slices"
	"time"

	"github.com/berthd/berth/managers/admission"
	"github.com/berthd/berth/managers/cgroup"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/numa"
	"github.com/berthd/berth/managers/placement"
	"github.com/berthd/berth/managers/workload"
)

var _ admission.Mover = (*Loop)(nil)

// CheckMove implements admission.Mover. The memory of a container moves when the memory nodes of its
// cgroup change. Where the kernel does not do this, or berthd cannot see it, the pod would have both
// sides for ever.
func (l *Loop) CheckMove(ctx context.Context, view *ledger.View, uid string) error {
	if err := l.enter(ctx); err != nil {
		return err
	}
	defer l.mu.Unlock()
	l.track()
	pod, ok := view.Pod(uid)
	if !ok {
		return view.NotAdmitted(uid)
	}
	for b := range view.BindingsOf(uid) {
		if l.tracks(b) && !l.mayRun(l.key(b)) {
			continue
		}
		if why := l.staysBecause(pod, b); why != "" {
			return errdefs.Refuse(errdefs.Infeasible, "the memory of container %s cannot move while it runs: %s", b.Owner, why)
		}
	}
	return nil
}

// staysBecause returns why the memory of a running container cannot move, or cannot be seen to move; empty
// if it can. The caller holds mu.
func (l *Loop) staysBecause(pod *ledger.Pod, b ledger.Binding) string {
	facts := &l.QoS.Cgroup.Facts
	_, known := l.cgroupOf(b)
	switch {
	case !known || !l.tracks(b):
		return "berthd does not know its cgroup, so it cannot see where its memory is"
	case !facts.MovesMemory:
		return "with cgroup v2, the kernel moves memory to other NUMA nodes from Linux 5.15 on"
	case facts.Version == cgroup.V1 && !b.Own:
		return "with cgroup v1, the kernel moves memory to other NUMA nodes only in cgroups that berthd has made, and a container runtime has made this one"
	case slices.ContainsFunc(pod.Claims, func(c ledger.Claim) bool {
		return c.Memory != nil && workload.Resource(c.Resource).IsHugePages() && (c.Owner == b.Owner || c.Owner.Container == "")
	}):
		return "it has huge pages, whose NUMA nodes berthd cannot read"
	}
	return ""
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

// Use returns what the containers of a pod have used, as far as their cgroups are known.
func (l *Loop) Use(ctx context.Context, view *ledger.View, uid string) (out admission.PodUse) {
	meter, ok := l.Tree.(cgroup.Meter)
	if !ok || l.enter(ctx) != nil {
		return out
	}
	defer l.mu.Unlock()
	l.track()
	add := func(sum **time.Duration, d *time.Duration) {
		if d == nil {
			return
		}
		if *sum == nil {
			*sum = new(time.Duration)
		}
		**sum += *d
	}
	for b := range view.BindingsOf(uid) {
		name, known := l.cgroupOf(b)
		if !known {
			continue
		}
		d, err := meter.Details(ctx, name)
		if err != nil {
			continue // it has just ended
		}
		for id, bytes := range d.AnonymousBytes {
			if out.NodeBytes == nil {
				out.NodeBytes = map[int]uint64{}
			}
			out.NodeBytes[id] += bytes
		}
		if d.Quota != nil {
			add(&out.Throttled, &d.Quota.Time)
		}
		add(&out.CPUPressure, d.CPUPressure)
		add(&out.MemoryPressure, d.MemoryPressure)
	}
	return out
}
