package reconcile

import (
	"fmt"
	"slices"

	"github.com/berthd/berth/managers/cgroup"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/ledger/check"
	"github.com/berthd/berth/managers/placement"
)

// unbound is the cgroup of a known pod's container that berth created, without a binding. A
// call of PreStartContainer is in progress, or was interrupted before its commit.
type unbound struct {
	owner ledger.Owner
	name  cgroup.Name
}

// unbounds are the unbound cgroups that the last pass found: live ones have processes, empty ones have none. They do no I/O.
// Guarded by Loop.mu.
type unbounds struct {
	cfg         *Config
	names       names
	tracker     *tracker
	leaving     map[string]bool // of Loop
	live, empty []unbound
}

// in returns the unbound cgroups of a tree, with and without processes. With a
// runtime there are none, because the cgroups belong to the runtime.
func (us *unbounds) in(view *ledger.View, seen *cgroup.Snapshot) (live, empty []unbound) {
	if us.cfg.Runtime != nil || us.cfg.NoPodCgroups {
		return nil, nil
	}
	for i := range seen.Nodes {
		u, ok := us.at(view, seen.Nodes[i].Name)
		switch {
		case !ok || seen.Nodes[i].State == cgroup.Absent:
		case holdsProcess(seen.Nodes[i:]):
			live = append(live, u)
		default:
			empty = append(empty, u)
		}
	}
	return live, empty
}

// at returns whether a name is the cgroup of a known pod's container without a
// binding.
func (us *unbounds) at(view *ledger.View, name cgroup.Name) (u unbound, ok bool) {
	uid, ok := us.names.PodUID(name.Parent())
	if !ok || us.leaving[uid] {
		return unbound{}, false
	}
	p, known := view.Pod(uid)
	if !known || !us.names.isOf(p, name.Parent()) || p.Pod.Container(name.Base()) == nil {
		return unbound{}, false
	}
	for b := range view.BindingsOf(uid) {
		if b.Own && us.names.Driver().Parse(b.CgroupPath).Equal(name) {
			return unbound{}, false
		}
	}
	return unbound{ledger.Owner{Pod: uid, Container: name.Base()}, name}, true
}

// nodes returns the wanted values of unbound cgroups that had processes in the last
// pass. They are the same as with a binding, so their processes leave exclusive CPUs of
// others.
func (us *unbounds) nodes(view *ledger.View) []cgroup.Node {
	var out []cgroup.Node
	for _, have := range us.live {
		u, ok := us.at(view, have.name)
		if !ok {
			continue
		}
		p, _ := view.Pod(u.owner.Pod)
		values := cgroup.AdmittedResources(view, p, p.Pod.Container(u.owner.Container), us.cfg.QoS.Cgroup).Values
		us.tracker.watch(u.name, placement.Owner(u.owner))
		us.tracker.want(view, ofCgroup(u.name), u.owner)
		out = append(out, cgroup.Node{Name: u.name, Values: values, Lives: true})
	}
	return out
}

// look stores the unbound cgroups of a tree that have processes, and returns the others. Those with processes that the last pass
// also found are findings, because a call takes less time than that.
func (us *unbounds) look(view *ledger.View, seen *cgroup.Snapshot) (found []check.Finding, empty []unbound) {
	live, empty := us.in(view, seen)
	for _, u := range live {
		if slices.ContainsFunc(us.live, u.is) {
			found = append(found, check.Finding{Kind: kindKernel, Rule: ruleUnbound, Owner: u.owner, Text: fmt.Sprintf(
				"processes run in cgroup %s of container %s, and no container id is bound to it: a call of PreStartContainer was cut off; repeat the call or remove the pod",
				us.names.pathOf(u.name), u.owner)})
		}
	}
	us.live = live
	return found, empty
}

// is returns whether two are the same cgroup.
func (u unbound) is(other unbound) bool { return u.name.Equal(other.name) }

// outlived returns those of some empty cgroups that are still unbound, and keeps them for the next pass. remove is called
// for those that had no processes in the last pass either; it returns whether the cgroup is gone.
func (us *unbounds) outlived(view *ledger.View, empty []unbound, remove func(unbound) bool) {
	before := us.empty
	us.empty = nil
	for _, u := range empty {
		if _, still := us.at(view, u.name); still && !(slices.ContainsFunc(before, u.is) && remove(u)) {
			us.empty = append(us.empty, u)
		}
	}
}
