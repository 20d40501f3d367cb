package reconcile

import (
	"context"

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
	for b := range view.Bindings() {
		if _, here := settled.Binding(b.ID); here || b.Own {
			continue
		}
		if _, placed := l.waiting[b.ID]; !placed {
			return true
		}
	}
	return false
}
