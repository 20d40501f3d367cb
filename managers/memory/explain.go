package memory

import (
	"github.com/berthd/berth/managers/hint"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/numa"
)

var _ hint.Explainer = (*Manager)(nil)

// Missing returns the shortages.
func (e *PlacementError) Missing() []ledger.Shortage { return e.Shortages }

// Explain lists the resources of which some nodes have too little free, or if they
// have enough and no fewer nodes ever could, which of them are used alone or in
// other groups.
func (m *Manager) Explain(view *ledger.View, req hint.Request, nodes numa.Mask) []ledger.Shortage {
	if m.policy == PolicyNone {
		return nil
	}
	h := m.allocation(view, req.Pod)
	if h.None() {
		return nil
	}
	var f *family
	if req.Scope() == hint.PodScope {
		f = h.table.family(h.total(), nil)
	} else {
		c := &req.Pod.Containers[req.Container]
		if len(h.claims(c.Name)) > 0 {
			return nil
		}
		f = h.containerFamily(req, h.of(c))
	}
	nodes = nodes.Intersect(m.nodes)
	if list := f.short(view, nodes); len(list) > 0 {
		return list
	}
	if !f.legal(nodes) && f.capable(nodes) && nodes.Len() == f.least() {
		return f.taken(view, nodes)
	}
	return nil
}
