package moves

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/berthd/berth/managers/cgroup"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/live"
	"github.com/berthd/berth/managers/numa"
	"github.com/berthd/berth/server/internal/reconcile"
)

// Config has what a Moves needs.
type Config struct {
	// Loop places the containers, and writes their memory nodes.
	Loop *reconcile.Loop
	// Reported means that the tree does not show the memory of containers, so that agents report where it is.
	Reported bool
	// HugePages are for moves of running containers; the zero value refuses those with huge pages.
	HugePages HugePages
}

// Moves is safe for concurrent use.
type Moves struct {
	Config
	facts   cgroup.Facts
	reports memoryReports

	mu sync.Mutex
	// attempts are when memory that had stayed was last moved again, by container; guarded by mu.
	attempts map[ledger.Owner]time.Time
}

var _ live.Mover = (*Moves)(nil)

// New returns a Moves. The loop does not run yet.
func New(cfg Config) *Moves {
	return &Moves{Config: cfg, facts: cfg.Loop.QoS.Cgroup.Facts, attempts: map[ledger.Owner]time.Time{}}
}

// runningContainer is a container that may run.
type runningContainer struct {
	ledger.Binding
	name cgroup.Name
	// huge is whether it has huge pages.
	huge bool
	// mems are the memory nodes that the view has for it, and held those of its claims, which it may have had before.
	mems, held numa.Mask
}

// CheckMove implements live.Mover. The memory of a container moves when the memory nodes of its
// cgroup change. Where the kernel does not do this, or berthd cannot see it, the pod would have both
// sides for ever.
func (m *Moves) CheckMove(ctx context.Context, view *ledger.View, uid string, move *ledger.Move) error {
	running, err := m.movable(ctx, view, uid)
	if err != nil {
		return err
	}
	for _, c := range running {
		if err := m.readable(ctx, c); err != nil {
			return err
		}
	}
	return m.checkRoom(ctx, move, running)
}

// movable returns the containers of a pod that may run. It refuses those whose memory cannot move.
func (m *Moves) movable(ctx context.Context, view *ledger.View, uid string) (running []runningContainer, err error) {
	pod, ok := view.Pod(uid)
	if !ok {
		return nil, view.NotAdmitted(uid)
	}
	err = m.Loop.EachBound(ctx, view, uid, func(c reconcile.Bound) error {
		if !m.reported(c.Binding) && !c.MayRun {
			return nil
		}
		if why := m.staysBecause(pod, c); why != "" {
			return errdefs.Refuse(errdefs.Infeasible, "the memory of container %s cannot move while it runs: %s", c.Owner, why)
		}
		running = append(running, runningContainer{Binding: c.Binding, name: c.Cgroup, huge: hasHugePages(pod, c.Owner)})
		return nil
	})
	return running, err
}

// staysBecause returns why the memory of a running container cannot move, or cannot be seen to move; empty if it can.
func (m *Moves) staysBecause(pod *ledger.Pod, c reconcile.Bound) string {
	switch {
	case m.reported(c.Binding):
		return m.reportsNoMove(pod, c.Binding)
	case c.Cgroup == nil:
		return "berthd does not know its cgroup, so it cannot see where its memory is"
	case !m.facts.MovesMemory:
		return "with cgroup v2, the kernel moves memory to other NUMA nodes from Linux 5.15 on"
	case m.facts.Version == cgroup.V1 && !c.Own:
		return "with cgroup v1, the kernel moves memory to other NUMA nodes only in cgroups that berthd has made, and a container runtime has made this one"
	case !m.HugePages.Move && hasHugePages(pod, c.Owner):
		return "it has huge pages, and berthd may not read where they are: moves.hugePages of the configuration is false"
	}
	return ""
}

// Settled implements live.Mover.
func (m *Moves) Settled(ctx context.Context, view *ledger.View, uid string) error {
	migrating, err := m.inPlace(ctx, view, uid)
	if err != nil {
		return err
	}
	for _, c := range migrating {
		stays, err := m.migrated(ctx, c)
		if err == nil && stays == "" && c.huge {
			stays, err = m.pagesArrived(ctx, c)
		}
		if err != nil {
			return err
		}
		if stays != "" {
			m.migrateAgain(ctx, c)
			return errdefs.Unavailablef("%s", stays)
		}
		m.forgetAttempts(c.Owner)
	}
	return nil
}

// inPlace returns the containers whose memory moves, once all containers of a pod may use only the CPUs and memory nodes
// of a view.
func (m *Moves) inPlace(ctx context.Context, view *ledger.View, uid string) (migrating []runningContainer, err error) {
	pod, ok := view.Pod(uid)
	if !ok {
		return nil, nil
	}
	if err := m.reportsSettled(view, pod); err != nil {
		return nil, err
	}
	if err := m.Loop.Follow(ctx); err != nil {
		// The comparison shows whether it matters.
		m.Loop.Log.DebugContext(ctx, "following the ledger for a move failed", "uid", uid, "error", err)
	}
	err = m.Loop.EachBound(ctx, view, uid, func(b reconcile.Bound) error {
		c, known, err := m.settled(ctx, view, pod, b)
		if known && pod.Move != nil && slices.Contains(pod.Move.Migrating, b.Owner.Container) {
			migrating = append(migrating, c)
		}
		return err
	})
	return migrating, err
}

// settled compares a container with a view, and returns where it is; known is false if it has no memory nodes.
func (m *Moves) settled(ctx context.Context, view *ledger.View, pod *ledger.Pod, c reconcile.Bound) (at runningContainer, known bool,
	err error) {
	if !c.MayRun || c.Idle {
		return at, false, nil // if it is not tracked, the agent moves it
	}
	want := cgroup.ContainerCpuset(view, c.Owner)
	if c.Anywhere || c.PossibleCPUs != want.CPUs {
		return at, false, errdefs.Unavailablef("container %s may still run on CPUs %s, and not on %s only", c.Owner, c.PossibleCPUs,
			want.CPUs)
	}
	if want.Mems.IsEmpty() {
		return at, false, nil
	}
	if c.Cgroup == nil {
		return at, false, errdefs.Unavailablef("the cgroup of container %s is not known", c.Owner)
	}
	seen, err := m.Loop.Tree.Observe(ctx, c.Cgroup, 0)
	if err != nil {
		return at, false, err
	}
	o := seen.Find(c.Cgroup)
	if o.State == cgroup.Absent {
		return at, false, nil // it has just ended
	}
	if o.Values.Mems != want.Mems {
		return at, false, errdefs.Unavailablef("container %s may use memory of NUMA nodes %s, and not of %s only", c.Owner, o.Values.Mems,
			want.Mems)
	}
	if got := o.Effective.Mems; !got.IsSubsetOf(want.Mems) {
		return at, false, errdefs.Unavailablef("container %s uses memory of NUMA nodes %s, and not of %s, because a cgroup above it leaves it no others", c.Owner, got, want.Mems)
	}
	return runningContainer{Binding: c.Binding, name: c.Cgroup, huge: hasHugePages(pod, c.Owner), mems: want.Mems,
		held: nodesOf(pod, c.Owner).Intersect(view.Machine().MemoryNodeMask())}, true, nil
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
func (m *Moves) migrated(ctx context.Context, c runningContainer) (stays string, err error) {
	meter, ok := m.Loop.Tree.(cgroup.Meter)
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

// Use returns what the containers of a pod have used, as far as their cgroups are known, or their agents have reported it.
func (m *Moves) Use(ctx context.Context, view *ledger.View, uid string) (out live.PodUse) {
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
	meter, metered := m.Loop.Tree.(cgroup.Meter)
	for _, c := range m.running(ctx, view, uid) {
		if c.huge {
			pages, err := m.hugePages(ctx, c.name)
			if err != nil {
				m.Loop.Log.DebugContext(ctx, "measuring a pod that moves failed", "uid", uid, "error", err)
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
	m.addReported(view, uid, &out)
	return out
}

// running returns the containers of a pod whose cgroups are known.
func (m *Moves) running(ctx context.Context, view *ledger.View, uid string) (out []runningContainer) {
	pod, ok := view.Pod(uid)
	if !ok {
		return nil
	}
	_ = m.Loop.EachBound(ctx, view, uid, func(c reconcile.Bound) error { // at the end of the call nothing is known
		if c.Cgroup != nil {
			out = append(out, runningContainer{Binding: c.Binding, name: c.Cgroup, huge: hasHugePages(pod, c.Owner)})
		}
		return nil
	})
	return out
}
