package memory

import (
	"context"
	"errors"
	"slices"

	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/hint"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/numa"
	"github.com/berthd/berth/managers/workload"
)

var _ hint.Resizer = (*Manager)(nil)

// Resize returns the claims of the containers whose pinned memory changes. A container stays on
// its NUMA nodes if they have enough. Else the nodes are extended as for an admission, and its huge
// pages move to the wider nodes, too.
//
// Without ResizePinned, another request for memory is refused, in the kubelet's words, for all
// Guaranteed pods under the static policy and all pods with pinned memory.
func (m *Manager) Resize(_ context.Context, view *ledger.View, old, wanted *workload.Pod) ([]ledger.Claim, error) {
	if !workload.RequestsChange(old, wanted, workload.Memory) {
		return nil, nil
	}
	f := workload.Features{PodLevelResources: m.features.PodLevelResources}
	p, here := view.Pod(old.UID)
	holds := here && p.Holds(string(workload.Memory))
	if !holds && !(m.policy == PolicyStatic && wanted.QoSClass(f) == workload.Guaranteed) {
		return nil, nil
	}
	if !m.resizes || m.policy != PolicyStatic {
		return nil, errdefs.Refuse(errdefs.Infeasible, "Resize is infeasible for Guaranteed Pods alongside Memory Manager policy %q", PolicyStatic)
	}
	if here && len(m.allocation(view, wanted).claims("")) > 0 {
		return nil, notInPlace(errdefs.Infeasible, errdefs.Preconditionf("pod %s has pinned memory as a whole, and it cannot change in place", p.Pod.String()))
	}
	draft := ledger.NewDraft(view)
	var changed []ledger.Claim
	// What other containers of the pod give back is free for those that grow.
	for _, growing := range []bool{false, true} {
		for i := range wanted.Containers {
			c, before := &wanted.Containers[i], old.Container(wanted.Containers[i].Name)
			from, to := before.Requests[workload.Memory], c.Requests[workload.Memory]
			if from == to || growing != (to > from) {
				continue
			}
			claims, err := m.resize(draft, wanted, i)
			if err != nil {
				return nil, err
			}
			changed = append(changed, claims...)
		}
	}
	return changed, nil
}

// resize plans the memory of one container anew, on its nodes or wider ones.
func (m *Manager) resize(draft *ledger.Draft, pod *workload.Pod, i int) ([]ledger.Claim, error) {
	held := m.allocation(draft.View(), pod).claims(pod.Containers[i].Name)
	if len(held) == 0 {
		return nil, nil
	}
	var nodes numa.Mask
	for _, c := range held {
		for _, b := range c.Memory {
			nodes = nodes.Union(b.Nodes)
		}
	}
	affinity := hint.Hint{Nodes: nodes}
	if a := held[0].Affinity; a != nil {
		affinity.Preferred = a.Preferred
	}
	draft.DropClaims(pod.UID, held...)
	view := draft.View()
	h := m.allocation(view, pod)
	// What earlier init containers hold is not taken over: others may have it by now.
	f := h.table.family(h.of(&pod.Containers[i]), nil)
	planned, err := h.planIn(view, f, pod.Containers[i].Name, affinity, func(want, numa.Mask) ledger.NodeBytes { return ledger.NodeBytes{} })
	if err != nil {
		reason := errdefs.Infeasible
		if passes := new(PlacementError); errors.As(err, &passes) {
			reason = errdefs.ResizeDeferred
		}
		return nil, notInPlace(reason, err)
	}
	for at := range planned {
		same := func(c ledger.Claim) bool { return c.Resource == planned[at].Resource }
		if was := slices.IndexFunc(held, same); was >= 0 {
			planned[at].Affinity = held[was].Affinity
		}
	}
	draft.AddClaims(pod.UID, planned...)
	return planned, nil
}

// notInPlace is a refusal of this provider to resize.
func notInPlace(reason errdefs.Reason, err error) error {
	e := errdefs.Refuse(reason, "%w", err)
	e.Provider, e.Resource = Name, string(workload.Memory)
	return e
}
