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
	// MayRun means that it may have a process or get one, and Idle that it has none now. Both are false if its agent places it.
	MayRun, Idle bool
	// PossibleCPUs are those on which it may run; with Anywhere all.
	PossibleCPUs cpuset.Set
	Anywhere     bool
}

// EachBound calls do for the containers that are bound to a pod, in one turn, until an error. Without the pod there are none.
func (l *Loop) EachBound(ctx context.Context, view *ledger.View, uid string, do func(Bound) error) error {
	return l.Turn(ctx, func(Turn) error {
		l.lister.track()
		for b := range view.BindingsOf(uid) {
			c := Bound{Binding: b}
			if name, known := l.CgroupOf(b); known && !(l.NoPodCgroups && b.Own) {
				c.Cgroup = name
			}
			t, _ := l.tracker.Get(l.tracker.key(b))
			c.MayRun, c.Idle = l.tracker.mayRun(l.tracker.key(b)), t.Phase == placement.Idle
			c.PossibleCPUs, c.Anywhere = t.PossibleCPUs, t.Anywhere
			if err := do(c); err != nil {
				return err
			}
		}
		return nil
	})
}
