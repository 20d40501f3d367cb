package reconcile

import (
	"context"
	"fmt"
	"slices"

	"github.com/berthd/berth/managers/cgroup"
	"github.com/berthd/berth/managers/ledger"
)

// unbound is the cgroup of a container of a known pod, made by berth, that no binding
// tells of: a call of PreStartContainer is under way, or was cut off before its commit.
type unbound struct {
	owner ledger.Owner
	name  cgroup.Name
}

// unboundOf finds the unbound cgroups of a tree, those with processes apart from those
// without. Where a runtime makes containers, their cgroups are the runtime's.
func (l *Loop) unboundOf(view *ledger.View, seen *cgroup.Snapshot) (live, empty []unbound) {
	if l.Runtime != nil || l.NoPodCgroups {
		return nil, nil
	}
	for i := range seen.Nodes {
		o := &seen.Nodes[i]
		u, ok := l.isUnbound(view, o.Name)
		if !ok || o.State == cgroup.Absent {
			continue
		}
		// What is below a cgroup follows it in a snapshot.
		below := seen.Nodes[i:]
		if slices.ContainsFunc(below, func(b cgroup.Observed) bool { return b.Populated && b.Name.Within(o.Name) }) {
			live = append(live, u)
		} else {
			empty = append(empty, u)
		}
	}
	return live, empty
}

// isUnbound tells whether a name is that of a container of a known pod, and no binding
// tells of it.
func (l *Loop) isUnbound(view *ledger.View, name cgroup.Name) (u unbound, ok bool) {
	uid, ok := l.Layout.PodUID(name.Parent())
	if !ok || l.leaving[uid] {
		return unbound{}, false
	}
	p, known := view.Pod(uid)
	if !known || !name.Parent().Parent().Equal(l.Layout.Tier(p.QoS)) || p.Pod.Container(name.Base()) == nil {
		return unbound{}, false
	}
	for b := range view.BindingsOf(uid) {
		if b.Own && l.Layout.Driver().Parse(b.CgroupPath).Equal(name) {
			return unbound{}, false
		}
	}
	return unbound{ledger.Owner{Pod: uid, Container: name.Base()}, name}, true
}

// unboundNodes gives what a view wants of those unbound cgroups that had processes when
// the last pass looked: the same as if they were bound, so that nobody in them runs on
// CPUs of others. The caller holds mu.
func (l *Loop) unboundNodes(view *ledger.View) []cgroup.Node {
	var out []cgroup.Node
	for _, have := range l.unbound {
		u, ok := l.isUnbound(view, have.name)
		if !ok {
			continue
		}
		p, _ := view.Pod(u.owner.Pod)
		values := cgroup.AdmittedResources(view, p, p.Pod.Container(u.owner.Container), l.QoS.Cgroup).Values
		l.watch(u.name, u.owner.String())
		l.want(view, u.name.String(), u.owner)
		out = append(out, cgroup.Node{Name: u.name, Values: values, Lives: true})
	}
	return out
}

// lookForUnbound notes the unbound cgroups of a tree. Those with processes that were
// there at the last pass too are findings, since a call takes less than that. The
// caller holds mu.
func (l *Loop) lookForUnbound(view *ledger.View, seen *cgroup.Snapshot) (found []ledger.Finding, empty []unbound) {
	live, empty := l.unboundOf(view, seen)
	for _, u := range live {
		if slices.ContainsFunc(l.unbound, func(o unbound) bool { return o.name.Equal(u.name) }) {
			found = append(found, ledger.Finding{Kind: ledger.Kernel, Rule: ledger.RuleUnbound, Owner: u.owner, Text: fmt.Sprintf(
				"processes run in cgroup %s of container %s, and no container id is bound to it: a call of PreStartContainer was cut off; repeat the call or remove the pod",
				l.spelt(u.name), u.owner)})
		}
	}
	l.unbound = live
	return found, empty
}

// removeEmpty removes unbound cgroups without processes that were so at the last pass
// too: a start that is under way puts a process in. The caller holds mu.
func (l *Loop) removeEmpty(ctx context.Context, empty []unbound) {
	view := l.View()
	var left []unbound
	for _, u := range empty {
		if _, still := l.isUnbound(view, u.name); !still {
			continue
		}
		if !slices.ContainsFunc(l.empty, func(o unbound) bool { return o.name.Equal(u.name) }) {
			left = append(left, u)
			continue
		}
		if err := l.Tree.Remove(ctx, u.name); err != nil {
			l.Log.ErrorContext(ctx, "remove the cgroup of a container that was not started", "owner", u.owner.String(), "error", err)
			left = append(left, u)
		}
	}
	l.empty = left
}

// removeEnded removes cgroups without processes of containers that were unbound: a pass
// that began before the end of one may have made its cgroup again. The caller holds mu.
func (l *Loop) removeEnded(ctx context.Context, view *ledger.View) {
	for _, name := range l.ended {
		if l.starting[name.String()] > 0 || l.lookAt(ctx, name.String()) != nil {
			continue
		}
		if _, unbound := l.isUnbound(view, name); !unbound {
			continue
		}
		pids, err := l.Tree.Procs(ctx, name)
		if err == nil && len(pids) == 0 {
			l.drift.forgetAll(name)
			if err = l.Tree.Remove(ctx, name); err == nil {
				l.forget(name.String())
			}
		}
		if err != nil {
			l.Log.ErrorContext(ctx, "remove the cgroup of a container that has ended", "name", name.String(), "error", err)
		}
	}
	l.ended = nil
}
