package topology

import (
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/hint"
	"github.com/berthd/berth/managers/workload"
)

// Round is one step of an admission. A round requests hints and merges them if Merge is
// set. Then it plans its containers, in order, with the result. Without Merge, the plans
// have no affinity.
type Round struct {
	Merge bool
	Hints hint.Request
	Plan  []hint.Request
}

// Rounds returns the rounds of a pod's admission, in order.
//
// - Policy none: one round without hints, container by container.
//   - Container scope: a round for each container. Hints of a later container
//     must see what the earlier rounds planned.
//   - Pod scope: one round. Hints are requested for the whole pod, and each container is
//     planned with the same result. A pod with pod-level resources is planned as a whole if
//     the managers support such pods (KEP-5526).
func (m *Manager) Rounds(p *workload.Pod, f workload.Features) []Round {
	containers := make([]hint.Request, len(p.Containers))
	for i := range p.Containers {
		containers[i] = hint.Request{Pod: p, Container: i}
	}
	switch m.scope {
	case NoScope:
		return []Round{{Plan: containers}}
	case hint.PodScope:
		whole := hint.Request{Pod: p, Container: -1}
		if asWhole(p, f) {
			return []Round{{Merge: true, Hints: whole, Plan: []hint.Request{whole}}}
		}
		return []Round{{Merge: true, Hints: whole, Plan: containers}}
	}
	rounds := make([]Round, len(containers))
	for i, c := range containers {
		rounds[i] = Round{Merge: true, Hints: c, Plan: containers[i : i+1]}
	}
	return rounds
}

// asWhole returns whether the managers treat the pod as one owner of resources.
func asWhole(p *workload.Pod, f workload.Features) bool {
	return f.PodLevelResources && f.PodLevelResourceManagers && p.HasPodLevel()
}

// Widening returns the policy's rule for claims that a resize extends to other NUMA nodes.
func (m *Manager) Widening() hint.Widening {
	return hint.Widening{OneNode: m.policy == SingleNUMANode, Preferred: m.policy == Restricted, Scope: m.scope}
}

// Refusal returns the error for a pod that the merge does not admit, with the kubelet's
// reason and messages.
func (m *Manager) Refusal(p *workload.Pod, f workload.Features) *errdefs.Error {
	switch {
	case !asWhole(p, f):
		return errdefs.Refuse(errdefs.TopologyAffinityError, "Resources cannot be allocated with Topology locality")
	case m.scope == hint.PodScope:
		return errdefs.Refuse(errdefs.TopologyAffinityError,
			"Pod Scope pod with pod-level resources failed admission under pod-scope topology manager")
	}
	return errdefs.Refuse(errdefs.TopologyAffinityError,
		"Pod Scope pod with pod-level resources failed admission with a container-level topology manager")
}
