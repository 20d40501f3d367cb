package app

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/berthd/berth/api/config"
	"github.com/berthd/berth/managers/device"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/server/internal/deviceplugin"
	"github.com/berthd/berth/server/internal/deviceplugin/registry"
	"github.com/berthd/berth/server/internal/hintproxy"
)

// devices are the devices of plugins.
type devices struct {
	inventory *device.Inventory
	plugins   *deviceplugin.Server
	registry  *registry.Registry
	manager   *device.Manager
}

// newDevices constructs the inventory with the resources that had plugins before. It also
// constructs the registration server, and the watcher for plugins that register through sockets
// in a directory.
func newDevices(g *given, l *ledger.Ledger) devices {
	c := g.Config
	inventory := device.NewInventory(slices.Collect(l.View().SeenResources()), g.Now())
	l.Follow(func(_, new *ledger.View) {
		for r := range new.SeenResources() { // an import may have added some
			inventory.Expect(r.Name, g.Now())
		}
	})
	p, external := c.Providers, externalConfig(c)
	plugins := deviceplugin.New(deviceplugin.Config{
		Dir: config.Path(c.DevicePluginDir),
		Deadlines: deviceplugin.Deadlines{
			Dial: p.CallTimeout.Duration, Options: p.CallTimeout.Duration, Preferred: p.CallTimeout.Duration,
			Allocate: p.AllocateTimeout.Duration, PreStart: p.PreStartTimeout.Duration,
		},
		MaxDevices: c.Limits.PluginDevices, MaxResources: c.Limits.PluginResources,
		ForgetAfter: c.Devices.ForgetAfter.Duration, KeepName: c.Devices.Unknown == config.UnknownIgnore,
	}, deviceplugin.Parts{
		Inventory: inventory, Memory: seenResources{l},
		ExternalProvider: func(resource string) (string, bool) { return external.ServedBy(l.View(), resource) },
		Log:              g.Log.With("part", "deviceplugin"), Now: g.Now, Observer: g.Metrics,
	})
	sockets := registry.New(registry.Config{
		Dir: config.Path(c.PluginRegistryDir),
		Deadlines: registry.Deadlines{
			Dial: p.CallTimeout.Duration, Info: p.PluginInfoTimeout.Duration,
		},
	}, registry.Parts{
		Plugins: plugins, Log: g.Log.With("part", "registry"), Now: g.Now, After: time.After,
	})
	return devices{inventory, plugins, sockets, device.New(inventory, plugins)}
}

// externalConfig is the configuration of external providers.
func externalConfig(c config.Config) hintproxy.Config {
	o := c.Providers.External
	var allowed []hintproxy.Allowance
	for _, p := range o.Allow {
		allowed = append(allowed, hintproxy.Allowance{Provider: p.Provider, UID: p.UID, Edits: p.Edits})
	}
	return hintproxy.Config{
		Deadline: o.Deadline.Duration, Connect: o.Connect.Duration, Lease: o.Lease.Duration, Required: o.Required, Allowed: allowed,
	}
}

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
			return errdefs.Preconditionf("%s cannot be forgotten while it is held by %s", resource, strings.Join(holders, ", ")).
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
