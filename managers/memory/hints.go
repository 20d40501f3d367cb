package memory

import (
	"context"
	"fmt"

	"github.com/berthd/berth/managers/hint"
	"github.com/berthd/berth/managers/ledger"
)

// Hints reports which node sets can hold what a container or pod requests. All
// resources of a request get the same answer. It has no answer, which means no
// preference, under the policy None, for requests that get no memory of certain
// nodes, and, as in the kubelet, where nothing fits: Plan then refuses. Explain
// then returns the missing amounts. A resource that no node has is
// Impossible. An owner that holds memory already is answered from that, if it
// still requests the same. It never returns an error.
func (m *Manager) Hints(_ context.Context, view *ledger.View, req hint.Request) ([]hint.ResourceAnswer, error) {
	if m.policy == PolicyNone {
		return nil, nil
	}
	h := m.allocation(view, req.Pod)
	if h.None() {
		return nil, nil
	}
	if req.Scope() == hint.PodScope {
		return h.podHints(), nil
	}
	wants := h.of(&req.Pod.Containers[req.Container])
	if held := h.claims(req.Pod.Containers[req.Container].Name); len(held) > 0 {
		return regenerate(held, wants), nil
	}
	return h.containerFamily(req, wants).answers(), nil
}

func (h *allocation) podHints() []hint.ResourceAnswer {
	total := h.total()
	if h.Whole {
		if r, early := h.starved(total); r != "" {
			reason := (&EmptyPodPoolError{Resource: r, Init: early}).Error()
			return same(total, hint.Answer{Kind: hint.Impossible, Reason: reason})
		}
	}
	for _, c := range h.Pod.Walk() {
		if held := h.claims(c.Name); len(held) > 0 {
			return regenerate(held, total)
		}
	}
	return h.table.family(total, nil).answers()
}

// same gives all resources of a request one answer.
func same(wants []want, a hint.Answer) []hint.ResourceAnswer {
	out := make([]hint.ResourceAnswer, len(wants))
	for i, w := range wants {
		out[i] = hint.ResourceAnswer{Resource: w.resource, Answer: a}
	}
	return out
}

// answers describes the family.
func (f *family) answers() []hint.ResourceAnswer {
	if len(f.wants) == 0 {
		return nil
	}
	for i, w := range f.wants {
		if f.caps[i] == nil && w.bytes > 0 {
			reason := fmt.Sprintf("no NUMA node of this machine has %s", w.resource)
			return []hint.ResourceAnswer{{Resource: w.resource, Answer: hint.Answer{Kind: hint.Impossible, Reason: reason}}}
		}
	}
	return f.described()
}

// regenerate answers with the nodes that are held, or, as in the kubelet, not at
// all if what is held is not what is now requested.
func regenerate(held []ledger.Claim, wants []want) []hint.ResourceAnswer {
	if len(held) != len(wants) {
		return nil
	}
	out := make([]hint.ResourceAnswer, len(wants))
	for i, w := range wants { // both by resource
		c := &held[i]
		if c.Resource != w.resource || len(c.Memory) != 1 || c.Memory[0].Bytes != uint64(w.bytes) {
			return nil
		}
		hints := []hint.Hint{{Nodes: c.Memory[0].Nodes, Preferred: true}}
		out[i] = hint.ResourceAnswer{Resource: w.resource, Answer: hint.Answer{Kind: hint.Options, Hints: hints}}
	}
	return out
}
