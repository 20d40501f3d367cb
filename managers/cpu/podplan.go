package cpu

import (
	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/hint"
	"github.com/berthd/berth/managers/ledger"
)

// planPod takes a set for a pod as a whole and divides it among the containers
// (KEP-5526, pod scope). A pod that does not request a whole number of CPUs runs
// in the shared pool.
func (m *Manager) planPod(h *allocation, affinity hint.Hint) ([]ledger.Claim, error) {
	total := h.total()
	if total == 0 {
		return nil, nil
	}
	if starved := h.starved(total); starved != nil {
		return nil, refuse(errdefs.EmptyPodSharedPoolError, starved)
	}
	var claims []ledger.Claim
	if h.podCPUs == nil {
		if err := m.alignable(h.available, total); err != nil {
			return nil, err
		}
		set, err := m.near(h.available, total, affinity)
		if err != nil {
			return nil, err
		}
		h.podCPUs = &ledger.CPUs{Set: set, Use: ledger.CPUPod}
		claims = append(claims, ledger.Claim{
			Owner: ledger.Owner{Pod: h.Pod.UID}, Provider: Name, Resource: Resource, Affinity: &affinity, CPUs: h.podCPUs,
		})
	}
	return m.divide(h, affinity, claims)
}

// divide appends every container's part of the pod's set, where it has none yet.
// Init containers hold theirs while they run, and those that follow may have
// them again; what a sidecar or app container has is gone. What is left in the
// end is shared, by sidecars too. A sharing init container shares only with
// sidecars: it has all CPUs that no sidecar holds.
func (m *Manager) divide(h *allocation, affinity hint.Hint, claims []ledger.Claim) ([]ledger.Claim, error) {
	rest, nodes := h.podCPUs.Set, 0
	if !affinity.Any {
		nodes = affinity.Nodes.Len()
	}
	for i, c := range h.Pod.Walk() {
		n := h.of(c)
		if h.claims[i] == nil && n > 0 {
			part, err := m.chooseOn(rest, n, nodes)
			if err != nil {
				return nil, err
			}
			claims = append(claims, h.claim(i, part, ledger.CPUPodExclusive, affinity))
		}
		switch {
		case n > 0 && !c.Role.Feeds():
			rest = rest.Minus(h.claims[i].Set)
		case n == 0 && c.Role.Feeds() && h.claims[i] == nil:
			claims = append(claims, h.claim(i, rest, ledger.CPUPodShared, affinity))
		}
	}
	for i := range h.claims {
		if h.claims[i] == nil {
			claims = append(claims, h.claim(i, rest, ledger.CPUPodShared, affinity))
		}
	}
	return claims, nil
}

// union is what the pod's containers hold together.
func (h *allocation) union() cpuset.Set {
	var b cpuset.Builder
	for _, c := range h.claims {
		if c != nil {
			b.AddSet(c.Set)
		}
	}
	return b.Set()
}
