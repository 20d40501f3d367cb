package device

import "github.com/berthd/berth/managers/hint"

// Name of the provider.
const Name = "device"

// Manager is the hint provider for devices. It is safe for concurrent use.
type Manager struct {
	inventory *Inventory
	plugins   Plugins
}

var (
	_ hint.Provider  = (*Manager)(nil)
	_ hint.Preparer  = (*Manager)(nil)
	_ hint.Describer = (*Manager)(nil)
	_ hint.Catalog   = (*Manager)(nil)
)

// New makes a manager of the devices in an inventory.
func New(inventory *Inventory, plugins Plugins) *Manager {
	return &Manager{inventory: inventory, plugins: plugins}
}

// Name is "device".
func (m *Manager) Name() string { return Name }

// Inventory returns what the plugins have reported.
func (m *Manager) Inventory() *Snapshot { return m.inventory.Snapshot() }

// Resources returns the names of the known resources.
func (m *Manager) Resources() (names []string) {
	for r := range m.inventory.Snapshot().Resources() {
		names = append(names, r.Name)
	}
	return names
}

// Describe means that there is only one policy and that it has no options.
func (m *Manager) Describe() hint.Description { return hint.Description{Policy: "plugins"} }
