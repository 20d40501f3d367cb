package cpu

import (
	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/hint"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/numa"
)

var _ hint.Explainer = (*Manager)(nil)

// Explain reports whether some nodes have too few CPUs for a request. For the whole
// machine it counts as full-pcpus-only does, and leaves out the cores that have a
// reserved CPU; for fewer nodes it counts as the hints do.
func (m *Manager) Explain(view *ledger.View, req hint.Request, nodes numa.Mask) []ledger.Shortage {
	h := m.allocation(view, req.Pod)
	n, reusable := h.wants(req)
	if m.policy == PolicyNone || h.Left || n == 0 {
		return nil
	}
	home := m.topo.CPUsInNodes(nodes)
	whole := m.topo.CPUNodeMask().IsSubsetOf(nodes)
	if whole {
		home = m.topo.CPUs() // CPUs without a node count too
	}
	free := h.available.Union(reusable).Intersect(home)
	withheld, why := m.reserved.Intersect(home), m.withheld
	if whole && m.options.fullCores {
		free = free.Intersect(m.physical)
		withheld, why = home.Minus(m.physical), m.withheld+" or on a core with a reserved CPU"
	}
	if free.Len() >= n {
		return nil
	}
	held := home.Minus(free).Minus(withheld)
	s := ledger.Shortage{
		Resource: Resource, Nodes: nodes.String(), Need: uint64(n), Free: uint64(free.Len()),
		Held: uint64(held.Len()), Withheld: uint64(withheld.Len()),
	}
	if s.Structural = s.Need > uint64(home.Minus(withheld).Len()); s.Withheld > 0 {
		s.Why = why
	}
	s.HeldBy(view, func(c *ledger.Claim) uint64 {
		if c.CPUs == nil || c.CPUs.Use != ledger.CPUExclusive && c.CPUs.Use != ledger.CPUPod {
			return 0
		}
		return uint64(c.CPUs.Set.IntersectLen(held))
	})
	return []ledger.Shortage{s}
}

// wants is how many more CPUs a request needs than its owner holds already,
// and what it may take over.
func (h *allocation) wants(req hint.Request) (n int, reusable cpuset.Set) {
	if req.Scope() == hint.PodScope {
		n, reusable = h.total(), h.union()
		if reusable.Len() == n {
			n = 0
		}
		return n, reusable
	}
	if h.claims[req.Container] != nil {
		return 0, cpuset.Set{}
	}
	if req.Borrows {
		return h.of(&h.Pod.Containers[req.Container]), h.loan(req)
	}
	return h.of(&h.Pod.Containers[req.Container]), h.reusable(req.Container)
}
