package topology

import (
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/hint"
	"github.com/berthd/berth/managers/workload"
)

// Round is one step of an admission: what is asked and merged, and who is then
// planned with the result, in order. In a round that does not Merge nobody is
// asked, and the plans follow no affinity.
type Round struct {
	Merge bool
	Ask   hint.Request
	Plan  []hint.Request
}

// Rounds returns the rounds of a pod's admission, in order.
//
//   - Policy none: one round, nobody asked, container by container.
//   - Container scope: a round for each container. Hints of a later container
//     must see what the earlier rounds planned.
//   - Pod scope: one round; the pod is asked about as a whole and each of its
//     containers is planned with the same result. A pod with resources of its
//     own is planned as a whole too if the managers work for such pods
//     (KEP-5526).
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
			return []Round{{Merge: true, Ask: whole, Plan: []hint.Request{whole}}}
		}
		return []Round{{Merge: true, Ask: whole, Plan: containers}}
	}
	rounds := make([]Round, len(containers))
	for i, c := range containers {
		rounds[i] = Round{Merge: true, Ask: c, Plan: containers[i : i+1]}
	}
	return rounds
}

// asWhole tells whether the managers treat the pod as one owner of resources.
func asWhole(p *workload.Pod, f workload.Features) bool {
	return f.PodLevelResources && f.PodLevelResourceManagers && p.HasPodLevel()
}

// Refusal is the error for a pod whose merge does not admit it; reason and
// messages are the kubelet's.
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
