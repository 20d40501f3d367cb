package reconcile

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/berthd/berth/managers/admission"
	"github.com/berthd/berth/managers/cgroup"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/numa"
	"github.com/berthd/berth/managers/placement"
)

var _ admission.Mover = (*Loop)(nil)

// runningContainer is a container that may run, and its cgroup.
type runningContainer struct {
	ledger.Binding
	name cgroup.Name
	// huge is whether it has huge pages.
	huge bool
	// mems are the memory nodes that the view has for it, and held those of its claims, which it may have had before.
	mems, held numa.Mask
}

// CheckMove implements admission.Mover. The memory of a container moves when the memory nodes of its
// cgroup change. Where the kernel does not do this, or berthd cannot see it, the pod would have both
// sides for ever.
func (l *Loop) CheckMove(ctx context.Context, view *ledger.View, uid string, m *ledger.Move) error {
	running, err := l.movable(ctx, view, uid)
	if err != nil {
		return err
	}
	for _, c := range running {
		if err := l.readable(ctx, c); err != nil {
			return err
		}
	}
	return l.checkRoom(ctx, m, running)
}

// movable returns the containers of a pod that may run. It refuses those whose memory cannot move.
func (l *Loop) movable(ctx context.Context, view *ledger.View, uid string) (running []runningContainer, err error) {
	if err := l.enter(ctx); err != nil {
		return nil, err
	}
	defer l.mu.Unlock()
	l.track()
	pod, ok := view.Pod(uid)
	if !ok {
		return nil, view.NotAdmitted(uid)
	}
	for b := range view.BindingsOf(uid) {
		if !l.reported(b) && l.tracks(b) && !l.mayRun(l.key(b)) {
			continue
		}
		if why := l.staysBecause(pod, b); why != "" {
			return nil, errdefs.Refuse(errdefs.Infeasible, "the memory of container %s cannot move while it runs: %s", b.Owner, why)
		}
		name, _ := l.cgroupOf(b)
		running = append(running, runningContainer{Binding: b, name: name, huge: hasHugePages(pod, b.Owner)})
	}
	return running, nil
}

// staysBecause returns why the memory of a running container cannot move, or cannot be seen to move; empty
// if it can. The caller holds mu.
func (l *Loop) staysBecause(pod *ledger.Pod, b ledger.Binding) string {
	if l.reported(b) {
		return l.reportsNoMove(pod, b)
	}
	facts := &l.QoS.Cgroup.Facts
	_, known := l.cgroupOf(b)
	switch {
	case !known:
		return "berthd does not know its cgroup, so it cannot see where its memory is"
	case !facts.MovesMemory:
		return "with cgroup v2, the kernel moves memory to other NUMA nodes from Linux 5.15 on"
	case facts.Version == cgroup.V1 && !b.Own:
		return "with cgroup v1, the kernel moves memory to other NUMA nodes only in cgroups that berthd has made, and a container runtime has made this one"
	case !l.HugePages.Move && hasHugePages(pod, b.Owner):
		return "it has huge pages, and berthd may not read where they are: moves.hugePages of the configuration is false"
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
	if err := l.reportsSettled(view, uid); err != nil {
		return err
	}
	if err := l.Follow(ctx); err != nil {
		l.Log.DebugContext(ctx, "follow the ledger for a move", "uid", uid, "error", err) // the comparison shows whether it matters
	}
	migrating, err := l.inPlace(ctx, view, uid)
	if err != nil {
		return err
	}
	for _, c := range migrating {
		stays, err := l.migrated(ctx, c)
		if err == nil && stays == "" && c.huge {
			stays, err = l.pagesArrived(ctx, c)
		}
		if err != nil {
			return err
		}
		if stays != "" {
			l.migrateAgain(ctx, c)
			return errdefs.Unavailablef("%s", stays)
		}
		l.forgetAttempts(c.Owner)
	}
	return nil
}

// inPlace returns the containers whose memory moves, once all containers of a pod may use only the CPUs and memory nodes
// of a view.
func (l *Loop) inPlace(ctx context.Context, view *ledger.View, uid string) (migrating []runningContainer, err error) {
	if err := l.enter(ctx); err != nil {
		return nil, err
	}
	defer l.mu.Unlock()
	l.track()
	pod, ok := view.Pod(uid)
	if !ok {
		return nil, nil
	}
	for b := range view.BindingsOf(uid) {
		c, known, err := l.settled(ctx, view, pod, b)
		if err != nil {
			return nil, err
		}
		if known && pod.Move != nil && slices.Contains(pod.Move.Migrating, b.Owner.Container) {
			migrating = append(migrating, c)
		}
	}
	return migrating, nil
}

// settled compares a container with a view, and returns where it is; known is false if it has no memory nodes. The caller
// holds mu.
func (l *Loop) settled(ctx context.Context, view *ledger.View, pod *ledger.Pod, b ledger.Binding) (at runningContainer, known bool,
	err error) {
	if !l.tracks(b) {
		return at, false, nil // the agent moves it, and tracks it
	}
	c, known := l.tracker.Get(l.key(b))
	if !known || c.Phase == placement.Planned || c.Phase == placement.Exited || c.Phase == placement.Idle {
		return at, false, nil
	}
	want := cgroup.ContainerCpuset(view, b.Owner)
	if c.Anywhere || c.PossibleCPUs != want.CPUs {
		return at, false, errdefs.Unavailablef("container %s may still run on CPUs %s, and not on %s only", b.Owner, c.PossibleCPUs,
			want.CPUs)
	}
	if want.Mems.IsEmpty() {
		return at, false, nil
	}
	name, known := l.cgroupOf(b)
	if !known {
		return at, false, errdefs.Unavailablef("the cgroup of container %s is not known", b.Owner)
	}
	seen, err := l.Tree.Observe(ctx, name, 0)
	if err != nil {
		return at, false, err
	}
	o := seen.Find(name)
	if o.State == cgroup.Absent {
		return at, false, nil // it has just ended
	}
	if o.Values.Mems != want.Mems {
		return at, false, errdefs.Unavailablef("container %s may use memory of NUMA nodes %s, and not of %s only", b.Owner, o.Values.Mems,
			want.Mems)
	}
	if got := o.Effective.Mems; !got.IsSubsetOf(want.Mems) {
		return at, false, errdefs.Unavailablef("container %s uses memory of NUMA nodes %s, and not of %s, because a cgroup above it leaves it no others", b.Owner, got, want.Mems)
	}
	return runningContainer{Binding: b, name: name, huge: hasHugePages(pod, b.Owner), mems: want.Mems,
		held: nodesOf(pod, b.Owner).Intersect(view.Machine().MemoryNodeMask())}, true, nil
}

// nodesOf returns the NUMA nodes of the memory that a container has.
func nodesOf(pod *ledger.Pod, owner ledger.Owner) (nodes numa.Mask) {
	for i := range pod.Claims {
		if c := &pod.Claims[i]; c.Owner == owner {
			nodes = nodes.Union(ledger.NodesOf(c.Memory))
		}
	}
	return nodes
}

// migrated returns which memory of a container's processes is not on its memory nodes; empty if it has arrived. The page
// cache may stay where it is, because the kernel moves only pages that processes have mapped.
func (l *Loop) migrated(ctx context.Context, c runningContainer) (stays string, err error) {
	meter, ok := l.Tree.(cgroup.Meter)
	if !ok {
		return "", nil
	}
	d, err := meter.Details(ctx, c.name)
	if err != nil {
		return "", err
	}
	if d.MappedBytes == nil {
		return "", errdefs.Unavailablef("the kernel does not show where the memory of container %s is (memory.numa_stat)", c.Owner)
	}
	var elsewhere, all uint64
	for id, bytes := range d.MappedBytes {
		if all += bytes; !c.mems.Contains(id) {
			elsewhere += bytes
		}
	}
	elsewhere -= min(elsewhere, d.UnmappedBytes)
	if !cgroup.Arrived(elsewhere, all) {
		return fmt.Sprintf("%d of %d bytes of container %s are not on NUMA nodes %s: pages that a device has pinned cannot move",
			elsewhere, all, c.Owner, c.mems), nil
	}
	return "", nil
}

// Use returns what the containers of a pod have used, as far as their cgroups are known.
func (l *Loop) Use(ctx context.Context, view *ledger.View, uid string) (out admission.PodUse) {
	add := func(sum **time.Duration, d *time.Duration) {
		if d == nil {
			return
		}
		if *sum == nil {
			*sum = new(time.Duration)
		}
		**sum += *d
	}
	put := func(id int, bytes uint64) {
		if out.NodeBytes == nil {
			out.NodeBytes = map[int]uint64{}
		}
		out.NodeBytes[id] += bytes
	}
	meter, metered := l.Tree.(cgroup.Meter)
	for _, c := range l.running(ctx, view, uid) {
		if c.huge {
			pages, err := l.hugePages(ctx, c.name)
			if err != nil {
				l.Log.DebugContext(ctx, "measure a pod that moves", "uid", uid, "error", err)
			}
			for _, nodes := range pages {
				for id, bytes := range nodes {
					put(id, bytes)
				}
			}
		}
		if !metered {
			continue
		}
		d, err := meter.Details(ctx, c.name)
		if err != nil {
			continue // it has just ended
		}
		for id, bytes := range d.MappedBytes {
			put(id, bytes)
		}
		if d.Quota != nil {
			add(&out.Throttled, &d.Quota.Time)
		}
		add(&out.CPUPressure, d.CPUPressure)
		add(&out.MemoryPressure, d.MemoryPressure)
	}
	return out
}

// running returns the containers of a pod whose cgroups are known.
func (l *Loop) running(ctx context.Context, view *ledger.View, uid string) (out []runningContainer) {
	pod, ok := view.Pod(uid)
	if !ok || l.enter(ctx) != nil {
		return nil
	}
	defer l.mu.Unlock()
	l.track()
	for b := range view.BindingsOf(uid) {
		if name, known := l.cgroupOf(b); known {
			out = append(out, runningContainer{Binding: b, name: name, huge: hasHugePages(pod, b.Owner)})
		}
	}
	return out
}
