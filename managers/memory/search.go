package memory

import (
	"slices"

	"github.com/berthd/berth/managers/hint"
	"github.com/berthd/berth/managers/numa"
)

// The family is taken apart: single nodes, groups, and sets of unused nodes. The
// first two are few. The last is described by a rule (see rule.go), and searched by
// size.

// nothing is the capacity of a resource that the machine does not have.
var nothing numa.Weights

// idle searches the sets that would do on an idle machine.
func (f *family) idle() *numa.Search {
	s := &numa.Search{Universe: f.m.nodes, Needs: make([]numa.Need, 0, len(f.wants))}
	for i, w := range f.wants {
		need := numa.Need{Weights: &nothing, Amount: uint64(w.bytes)}
		if c := f.caps[i]; c != nil {
			need.Weights = &c.weights
		}
		s.Needs = append(s.Needs, need)
	}
	return s
}

// least is the size of the smallest capable set; the number of nodes if no set is
// capable.
func (f *family) least() int { return f.idle().Fewest() }

// allows reports whether a set is in the family.
func (f *family) allows(nodes numa.Mask) bool {
	return f.capable(nodes) && f.legal(nodes) && f.fitsReused(nodes)
}

// few returns the single nodes and groups of the family, in order of their sizes.
func (f *family) few() []numa.Mask {
	out := make([]numa.Mask, 0, len(f.m.ids))
	for _, id := range f.m.ids {
		if node := numa.Of(id); f.allows(node) {
			out = append(out, node)
		}
	}
	for _, group := range f.groups() {
		if f.allows(group) {
			out = append(out, group)
		}
	}
	slices.SortFunc(out, numa.Mask.CompareEnumeration)
	return out
}

// best returns the hint of the family that the kubelet takes where it decides
// without the topology manager: among the sets with all nodes of base the
// narrowest. Preferred ones come first in that order by themselves, since no
// capable set is smaller than they are.
func (f *family) best(base numa.Mask) (hint.Hint, bool) {
	var best numa.Mask
	for _, nodes := range f.few() {
		if base.IsSubsetOf(nodes) && (best == 0 || nodes.NarrowerThan(best)) {
			best = nodes
		}
	}
	if nodes, ok := f.unused(base).Narrowest(); ok && (best == 0 || nodes.NarrowerThan(best)) {
		best = nodes
	}
	return hint.Hint{Nodes: best, Preferred: best.Len() == f.least()}, best != 0
}

// unused searches the sets of unused nodes that have enough, with all of must.
func (f *family) unused(must numa.Mask) *numa.Search {
	s := &numa.Search{Universe: f.m.nodes.Minus(f.used), Must: must}
	needs := f.thresholds(s.Universe)
	for i := range needs {
		s.Needs = append(s.Needs, numa.Need{Weights: &needs[i].Weights, Amount: needs[i].Need})
	}
	return s
}
