package app

import (
	"context"
	"fmt"
	"strings"

	"github.com/berthd/berth/managers/device"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/ledger"
)

// seenResources keeps in the ledger what device resources there are.
type seenResources struct{ ledger *ledger.Ledger }

// Remember implements deviceplugin.Memory.
func (m seenResources) Remember(ctx context.Context, r ledger.SeenResource) error {
	_, err := m.ledger.Update(ctx, func(d *ledger.Draft) error { d.PutResource(r); return nil })
	return err
}

// Forget implements deviceplugin.Memory.
func (m seenResources) Forget(ctx context.Context, resource string, may func() error) error {
	_, err := m.ledger.Update(ctx, func(d *ledger.Draft) error {
		if holders := holdersOf(d.View(), resource); len(holders) > 0 {
			return errdefs.Preconditionf("%s is not forgotten while it is held: by %s", resource, strings.Join(holders, ", ")).
				Coded(errdefs.ResourceInUse, "resource", resource)
		}
		if err := may(); err != nil {
			return err
		}
		d.ForgetResource(resource)
		return nil
	})
	return err
}

// namedHolders bounds how many holders of a resource an error names.
const namedHolders = 8

// holdersOf names the containers that hold devices of a resource which came from a
// device plugin.
func holdersOf(view *ledger.View, resource string) (names []string) {
	more := 0
	for p := range view.DeviceHolders() {
		for i := range p.Claims {
			c := &p.Claims[i]
			switch {
			case c.Resource != resource || c.Provider != device.Name || c.Devices == nil:
			case len(names) == namedHolders:
				more++
			default:
				names = append(names, fmt.Sprintf("container %s of pod %s", c.Owner.Container, &p.Pod))
			}
		}
	}
	if more > 0 {
		names = append(names, fmt.Sprintf("%d more", more))
	}
	return names
}

// expectPlugins tells the inventory of resources that came into the ledger by an
// import.
func (a *App) expectPlugins(view *ledger.View) {
	for r := range view.SeenResources() {
		a.inventory.Expect(r.Name, a.Now())
	}
}
