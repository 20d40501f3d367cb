package topology

import (
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/hint"
	"github.com/berthd/berth/managers/workload"
)

// Round is one step of an admission. A round requests hints and merges them if Merge is
// set. Then it plans its containers, in order, with the result. Without Merge, the plans
// have the affinity of the last merge before; without any they have none.
//
// Borrows marks the round of an init container that is planned after the containers that run for the pod's life.
type Round struct {
	Merge   bool
	Borrows bool
	Hints   hint.Request
	Plan    []hint.Request
}

// WholePod reports whether the order of Rounds is not the pod's own: init containers come last.
func (m *Manager) WholePod(p *workload.Pod, f workload.Features) bool {
	return m.byPod && p.HasInit() && (m.scope != hint.PodScope || !asWhole(p, f))
}

// InOrder returns the manager that plans in the pod's order.
func (m *Manager) InOrder() *Manager {
	out := *m
	out.byPod = false
	return &out
}

// Rounds returns the rounds of a pod's admission, in order.
//
// - Policy none: one round without hints, container by container.
//   - Container scope: a round for each container. Hints of a later container
//     must see what the earlier rounds planned.
//   - Pod scope: one round. Hints are requested for the whole pod, and each container is
//     planned with the same result. A pod with pod-level resources is planned as a whole if
//     the managers support such pods (KEP-5526).
//
// With planning by pod, init containers that end come last (WholePod), each in a round of its own.
func (m *Manager) Rounds(p *workload.Pod, f workload.Features) []Round {
	containers := make([]hint.Request, 0, len(p.Containers))
	var borrow []hint.Request
	whole := m.WholePod(p, f)
	for i, c := range p.Walk() {
		if r := (hint.Request{Pod: p, Container: i}); c.Role.Feeds() && whole {
			r.Borrows = true
			borrow = append(borrow, r)
		} else {
			containers = append(containers, r)
		}
	}
	var rounds []Round
	switch m.scope {
	case NoScope:
		rounds = []Round{{Plan: containers}}
	case hint.PodScope:
		all := hint.Request{Pod: p, Container: -1}
		if asWhole(p, f) {
			return []Round{{Merge: true, Hints: all, Plan: []hint.Request{all}}}
		}
		rounds = []Round{{Merge: true, Hints: all, Plan: containers}}
	default:
		for i, c := range containers {
			rounds = append(rounds, Round{Merge: true, Hints: c, Plan: containers[i : i+1]})
		}
	}
	for i, r := range borrow {
		rounds = append(rounds, Round{Merge: m.scope == hint.ContainerScope, Borrows: true, Hints: r, Plan: borrow[i : i+1]})
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
