package admission

import (
	"context"
	"fmt"

	"github.com/berthd/berth/managers/ledger"
)

// Found is a container in a runtime's list that runs, or may run.
type Found struct {
	ID    string
	Owner ledger.Owner
}

// ReconciledBindings are the changes of ReconcileBindings.
type ReconciledBindings struct{ Bound, Dropped []ledger.Binding }

// ReconcileBindings updates the bindings to a runtime's list. Unbound containers of
// admitted pods are bound. Ids that are not in the list are removed if gone returns true for
// them. Containers whose cgroups berth created do not belong to the runtime, and
// stay. It is idempotent.
//
// before is a view from before the runtime was listed. If ids were unbound since then, an
// unbound container in the list may be one of them that ended after the listing. Then
// nothing is bound; the next list shows the difference.
func (l *Lock) ReconcileBindings(ctx context.Context, before *ledger.View, found []Found,
	gone func(id string) bool) (ReconciledBindings, error) {
	var out ReconciledBindings
	_, err := l.Update(ctx, func(d *ledger.Draft) error {
		out = ReconciledBindings{}
		there := map[string]bool{}
		stale := d.Base().LastUnbound() > before.Generation()
		for _, f := range found {
			there[f.ID] = true
			if _, bound := d.View().Binding(f.ID); !bound && !stale && checkOwner(d.View(), f.Owner) == nil {
				b := ledger.Binding{ID: f.ID, Owner: f.Owner, Sequence: nextSequence(d.View(), f.Owner)}
				d.Bind(b)
				out.Bound = append(out.Bound, b)
			}
		}
		for b := range d.Base().Bindings() {
			if !b.Own && !there[b.ID] && gone(b.ID) {
				out.Dropped = append(out.Dropped, b)
			}
		}
		for _, b := range out.Dropped {
			d.Unbind(b.ID)
		}
		return nil
	})
	if err != nil {
		return ReconciledBindings{}, fmt.Errorf("take over the containers of the runtime: %w", err)
	}
	return out, nil
}
