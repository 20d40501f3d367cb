package reconcile

import (
	"context"
	"errors"
	"fmt"

	"github.com/berthd/berth/managers/cgroup"
	"github.com/berthd/berth/managers/ledger"
)

// settle makes sure that nobody runs where the view forbids. The caller holds mu.
func (l *Loop) settle(ctx context.Context, view *ledger.View) error {
	if l.hasSettled(view) {
		return nil
	}
	err := l.follow(ctx, view)
	if l.hasSettled(view) {
		if err != nil {
			l.Log.ErrorContext(ctx, "reconcile cgroups", "error", err)
		}
		return nil
	}
	return err
}

// clear makes sure that nobody runs where a view forbids, for a container that is to
// start. Whoever has no CPUs of his own does not wait for those that nobody can move,
// because the runtime has lost them. The caller holds mu.
func (l *Loop) clear(ctx context.Context, view *ledger.View, owner ledger.Owner) error {
	err := l.settle(ctx, view)
	if errors.Is(err, errLost) && !errors.Is(err, errStarting) && !cgroup.ContainerCpuset(view, owner).CPUs.Overlaps(view.ExclusiveCPUs()) {
		l.Log.ErrorContext(ctx, "reconcile cgroups", "error", err)
		return nil
	}
	if err != nil {
		return fmt.Errorf("clear the CPUs for %s: %w", owner, err)
	}
	return nil
}

// hasSettled reports whether a pass has cleared the CPUs for a view, a later one, or
// one in which they are the same people's and containers that were bound since are
// where they may be. The caller holds mu.
func (l *Loop) hasSettled(view *ledger.View) bool {
	return l.settled != nil && (l.settled.Generation() >= view.Generation() ||
		l.settled.SameFacts(view) && !l.unplaced(l.settled, view))
}

// unplaced tells whether a container was bound since a view was settled without being
// placed, as one that the runtime was found to have. The caller holds mu.
func (l *Loop) unplaced(settled, view *ledger.View) bool {
	if l.Runtime == nil {
		return false
	}
	for _, c := range ledger.Changes(settled, view) {
		b := c.Binding
		if _, here := settled.Binding(b.ID); c.Kind != ledger.Bound || here || b.Own {
			continue
		}
		if _, placed := l.waiting[b.ID]; !placed {
			return true
		}
	}
	return false
}
