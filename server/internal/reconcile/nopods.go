package reconcile

import (
	"context"

	"github.com/berthd/berth/managers/cgroup"
	"github.com/berthd/berth/managers/ledger"
)

// This file implements Config.NoPodCgroups, the kubelet's podContainerManagerNoop. Cgroups
// from an earlier configuration are not created again, but get their values while they
// exist: their containers keep their CPUs.

// removePodCgroup removes the cgroup of a pod. With NoPodCgroups it removes only a cgroup in
// which an earlier configuration has started containers.
func (l *Loop) removePodCgroup(ctx context.Context, view *ledger.View, uid string, name cgroup.Name) error {
	if !l.NoPodCgroups {
		return l.RemoveCgroup(ctx, name)
	}
	for b := range view.BindingsOf(uid) {
		if b.Own {
			return l.RemoveCgroup(ctx, name)
		}
	}
	return l.forgetRecord(ctx, name)
}

// HasTiers returns whether the QoS classes have cgroups.
func (l *Loop) HasTiers() bool { return !l.NoPodCgroups }

// made removes the nodes of missing cgroups.
func made(nodes []cgroup.Node, seen *cgroup.Snapshot) (out []cgroup.Node) {
	for _, n := range nodes {
		if seen.Find(n.Name).State != cgroup.Absent {
			out = append(out, n)
		}
	}
	return out
}
