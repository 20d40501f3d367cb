package reconcile

import (
	"context"

	"github.com/berthd/berth/managers/cgroup"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/placement"
)

// CgroupOf returns the cgroup of a container's processes, false while it is not known. It does
// not wait for passes.
func (l *Loop) CgroupOf(b ledger.Binding) (cgroup.Name, bool) {
	if b.Own {
		return l.Layout.Driver().Parse(b.CgroupPath), b.CgroupPath != ""
	}
	name, ok := l.tracker.located.Load(b.ID)
	if !ok {
		return nil, false
	}
	return name.(cgroup.Name), true
}

// holdsProcess returns whether a process runs in the first cgroup or below it. The cgroups
// below it follow it in the list.
func holdsProcess(nodes []cgroup.Observed) bool {
	for i := range nodes {
		if !nodes[i].Name.Within(nodes[0].Name) {
			return false
		}
		if nodes[i].Populated {
			return true
		}
	}
	return false
}

// Placements returns the state of a pod's containers that may run or wait for their start.
// It waits for a turn.
func (l *Loop) Placements(ctx context.Context, uid string) (out []placement.Container, err error) {
	if err := l.mu.enter(ctx); err != nil {
		return nil, err
	}
	defer l.mu.Unlock()
	l.lister.track()
	for c := range l.tracker.All() {
		if c.Owner.Pod == uid {
			out = append(out, c)
		}
	}
	return out, nil
}

// Phases returns the number of containers in each phase, at the end of the last pass. It
// does not wait.
func (l *Loop) Phases() map[placement.Phase]int {
	if counted := l.tracker.phases.Load(); counted != nil {
		return *counted
	}
	return nil
}
