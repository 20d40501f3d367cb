package cpu

import (
	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/fault"
	"github.com/berthd/berth/managers/hint"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/workload"
)

// planPod takes a set for a pod as a whole and divides it among the containers
// (KEP-5526, pod scope). A pod that does not ask for a whole number of CPUs runs
// in the shared pool.
func (m *Manager) planPod(h *holding, affinity hint.Hint) ([]ledger.Claim, error) {
	total := h.total()
	if total == 0 || h.bubble != nil {
		return nil, nil
	}
	if h.starved(total) {
		return nil, refuse(fault.EmptyPodSharedPoolError, &EmptyPoolError{PodLevel: true})
	}
	if err := m.alignable(h, total); err != nil {
		return nil, err
	}
	set, err := m.near(h.available, total, affinity)
	if err != nil {
		return nil, err
	}
	if m.empties(h, set) {
		return nil, refuse("", &EmptyPoolError{})
	}
	h.bubble = &ledger.CPUs{Set: set, Use: ledger.CPUPod}
	whole := ledger.Claim{
		Owner: ledger.Owner{Pod: h.pod.UID}, Provider: Name, Resource: Resource, Affinity: &affinity, CPUs: h.bubble,
	}
	parts, err := m.divide(h, affinity)
	if err != nil {
		return nil, err
	}
	return append([]ledger.Claim{whole}, parts...), nil
}

// divide gives every container its part of the pod's set. Init containers hold
// theirs while they run, and those that follow may have them again; what a
// sidecar or app container has is gone. What is left in the end is shared, by
// sidecars too. An init container that shares does so with nobody but sidecars:
// it has all that no sidecar holds.
func (m *Manager) divide(h *holding, affinity hint.Hint) ([]ledger.Claim, error) {
	rest := h.bubble.Set
	var claims []ledger.Claim
	for i, c := range h.pod.Walk() {
		n := h.of(c)
		if n == 0 {
			if c.Role == workload.Init {
				claims = append(claims, h.claim(i, rest, ledger.CPUPodShared, affinity))
			}
			continue
		}
		part, err := m.choose(rest, n)
		if err != nil {
			return nil, err
		}
		if !c.Role.Feeds() {
			rest = rest.Minus(part)
		}
		claims = append(claims, h.claim(i, part, ledger.CPUPodExclusive, affinity))
	}
	for i := range h.claims {
		if h.claims[i] == nil {
			claims = append(claims, h.claim(i, rest, ledger.CPUPodShared, affinity))
		}
	}
	return claims, nil
}

// union is what the pod's containers hold together.
func (h *holding) union() cpuset.Set {
	var b cpuset.Builder
	for _, c := range h.claims {
		if c != nil {
			b.AddSet(c.Set)
		}
	}
	return b.Set()
}
