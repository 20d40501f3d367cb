package app

import (
	"context"
	"time"

	"github.com/berthd/berth/managers/ledger"
)

// seenResources keeps the names of device resources in the ledger.
type seenResources struct{ ledger *ledger.Ledger }

// Remember implements deviceplugin.Memory.
func (m seenResources) Remember(ctx context.Context, resource string, at time.Time) error {
	_, err := m.ledger.Update(ctx, func(d *ledger.Draft) error {
		d.PutResource(ledger.SeenResource{Name: resource, LastSeen: at})
		return nil
	})
	return err
}

// expectPlugins tells the inventory of resources that came into the ledger by an
// import.
func (a *App) expectPlugins(view *ledger.View) {
	for r := range view.SeenResources() {
		a.inventory.Expect(r.Name, a.Now())
	}
}
