package admission

import (
	"context"
	"fmt"

	"github.com/berthd/berth/managers/ledger"
)

// Found is a container as a runtime has it.
type Found struct {
	ID    string
	Owner ledger.Owner
	// Exited says that it will not run again.
	Exited bool
}

// ReconciledBindings tells what a Recount has changed.
type ReconciledBindings struct{ Bound, Dropped []ledger.Binding }

// ReconcileBindings brings the bindings to what a runtime has. Containers of admitted pods
// that are not bound yet become so; ids of those that have exited are dropped, and
// those of which gone is true. Containers whose cgroups berth made are not the
// runtime's, and stay. It is idempotent.
//
// Before is a view from before the runtime was asked. Where ids were unbound since, any
// of those that are not bound now may be one of them, whose container has ended after it
// was found: nothing is bound, and the next count tells.
func (e *Engine) ReconcileBindings(ctx context.Context, before *ledger.View, found []Found, gone func(id string) bool) (ReconciledBindings, error) {
	var out ReconciledBindings
	_, err := e.update(ctx, func(d *ledger.Draft) error {
		out = ReconciledBindings{}
		there := map[string]bool{}
		stale := d.Base().LastUnbound() > before.Generation()
		for _, f := range found {
			there[f.ID] = true
			b, bound := d.View().Binding(f.ID)
			switch {
			case bound && f.Exited && !b.Own:
				out.Dropped = append(out.Dropped, b)
			case !bound && !f.Exited && !stale && knows(d.View(), f.Owner) == nil:
				b = ledger.Binding{ID: f.ID, Owner: f.Owner, Sequence: nextSequence(d.View(), f.Owner)}
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
