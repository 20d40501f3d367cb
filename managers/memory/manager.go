package memory

import (
	"slices"

	"github.com/berthd/berth/managers/hint"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/numa"
	"github.com/berthd/berth/managers/workload"
)

// Name of the provider in claims, traces and metrics.
const Name = "memory"

// Manager decides about memory under one configuration. It never changes and is
// safe for concurrent use.
type Manager struct {
	policy   string
	apart    bool
	features workload.Features
	resizes  bool // pinned memory may change in place
	warnings []string
	// claims is set in a manager of resource claims.
	claims bool

	nodes      numa.Mask
	ids        []int       // of nodes, ascending
	capacities []*capacity // by resource
	// asKubelet is Config.AsKubelet.
	asKubelet bool
}

var (
	_ hint.Provider  = (*Manager)(nil)
	_ hint.Describer = (*Manager)(nil)
)

// Name returns "memory".
func (*Manager) Name() string { return Name }

// Describe returns the policy.
func (m *Manager) Describe() hint.Description {
	return hint.Description{Policy: m.policy}
}

// Warnings lists, in sentences, which nodes have less memory than is
// reserved on them. The kubelet's unsigned amounts wrap around there, and the
// node takes everything.
func (m *Manager) Warnings() []string { return slices.Clone(m.warnings) }

// Reserved returns what is kept for the system, in bytes by NUMA node and resource;
// nothing under the policy None. The map is the caller's.
func (m *Manager) Reserved() map[int]map[string]uint64 {
	out := map[int]map[string]uint64{}
	for _, c := range m.capacities {
		for _, id := range m.ids {
			if c.reserved[id] == 0 {
				continue
			}
			if out[id] == nil {
				out[id] = map[string]uint64{}
			}
			out[id][c.resource] = uint64(c.reserved[id])
		}
	}
	return out
}

// ForClaims returns a manager that gives resource claims these amounts and nothing else, in bytes by
// NUMA node and resource. The policy must be Static.
func (m *Manager) ForClaims(bytes map[int]map[workload.Resource]uint64) *Manager {
	out := &Manager{policy: m.policy, features: m.features, claims: true, nodes: m.nodes, ids: m.ids}
	for _, whole := range m.capacities {
		c := &capacity{resource: whole.resource, nodes: whole.nodes, total: whole.total}
		for _, node := range m.ids {
			c.allocatable[node] = int64(min(bytes[node][workload.Resource(whole.resource)], maxBytes))
			c.reserved[node] = c.total[node] - c.allocatable[node]
			c.weights[node] = uint64(c.allocatable[node])
		}
		out.capacities = append(out.capacities, c)
	}
	return out
}

// serves returns whether the manager decides about the owner of a claim: a pod, or a resource claim.
func (m *Manager) serves(view *ledger.View, c *ledger.Claim) bool {
	pod, ok := view.Pod(c.Owner.Pod)
	return !ok || view.Rules().OnePool || m.claims == (pod.Pod.ResourceClaim != nil)
}
