package device

import (
	"sync"

	"github.com/berthd/berth/managers/hint"
	"github.com/berthd/berth/managers/ledger"
)

// Name of the provider.
const Name = "device"

// Manager is the hint provider for devices. It is safe for concurrent use.
type Manager struct {
	inventory *Inventory
	plugins   Plugins

	mu       sync.Mutex
	inFlight inFlight // guarded by mu, which is not held over a plugin's call
}

var (
	_ hint.Provider  = (*Manager)(nil)
	_ hint.Aborter   = (*Manager)(nil)
	_ hint.Releaser  = (*Manager)(nil)
	_ hint.Describer = (*Manager)(nil)
	_ hint.Catalog   = (*Manager)(nil)
)

// inFlight are the plugins' answers to the admission that is being prepared, so
// that preparing it again asks nobody twice. Admissions are prepared one at a
// time: another one's id means that this one is over.
type inFlight struct {
	admission string
	// answers by resource, in the order of the calls, which is that of the
	// containers; at most one for each.
	answers map[string][]answer
}

// call names one Allocate of an admission at one plugin.
type call struct {
	owner ledger.Owner
	ids   string
}

// answer is what a plugin said to a call.
type answer struct {
	call
	response []byte
}

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

// Describe tells that there is only one policy and that it has no options.
func (m *Manager) Describe() hint.Description { return hint.Description{Policy: "plugins"} }
