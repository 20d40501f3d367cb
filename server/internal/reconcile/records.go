package reconcile

import (
	"context"
	"errors"

	"github.com/berthd/berth/managers/cgroup"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/ledger"
)

// recordsDue returns whether there are claim records to write.
func (l *Loop) recordsDue() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.records.Due()
}

// WriteDue writes some of the due claim records.
func (l *Loop) WriteDue(ctx context.Context) error {
	return l.Turn(ctx, func(Turn) error { l.records.WriteDue(ctx, l.View()); return nil })
}

// forgetRecord removes the record file of a pod whose cgroup is gone. The cgroups of all classes share a file: it stays while it
// may be that of another one with the uid.
func (l *Loop) forgetRecord(ctx context.Context, name cgroup.Name) error {
	uid, ok := l.Layout.PodUID(name)
	if !ok || l.records.Records == nil {
		return nil
	}
	l.mu.Lock()
	p, known := l.View().Pod(uid)
	if !known && l.InFlight != nil {
		p, known = l.InFlight().Pod(uid)
	}
	l.mu.Unlock()
	if !l.NoPodCgroups {
		if known && !l.names.isOf(p, name) {
			return nil
		}
		if others, err := l.records.HasOther(ctx, l.Tree, name, uid); others || err != nil {
			return err
		}
	}
	l.mu.Lock()
	l.records.Forget(uid)
	l.mu.Unlock()
	return l.records.Remove(ctx, name)
}

// Started implements admission.CgroupManager.
func (l *Loop) Started(ctx context.Context, view *ledger.View, b ledger.Binding) (bool, error) {
	if l.Runtime != nil {
		return l.lives(ctx, b)
	}
	p, _, err := l.names.pod(view, b.Owner.Pod)
	if err != nil {
		return false, err
	}
	name, err := l.names.container(p, b.Owner.Container)
	if err != nil {
		return false, err
	}
	pids, err := l.Tree.Procs(ctx, name)
	if err != nil {
		return false, errors.Join(errdefs.Unavailablef("look for the processes of container %s", b.Owner), err)
	}
	return len(pids) > 0, nil
}

// lives returns whether a container that a runtime created has processes, according to the kernel: the runtime also lists
// containers that it has only created.
func (l *Loop) lives(ctx context.Context, b ledger.Binding) (bool, error) {
	if err := l.mu.enter(ctx); err != nil {
		return false, err
	}
	defer l.mu.Unlock()
	view := l.View()
	if _, here := view.Pod(b.Owner.Pod); !here {
		return false, nil
	}
	name, err := l.kernel.alive(ctx, view, b, l.tracker.cgroups[b.ID])
	return name != nil, err
}
