package reconcile

import (
	"context"
	"fmt"
	"slices"

	"github.com/berthd/berth/managers/cgroup"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/placement"
)

// unbound is the cgroup of a known pod's container that berth created, without a binding. A
// call of PreStartContainer is in progress, or was interrupted before its commit.
type unbound struct {
	owner ledger.Owner
	name  cgroup.Name
}

// unboundOf returns the unbound cgroups of a tree, with and without processes. With a
// runtime there are none, because the cgroups belong to the runtime.
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
		// The cgroups below a cgroup follow it in a snapshot.
		below := seen.Nodes[i:]
		if slices.ContainsFunc(below, func(b cgroup.Observed) bool { return b.Populated && b.Name.Within(o.Name) }) {
			live = append(live, u)
		} else {
			empty = append(empty, u)
		}
	}
	return live, empty
}

// isUnbound returns whether a name is the cgroup of a known pod's container without a
// binding.
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

// unboundNodes returns the wanted values of unbound cgroups that had processes in the last
// pass. They are the same as with a binding, so their processes leave exclusive CPUs of
// others. The caller holds mu.
func (l *Loop) unboundNodes(view *ledger.View) []cgroup.Node {
	var out []cgroup.Node
	for _, have := range l.unbound {
		u, ok := l.isUnbound(view, have.name)
		if !ok {
			continue
		}
		p, _ := view.Pod(u.owner.Pod)
		values := cgroup.AdmittedResources(view, p, p.Pod.Container(u.owner.Container), l.QoS.Cgroup).Values
		l.tracker.watch(u.name, placement.Owner(u.owner))
		l.tracker.want(view, ofCgroup(u.name), u.owner)
		out = append(out, cgroup.Node{Name: u.name, Values: values, Lives: true})
	}
	return out
}

// lookForUnbound stores the unbound cgroups of a tree. Those with processes that the last
// pass also found are findings, because a call takes less time than that. The caller holds
// mu.
func (l *Loop) lookForUnbound(view *ledger.View, seen *cgroup.Snapshot) (found []ledger.Finding, empty []unbound) {
	live, empty := l.unboundOf(view, seen)
	for _, u := range live {
		if slices.ContainsFunc(l.unbound, func(o unbound) bool { return o.name.Equal(u.name) }) {
			found = append(found, ledger.Finding{Kind: kindKernel, Rule: ruleUnbound, Owner: u.owner, Text: fmt.Sprintf(
				"processes run in cgroup %s of container %s, and no container id is bound to it: a call of PreStartContainer was cut off; repeat the call or remove the pod",
				l.names.spelt(u.name), u.owner)})
		}
	}
	l.unbound = live
	return found, empty
}

// removeEmpty removes unbound cgroups that had no processes in the last pass either,
// because a start in progress adds a process. The caller holds mu.
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
			l.Log.ErrorContext(ctx, "removing the cgroup of a container that was not started failed", "owner", u.owner.String(), "error", err)
			left = append(left, u)
		}
	}
	l.empty = left
}

// removeEnded removes cgroups without processes of unbound containers: a pass that began
// before the end of a container may have created its cgroup again. The caller holds mu.
func (l *Loop) removeEnded(ctx context.Context, view *ledger.View) {
	for _, name := range l.ended {
		if l.tracker.starting[ofCgroup(name)] > 0 || l.lookAt(ctx, ofCgroup(name)) != nil {
			continue
		}
		if _, unbound := l.isUnbound(view, name); !unbound {
			continue
		}
		pids, err := l.Tree.Procs(ctx, name)
		if err == nil && len(pids) == 0 {
			l.drift.forgetAll(name)
			if err = l.Tree.Remove(ctx, name); err == nil {
				l.tracker.forget(ofCgroup(name))
			}
		}
		if err != nil {
			l.Log.ErrorContext(ctx, "removing the cgroup of a container that has ended failed", "name", name.String(), "error", err)
		}
	}
	l.ended = nil
}
