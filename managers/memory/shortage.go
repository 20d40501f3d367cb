package memory

import (
	"slices"

	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/numa"
	"github.com/berthd/berth/managers/workload"
)

// refusal makes the error for nodes on which a request cannot be placed.
func (f *family) refusal(view *ledger.View, problem Problem, nodes numa.Mask) error {
	e := &PlacementError{Problem: problem}
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
	resource := ""
	if len(e.Shortages) > 0 {
		resource = e.Shortages[0].Resource
	}
	return refuse("", resource, e)
}

// shortages examines every node set of the simplest kinds: single nodes, groups,
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

// short returns the resources of which a node set has too little.
func (f *family) short(view *ledger.View, nodes numa.Mask) []ledger.Shortage {
	var out []ledger.Shortage
	for i, w := range f.wants {
		free := max(f.free[i].sum(nodes), 0) + f.reused(nodes, i)
		if free >= w.bytes {
			continue
		}
		s := ledger.Shortage{Resource: w.resource, Nodes: nodes.String(), Need: uint64(w.bytes), Free: uint64(free)}
		var others int64
		if c := f.caps[i]; c != nil {
			held, taken := max(c.allocatable.sum(nodes)-free, 0), f.takenOf(c)
			others = min(taken.sum(nodes), held)
			s.Withheld = uint64(c.total.sum(nodes) - c.allocatable.sum(nodes) + others)
			s.Held = uint64(held - others)
			s.Structural = w.bytes > c.allocatable.sum(nodes)
		} else {
			s.Structural = true
		}
		if s.Withheld > 0 {
			s.Why = "reserved"
			if others > 0 {
				s.Why = "reserved, or in use by others than pods with memory there"
			}
			if w.resource == string(workload.Memory) {
				s.Why = "reserved or huge pages"
			}
			if f.m.claims {
				s.Why = "not in dra.memory"
			}
		}
		s.HeldBy(view, func(c *ledger.Claim) uint64 {
			if c.Resource != w.resource || !f.m.serves(view, c) {
				return 0
			}
			return heldOn(view, c, nodes)
		})
		out = append(out, s)
	}
	return out
}

// withheld returns for every single node why it cannot serve the request: it has too
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

// taken returns the nodes of a set that are used alone or in other groups, and the
// holders. Bytes are not missing then; none is free for the request.
func (f *family) taken(view *ledger.View, nodes numa.Mask) []ledger.Shortage {
	var others numa.Mask
	for id := range nodes.Intersect(f.used).All() {
		if f.use.Groups[id] != nodes {
			others = others.With(id)
		}
	}
	var out []ledger.Shortage
	for i, w := range f.wants {
		s := ledger.Shortage{Resource: w.resource, Nodes: others.String(), Need: uint64(w.bytes)}
		if c := f.caps[i]; c != nil {
			s.Held = uint64(max(c.allocatable.sum(others)-f.free[i].sum(others), 0))
			s.Withheld = uint64(c.total.sum(others)) - s.Held
			s.Why = "of nodes that are used alone or in another group"
		}
		s.HeldBy(view, func(c *ledger.Claim) uint64 {
			if !f.m.serves(view, c) || !slices.ContainsFunc(c.Memory, func(b ledger.Block) bool { return b.Nodes.Overlaps(others) }) {
				return 0
			}
			return max(heldOn(view, c, others), 1) // a block without bytes uses its nodes too
		})
		out = append(out, s)
	}
	return out
}

// heldOn is what a claim has on some nodes; nothing if it is a part of what its
// pod has as a whole.
func heldOn(view *ledger.View, c *ledger.Claim, nodes numa.Mask) uint64 {
	if pod, ok := view.Pod(c.Owner.Pod); ok && c.Owner.Container != "" {
		if _, whole := pod.Claim("", c.Resource); whole {
			return 0
		}
	}
	var held uint64
	for _, b := range c.Memory {
		on, here := nodes, b.Nodes.Intersect(view.Machine().NodeMask())
		if first, ok := here.Lowest(); ok && nodes.Contains(first) {
			on = on.Union(b.Nodes.Minus(here)) // as in MemoryUse
		}
		held += b.On(on)
	}
	return held
}

// holders lists who has blocks of a resource on some of the nodes.
func (m *Manager) holders(view *ledger.View, resource string, nodes numa.Mask) []ledger.Owner {
	var out []ledger.Owner
	for c := range view.Claims() {
		if c.Resource == resource && m.serves(view, &c) && heldOn(view, &c, nodes) > 0 {
			out = append(out, c.Owner)
		}
	}
	return out
}
