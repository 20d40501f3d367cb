package managerset

import (
	"github.com/berthd/berth/managers/cpu"
	"github.com/berthd/berth/managers/hint"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/machine"
	"github.com/berthd/berth/managers/memory"
	"github.com/berthd/berth/managers/node"
	"github.com/berthd/berth/managers/topology"
)

// Config has the settings of a set.
type Config struct {
	CPU    cpu.Config
	Memory memory.Config
	// Pages compares huge pages with the kernel's free ones; nil: no comparison.
	Pages    *memory.Pages
	Topology topology.Config
	Node     node.Config
	// Facts of the node in addition to its machine.
	Facts node.Facts
	// Fit rejects pods whose requests exceed the free resources of the node as a whole.
	Fit bool
	// Claims are the amounts for resource claims; nil: none.
	Claims *Claims
	// Order is the order of the providers on the bus, as for hint.NewBus.
	Order []string
	// Digest identifies the configuration; views carry it as Rules.ConfigDigest.
	Digest string
	// Settings are what Digest was computed from, as Rules.Settings.
	Settings map[string]string
}

// Set is the managers of one configuration. Its fields must not be changed.
type Set struct {
	CPU      *cpu.Manager
	Memory   *memory.Manager
	Topology *topology.Manager
	Node     *node.Manager
	// Rules are the ledger's rules for claims under this configuration.
	Rules ledger.Rules
	// Bus joins the managers with the providers that no configuration changes;
	// nil until Join.
	Bus *hint.Bus
	// claims are the managers of resource claims; nil if there are none.
	claims *claimSet
	order  []string
	fit    bool
	pages  *memory.Pages
}

// New builds the managers. Errors are of class Invalid: those of the managers'
// constructors.
func New(cfg Config, m *machine.Topology) (*Set, error) {
	cpus, err := cpu.New(cfg.CPU, m)
	if err != nil {
		return nil, err
	}
	mem, err := memory.New(cfg.Memory, m)
	if err != nil {
		return nil, err
	}
	policy, err := topology.New(cfg.Topology, m.NodeMask(), m.Distances())
	if err != nil {
		return nil, err
	}
	cfg.Facts.Machine = m
	// CPUs that stay reserved although they were removed from the machine are no mistake in the list.
	cfg.Node.ReservedCPUs = cfg.Node.ReservedCPUs.Minus(cfg.CPU.KeptReserved.Minus(m.CPUs().Union(m.Offline())))
	whole, err := node.New(cfg.Node, cfg.Facts)
	if err != nil {
		return nil, err
	}
	set := &Set{
		CPU: cpus, Memory: mem, Topology: policy, Node: whole, order: cfg.Order, fit: cfg.Fit, pages: cfg.Pages,
		Rules: ledger.Rules{
			Machine: m, ReservedCPUs: cpus.Reserved(), StrictReservation: cpus.StrictReservation(),
			Memory: mem.Baseline(), ConfigDigest: cfg.Digest, Settings: cfg.Settings,
		},
	}
	if cfg.Claims != nil {
		if err := set.divide(*cfg.Claims); err != nil {
			return nil, err
		}
	}
	return set, nil
}

// Join returns the set with a bus of its managers and of other providers (devices, external
// ones). withTimeout is passed to hint.NewBus, whose errors are returned.
func (p *Set) Join(others []hint.Entry, withTimeout hint.WithTimeout) (*Set, error) {
	entries := append([]hint.Entry{
		{Provider: p.CPU, Mode: hint.Required},
		{Provider: p.Memory, Mode: hint.Required},
	}, others...)
	if p.fit {
		entries = append(entries, hint.Entry{Provider: node.Guard{Manager: p.Node}, Mode: hint.Required})
	}
	if p.pages != nil {
		entries = append(entries, hint.Entry{Provider: &memory.PageGuard{Manager: p.Memory, Pages: *p.pages}, Mode: hint.Required})
	}
	joined := *p
	var err error
	if joined.Bus, err = hint.NewBus(p.order, entries, withTimeout); err != nil {
		return nil, err
	}
	if err := joined.joinClaims(withTimeout); err != nil {
		return nil, err
	}
	return &joined, nil
}
