package reconcile

import (
	"context"

	"github.com/berthd/berth/managers/cgroup"
	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/placement"
)

// Bound is a container that is bound to a pod, as it is in a turn.
type Bound struct {
	ledger.Binding
	// Cgroup has its processes; nil if it is not known.
	Cgroup cgroup.Name
	// Phase and PossibleCPUs are what the tracker has. Phase is empty if it has nothing: the agent places the container.
	Phase        placement.Phase
	PossibleCPUs cpuset.Set
	// Anywhere means that it may run on all CPUs.
	Anywhere bool
}

// MayRun returns whether a container that the tracker has may have a process.
func (b *Bound) MayRun() bool {
	return b.Phase != "" && b.Phase != placement.Exited && b.Phase != placement.Planned
}

// EachBound calls do for the containers that are bound to a pod, in one turn, until an error. Without the pod there are none.
func (l *Loop) EachBound(ctx context.Context, view *ledger.View, uid string, do func(Bound) error) error {
	return l.Turn(ctx, func() error {
		l.track()
		for b := range view.BindingsOf(uid) {
			c := Bound{Binding: b}
			if name, known := l.CgroupOf(b); known && !(l.NoPodCgroups && b.Own) {
				c.Cgroup = name
			}
			t, _ := l.tracker.Get(l.key(b))
			c.Phase, c.PossibleCPUs, c.Anywhere = t.Phase, t.PossibleCPUs, t.Anywhere
			if err := do(c); err != nil {
				return err
			}
		}
		return nil
	})
}

// Turn calls do in a turn of its own: meanwhile the loop writes nothing.
func (l *Loop) Turn(ctx context.Context, do func() error) error {
	if err := l.enter(ctx); err != nil {
		return err
	}
	defer l.mu.Unlock()
	return do()
}
