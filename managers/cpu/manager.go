package cpu

import (
	"maps"
	"slices"
	"strings"

	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/hint"
)

const (
	// Name of the provider in claims, traces and metrics.
	Name = "cpu"
	// Resource that it answers for.
	Resource = "cpu"

	notForPods   = "reserved"
	notForClaims = "not among dra.cpus"
)

// Manager decides about CPUs under one configuration. It never changes and is
// safe for concurrent use.
type Manager struct {
	*table
	policy   string
	given    map[string]string
	options  options
	features Features

	reserved    cpuset.Set
	allocatable cpuset.Set // all but the reserved
	physical    cpuset.Set // all but the cores that have a reserved CPU
	// withheld says why the reserved CPUs are not given.
	withheld string
	// claims is set if the manager decides about resource claims.
	claims bool
	// asKubelet is Config.AsKubelet.
	asKubelet bool
}

var (
	_ hint.Provider  = (*Manager)(nil)
	_ hint.Validator = (*Manager)(nil)
	_ hint.Describer = (*Manager)(nil)
)

// Name returns "cpu".
func (*Manager) Name() string { return Name }

// Describe returns policy and options as configured.
func (m *Manager) Describe() hint.Description {
	return hint.Description{Policy: m.policy, Options: maps.Clone(m.given)}
}

// Reserved returns the CPUs that are never given exclusively; empty under the
// policy none.
func (m *Manager) Reserved() cpuset.Set { return m.reserved }

// StrictReservation reports whether the reserved CPUs are kept out of the shared
// pool too.
func (m *Manager) StrictReservation() bool { return m.options.strict }

// Allocatable returns the CPUs that may be given exclusively, whatever is in
// use; empty under the policy none.
func (m *Manager) Allocatable() cpuset.Set { return m.allocatable }

// choose takes n of the free CPUs by the configured algorithm.
func (m *Manager) choose(free cpuset.Set, n int) (cpuset.Set, error) { return m.chooseOn(free, n, 0) }

// chooseOn is choose with the number of NUMA nodes that the merge has chosen: a
// distribution uses as many at least.
func (m *Manager) chooseOn(free cpuset.Set, n, nodes int) (cpuset.Set, error) {
	if !m.options.acrossNUMA {
		return m.packed(free, n, manner{spread: m.options.acrossCores, uncores: m.options.uncores, asKubelet: m.asKubelet})
	}
	how := evenly{group: 1, least: nodes, bySocket: m.options.bySocket}
	if m.asKubelet {
		how.least = 0
	}
	if m.options.fullCores {
		how.group = m.perCore
	}
	return m.distributed(free, n, how)
}

// ForClaims returns a manager that gives resource claims some CPUs and nothing else, by the static
// policy with the same options. CPUs that are offline are not given.
// With full-pcpus-only, only cores that nobody else has a CPU of are given.
func (m *Manager) ForClaims(cpus cpuset.Set) *Manager {
	all := m.topo.CPUs()
	out := *m
	out.policy = PolicyStatic
	out.reserved = all.Minus(cpus)
	out.allocatable = all.Intersect(cpus)
	out.physical = all.Minus(m.part[core].Cover(out.reserved))
	out.withheld, out.claims = notForClaims, true
	return &out
}

// AlsoForClaims returns a manager that gives resource claims the CPUs that pods may have, by the same options. With
// full-pcpus-only, only cores that nobody else has a CPU of are given.
func (m *Manager) AlsoForClaims() *Manager {
	out := *m
	out.claims = true
	return &out
}

// With returns a manager with further options. They are of ClaimOptions; errors are of class Invalid.
func (m *Manager) With(names []string) (*Manager, error) {
	if len(names) == 0 {
		return m, nil
	}
	var bad errdefs.Violations
	given := map[string]string{}
	for _, name := range names {
		if !slices.Contains(ClaimOptions(), name) {
			bad.Addf("cpuOptions", "%.80q: expected one of %s", name, strings.Join(ClaimOptions(), ", "))
			continue
		}
		given[name] = "true"
	}
	out, more := *m, parseOptions(given, m.features, &bad)
	for _, k := range known {
		*k.field(&out.options) = *k.field(&m.options) || *k.field(&more)
	}
	out.options.check("", m.topo, &bad)
	return &out, bad.Err("options of a claim")
}

// Requestable returns the CPUs that requests can have on an idle machine, and the number of which
// a request must be a multiple: with full-pcpus-only only whole cores.
func (m *Manager) Requestable() (cpus cpuset.Set, step int) {
	if m.options.fullCores {
		return m.allocatable.Intersect(m.physical), m.perCore
	}
	return m.allocatable, 1
}
