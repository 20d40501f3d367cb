package app

import (
	"context"

	"github.com/berthd/berth/managers/ledger"
)

// seenResources keeps in the ledger what device resources there are.
type seenResources struct{ ledger *ledger.Ledger }

// Remember implements deviceplugin.Memory.
func (m seenResources) Remember(ctx context.Context, r ledger.SeenResource) error {
	_, err := m.ledger.Update(ctx, func(d *ledger.Draft) error { d.PutResource(r); return nil })
	return err
}

// expectPlugins tells the inventory of resources that came into the ledger by an
// import.
func (a *App) expectPlugins(view *ledger.View) {
	for r := range view.SeenResources() {
		a.inventory.Expect(r.Name, a.Now())
	}
}
