package cgroupapi

import (
	"context"
	"errors"
	"slices"

	"github.com/berthd/berth/managers/cgroup"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/workload"
	"github.com/berthd/berth/server/internal/reconcile"
)

// Pods are the calls for the cgroups of pods. With Config.NoPodCgroups it answers
// like the kubelet: every pod has what it needs, nothing is done, and the name is the root.
type Pods struct{ *Cgroups }

// PodCgroup is the cgroup of a pod.
type PodCgroup struct {
	UID string
	cgroup.Observed
	// Known means that the pod is admitted and that this is its cgroup.
	Known bool
}

// List returns the existing cgroups of pods, in the order of their names.
func (p *Pods) List(ctx context.Context) ([]PodCgroup, error) {
	if p.NoPodCgroups {
		return nil, nil
	}
	seen, err := p.Tree.Observe(ctx, p.Layout.Pods(), 2)
	if err != nil {
		return nil, err
	}
	orphans := map[string]bool{}
	for _, name := range p.Layout.Orphans(seen, reconcile.ClassesOf(p.View())) {
		orphans[name.String()] = true
	}
	var out []PodCgroup
	for _, o := range seen.Nodes {
		if uid, ok := p.Layout.PodUID(o.Name); ok && o.State != cgroup.Absent {
			out = append(out, PodCgroup{UID: uid, Observed: o, Known: !orphans[o.Name.String()]})
		}
	}
	return out, nil
}

// Look observes a pod's cgroup: for an admitted pod at its place, otherwise wherever it
// exists.
func (p *Pods) Look(ctx context.Context, uid string) (cgroup.Observed, error) {
	if p.NoPodCgroups {
		// As in the kubelet, the pod needs no cgroup.
		return cgroup.Observed{Name: p.Layout.Root(), State: cgroup.Valid}, nil
	}
	if pod, ok := p.View().Pod(uid); ok {
		name, err := p.Layout.Pod(pod.QoS, uid)
		if err != nil {
			return cgroup.Observed{}, err
		}
		return p.Cgroups.Look(ctx, name)
	}
	found, err := p.find(ctx, uid)
	if err != nil || len(found) == 0 {
		return cgroup.Observed{}, err
	}
	return found[0], nil
}

// find observes all cgroups of a pod, in every class.
func (p *Pods) find(ctx context.Context, uid string) ([]cgroup.Observed, error) {
	var out []cgroup.Observed
	for _, class := range workload.QoSClasses {
		name, err := p.Layout.Pod(class, uid)
		if err != nil {
			return nil, err
		}
		o, err := p.Cgroups.Look(ctx, name)
		if err != nil {
			return nil, err
		}
		if o.State != cgroup.Absent {
			out = append(out, o)
		}
	}
	return out, nil
}

// Ensure creates the cgroup of an admitted pod, or writes the values that differ. A pod
// that is not admitted is an error of View.NotAdmitted.
func (p *Pods) Ensure(ctx context.Context, uid string) (parent string, created bool, err error) {
	if p.NoPodCgroups {
		return "", false, nil
	}
	err = p.Alone(ctx, uid, func(ctx context.Context, view *ledger.View) (err error) {
		if _, ok := view.Pod(uid); !ok {
			return view.NotAdmitted(uid)
		}
		parent, created, err = p.EnsurePod(ctx, view, uid)
		return err
	})
	return parent, created, err
}

// Name returns the name of a pod's cgroup, which need not exist. The class may be empty for
// an admitted pod; otherwise an empty class is an error of class Invalid.
func (p *Pods) Name(uid string, class workload.QoSClass) (name cgroup.Name, parent string, err error) {
	if p.NoPodCgroups {
		return p.Layout.Root(), "", nil
	}
	if pod, ok := p.View().Pod(uid); ok {
		class = pod.QoS
	}
	if !slices.Contains(workload.QoSClasses[:], class) {
		var vs errdefs.Violations
		vs.Addf("qos_class", "%.80q: expected %s, %s or %s for a pod that is not admitted", class, workload.Guaranteed,
			workload.Burstable, workload.BestEffort)
		return nil, "", vs.Err("request")
	}
	if name, err = p.Layout.Pod(class, uid); err != nil {
		return nil, "", err
	}
	parent, err = p.Layout.Literal(name)
	return name, parent, err
}

// Of returns the pod whose cgroup has a path on disk.
func (p *Pods) Of(literal string) (uid string, ok bool) {
	if p.NoPodCgroups {
		return "", false
	}
	return p.Layout.PodUID(p.Layout.Driver().Parse(literal))
}

// left calls do for every cgroup of a pod that is not admitted.
func (p *Pods) left(ctx context.Context, uid string, do func(context.Context, cgroup.Name) error) error {
	if p.NoPodCgroups {
		return nil
	}
	return p.Alone(ctx, uid, func(ctx context.Context, view *ledger.View) error {
		if _, ok := view.Pod(uid); ok {
			return errdefs.Preconditionf("pod %s is admitted: use Remove or Resize", uid)
		}
		found, err := p.find(ctx, uid)
		errs := []error{err}
		for _, o := range found {
			errs = append(errs, do(ctx, o.Name))
		}
		return errors.Join(errs...)
	})
}

// Destroy kills the processes and removes the cgroups of a pod that is not admitted; an
// admitted pod is an error of class Precondition.
func (p *Pods) Destroy(ctx context.Context, uid string) (removed []cgroup.Name, err error) {
	err = p.left(ctx, uid, func(ctx context.Context, name cgroup.Name) error {
		if err := p.RemoveCgroup(ctx, name); err != nil {
			return err
		}
		removed = append(removed, name)
		return nil
	})
	return removed, err
}

// Reduce gives the cgroups of a pod that is not admitted the smallest weight; an admitted
// pod is an error of class Precondition. The quota stays.
func (p *Pods) Reduce(ctx context.Context, uid string) (done []cgroup.Op, err error) {
	err = p.left(ctx, uid, func(ctx context.Context, name cgroup.Name) error {
		ops, err := p.change(ctx, cgroup.Node{Name: name, Values: cgroup.Lightest()}, false)
		done = append(done, ops...)
		return err
	})
	return done, err
}
