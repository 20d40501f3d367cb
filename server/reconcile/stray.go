package reconcile

import (
	"context"
	"fmt"

	"github.com/berthd/berth/managers/cgroup"
	"github.com/berthd/berth/managers/fault"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/server/runtime"
)

// locate notes which guests run outside of their pods' cgroups, and which do not. A
// container's cgroup stays the same: what was seen once holds until the container is said
// to have ended, or is forgotten. The caller holds mu.
func (l *Loop) locate(view *ledger.View, g guests, listed map[string]runtime.Phase) {
	strays, home := map[string]guest{}, map[string]bool{}
	for b := range view.Bindings() {
		s, stray := l.strays[b.ID]
		switch {
		case l.home[b.ID] || listed[b.ID] == runtime.Exited:
			home[b.ID] = true
		case stray:
			strays[b.ID] = s
		}
	}
	for _, c := range g {
		_, pod, err := l.pod(view, c.owner.Pod)
		switch {
		case err != nil || c.name == nil:
		case c.name.Within(pod):
			home[c.id] = true
		case c.runs:
			strays[c.id] = c
		}
	}
	l.strays, l.home = strays, home
}

// outside lists the containers of a pod that run outside of its cgroup: as they were when
// the runtime was last asked, which is now if it has not said yet where one of them is. One
// that cannot be ended because others may be in its cgroup too is an error of class
// Precondition. The caller holds mu.
func (l *Loop) outside(ctx context.Context, view *ledger.View, uid string) (out []cgroup.Name, err error) {
	if l.Runtime == nil {
		return nil, nil
	}
	if now := l.View(); now.Generation() > view.Generation() {
		view = now
	}
	for b := range view.BindingsOf(uid) {
		_, stray := l.strays[b.ID]
		if b.Own || stray || l.home[b.ID] {
			continue
		}
		if _, err := l.meet(ctx, view); err != nil {
			l.Log.WarnContext(ctx, "look for containers of a pod outside of its cgroup", "uid", uid, "error", err)
		}
		break
	}
	for id, s := range l.strays {
		if s.owner.Pod != uid {
			continue
		}
		pids, err := l.Tree.Procs(ctx, s.name)
		switch {
		case err != nil:
			return nil, fmt.Errorf("look for container %s outside of its pod's cgroup: %w", s.owner, err)
		case len(pids) == 0:
			// It has ended, or the runtime calls by this name what is another place here.
		case !bears(s.name, id):
			return nil, fault.Preconditionf("container %s (%s) runs in cgroup %s, which is neither in its pod's nor called after it: "+
				"end it with the container runtime first", s.owner, id, s.name)
		default:
			l.Log.WarnContext(ctx, "a container of a pod that is removed runs outside of its cgroup",
				"owner", s.owner.String(), "id", id, "name", s.name.String())
			out = append(out, s.name)
		}
	}
	return out, nil
}
