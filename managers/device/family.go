package device

import (
	"slices"

	"github.com/berthd/berth/managers/hint"
	"github.com/berthd/berth/managers/numa"
)

// listedSets bounds the list where a rule cannot describe it: all sets of up to 16
// nodes. Beyond, the narrowest are listed, and the widest.
const listedSets = 1 << 16

// family is the question which node sets can serve a request: those that touch
// enough free devices and, if earlier containers left some, all of those.
type family struct {
	machine numa.Mask
	need    int
	// all are the devices of the resource whatever their state: the preferred
	// width is what an idle machine would need.
	all []Device
	// free may be taken; reusable must be within the nodes, if they have a
	// topology, and count as free.
	free, reusable []Device
}

// answer looks only at nodes that have devices. The kubelet did so from 1.36 on
// (kubernetes#138244): machines with many nodes and few devices took it minutes.
func (f *family) answer() hint.Answer {
	universe := f.universe()
	if rule, single := f.rule(universe); single {
		if !rule.Allows(universe) {
			return f.uncovered()
		}
		return hint.Answer{Kind: hint.ByRule, Rule: rule}
	}
	hints := f.list(universe)
	if len(hints) == 0 {
		return f.uncovered()
	}
	return hint.Answer{Kind: hint.Options, Hints: hints}
}

func (f *family) uncovered() hint.Answer {
	return impossible("fewer than %d of the free devices are near to NUMA nodes", f.need)
}

// universe returns the nodes of the machine that any device is near to; all
// nodes if there are none, or if a wrong plugin names only others.
func (f *family) universe() numa.Mask {
	var u numa.Mask
	for i := range f.all {
		u |= f.all[i].Nodes
	}
	if u &= f.machine; u.IsEmpty() {
		return f.machine
	}
	return u
}

// rule describes the family where every device is near to at most one node of
// the universe; false where one is near to several, so that counting by node
// would count it twice.
func (f *family) rule(universe numa.Mask) (*hint.Rule, bool) {
	r := &hint.Rule{Universe: universe, Need: uint64(max(f.need, 0))}
	var all numa.Weights
	for i := range f.all {
		nodes := f.all[i].Nodes & universe
		if nodes.Len() > 1 {
			return nil, false
		}
		if node, ok := nodes.Lowest(); ok {
			all[node]++
		}
	}
	for i := range f.free {
		if node, ok := (f.free[i].Nodes & universe).Lowest(); ok {
			r.Weights[node]++
		}
	}
	for i := range f.reusable {
		d := &f.reusable[i]
		nodes := d.Nodes & universe
		if nodes.Len() > 1 {
			return nil, false
		}
		if !d.Topology {
			continue
		}
		node, ok := nodes.Lowest()
		if !ok {
			// Nothing contains it, so nothing will do.
			return &hint.Rule{}, true
		}
		r.Must = r.Must.With(node)
		r.Weights[node]++
	}
	idle := numa.Search{Universe: universe, Needs: []numa.Need{{Weights: &all, Amount: r.Need}}}
	r.PreferredSize = idle.Fewest()
	return r, true
}

// list goes through the node sets by size.
func (f *family) list(universe numa.Mask) []hint.Hint {
	all, free := tally(f.all, universe), tally(f.free, universe)
	must := make([]numa.Mask, 0, len(f.reusable))
	for i := range f.reusable {
		if d := &f.reusable[i]; d.Topology {
			must = append(must, d.Nodes)
		}
	}
	best := universe.Len()
	// Most sets serve; on a large machine the list is cut.
	hints := make([]hint.Hint, 0, 1<<min(universe.Len(), 8))
	consider := func(m numa.Mask) {
		if m.Len() < best && all.reach(m, f.need) {
			best = m.Len()
		}
		for _, nodes := range must {
			if !nodes.Overlaps(m) {
				return
			}
		}
		if free.reach(m, f.need-len(must)) {
			hints = append(hints, hint.Hint{Nodes: m})
		}
	}
	seen := 0
	for m := range numa.Subsets(universe) {
		if seen++; seen == listedSets {
			consider(universe)
			break
		}
		consider(m)
	}
	for i := range hints {
		hints[i].Preferred = hints[i].Nodes.Len() == best
	}
	return hints
}

// count is how many devices are near to exactly some nodes.
type count struct {
	nodes numa.Mask
	n     int
}

// counts has each set of nodes once.
type counts []count

// tally counts devices by the nodes of the universe that they are near to.
func tally(devices []Device, universe numa.Mask) counts {
	var near [numa.MaxNodes]int // to one node only, as nearly all are
	var c counts
	for i := range devices {
		nodes := devices[i].Nodes & universe
		if nodes.Len() == 1 {
			node, _ := nodes.Lowest()
			near[node]++
		} else if !nodes.IsEmpty() {
			c = c.with(nodes)
		}
	}
	c = slices.Grow(c, universe.Len())
	for node := range universe.All() {
		if near[node] > 0 {
			c = append(c, count{numa.Of(node), near[node]})
		}
	}
	return c
}

// with counts one more device that is near to exactly some nodes.
func (c counts) with(nodes numa.Mask) counts {
	for i := range c {
		if c[i].nodes == nodes {
			c[i].n++
			return c
		}
	}
	return append(c, count{nodes, 1})
}

// reach reports whether at least n devices are near to a node of m.
func (c counts) reach(m numa.Mask, n int) bool {
	for i := range c {
		if n <= 0 {
			return true
		}
		if c[i].nodes.Overlaps(m) {
			n -= c[i].n
		}
	}
	return n <= 0
}
