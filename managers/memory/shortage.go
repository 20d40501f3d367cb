package memory

import (
	"slices"

	"github.com/berthd/berth/managers/hint"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/numa"
)

// Shortages says, for a request that no node set can serve, what is missing on
// each node, group and set of unused nodes, and who holds it there. It is empty
// if some node set can serve the request, or if it does not concern the manager.
func (m *Manager) Shortages(view *ledger.View, req hint.Request) []ledger.Shortage {
	if m.policy == PolicyNone {
		return nil
	}
	h := m.holding(view, req.Pod)
	if h.none() {
		return nil
	}
	var f *family
	if req.Scope() == hint.PodScope {
		f = h.table.family(h.total(), nil)
	} else {
		f = h.containerFamily(req.Container, h.of(&req.Pod.Containers[req.Container]))
	}
	if _, ok := f.best(0); ok {
		return nil
	}
	return f.shortages(view)
}

// refusal makes the error for nodes on which a request cannot be placed.
func (f *family) refusal(view *ledger.View, problem Problem, nodes numa.Mask) error {
	e := &PlacementError{Problem: problem}
	resource := ""
	switch problem {
	case GroupTaken:
		e.Shortages = f.taken(view, nodes)
	case NoDefault:
		e.Shortages = f.shortages(view)
	case NoExtension:
		e.Shortages = append(f.short(view, nodes), f.shortages(view)...)
	case NoPreferredDefault, NoPreferredExtension:
		e.Shortages = f.withheld(view)
	}
	if len(e.Shortages) > 0 {
		resource = e.Shortages[0].Resource
	}
	return refuse("", resource, e)
}

// shortages looks at every node set of the simplest kinds: single nodes, groups,
// and all unused nodes together.
func (f *family) shortages(view *ledger.View) []ledger.Shortage {
	var sets []numa.Mask
	for id := range f.m.nodes.All() {
		if node := numa.Of(id); f.legal(node) {
			sets = append(sets, node)
		}
	}
	sets = append(sets, f.groups()...)
	if unused := f.m.nodes.Minus(f.used); unused.Len() > 1 {
		sets = append(sets, unused)
	}
	var out []ledger.Shortage
	for _, nodes := range sets {
		out = append(out, f.short(view, nodes)...)
	}
	return out
}

// short says of which resources a node set has too little.
func (f *family) short(view *ledger.View, nodes numa.Mask) []ledger.Shortage {
	var out []ledger.Shortage
	for i, w := range f.wants {
		free := max(f.free[i].sum(nodes), 0) + f.reused(nodes, i)
		if free >= w.bytes {
			continue
		}
		out = append(out, ledger.Shortage{
			Resource: w.resource, Nodes: nodes.String(), Need: uint64(w.bytes), Free: uint64(free),
			Holders: holders(view, w.resource, nodes),
		})
	}
	return out
}

// withheld says for every single node why it cannot serve the request: it has too
// little, or it is part of a group.
func (f *family) withheld(view *ledger.View) []ledger.Shortage {
	var out []ledger.Shortage
	for id := range f.m.nodes.All() {
		if node := numa.Of(id); f.legal(node) {
			out = append(out, f.short(view, node)...)
		} else {
			out = append(out, f.taken(view, node)...)
		}
	}
	return out
}

// taken says which nodes of a set are used alone or in other groups, and by
// whom. There is no lack of bytes then; what is free to the request is nothing.
func (f *family) taken(view *ledger.View, nodes numa.Mask) []ledger.Shortage {
	var others numa.Mask
	for id := range nodes.Intersect(f.used).All() {
		if f.use.Groups[id] != nodes {
			others = others.With(id)
		}
	}
	var out []ledger.Shortage
	for _, w := range f.wants {
		out = append(out, ledger.Shortage{
			Resource: w.resource, Nodes: others.String(), Need: uint64(w.bytes), Holders: holders(view, "", others),
		})
	}
	return out
}

// holders lists who has blocks of a resource (of any, without a name) on some of
// the nodes.
func holders(view *ledger.View, resource string, nodes numa.Mask) []ledger.Owner {
	var out []ledger.Owner
	for pod := range view.Pods() {
		for i := range pod.Claims {
			c := &pod.Claims[i]
			overlaps := slices.ContainsFunc(c.Memory, func(b ledger.Block) bool { return b.Nodes.Overlaps(nodes) })
			if overlaps && (resource == "" || c.Resource == resource) && !slices.Contains(out, c.Owner) {
				out = append(out, c.Owner)
			}
		}
	}
	return out
}
