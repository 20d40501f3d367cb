package memory

import (
	"cmp"
	"slices"

	"github.com/berthd/berth/managers/hint"
	"github.com/berthd/berth/managers/numa"
)

// On machines of more than listedNodes nodes the family is taken apart: single
// nodes, groups, and sets of unused nodes. The first two are few. The last is
// searched by size.

const (
	// maxSets bounds how many sets of unused nodes are tried one by one for a list.
	maxSets = 1 << 12
	// maxSteps bounds a search. To find out whether k nodes exist that have enough
	// of several resources is a knapsack question; with the bounds below it takes
	// more steps than nodes only where amounts differ from node to node.
	maxSteps = 1 << 16
)

// searcher looks for the set with the smallest value among those of one size.
type searcher struct {
	ids   []int // ascending
	must  numa.Mask
	needs []int64
	// amount by want and position, and most by want, position and count: the
	// largest sum of count nodes below the position.
	amount [][]int64
	most   [][][]int64
	steps  int
}

func newSearcher(universe, must numa.Mask, weights []*amounts, needs []int64) *searcher {
	s := &searcher{ids: universe.IDs(), must: must, needs: needs}
	for _, w := range weights {
		all := make([]int64, len(s.ids))
		most := make([][]int64, len(s.ids)+1)
		var sorted []int64 // descending
		most[0] = []int64{0}
		for i, id := range s.ids {
			all[i] = w[id]
			at, _ := slices.BinarySearchFunc(sorted, w[id], func(a, b int64) int { return cmp.Compare(b, a) })
			sorted = slices.Insert(sorted, at, w[id])
			most[i+1] = make([]int64, len(sorted)+1)
			for k, amount := range sorted {
				most[i+1][k+1] = most[i+1][k] + amount
			}
		}
		s.amount, s.most = append(s.amount, all), append(s.most, most)
	}
	return s
}

// smallest returns the set of k nodes with the smallest value that has all of
// must and enough of every want; false if there is none, or none was found in
// maxSteps.
func (s *searcher) smallest(k int) (numa.Mask, bool) {
	s.steps = 0
	sums := make([]int64, len(s.needs))
	return s.below(len(s.ids), k, 0, sums)
}

// below chooses k of the nodes below a position, the higher ones left out where
// possible.
func (s *searcher) below(position, k int, chosen numa.Mask, sums []int64) (numa.Mask, bool) {
	if s.steps++; s.steps > maxSteps || k > position {
		return 0, false
	}
	for i, need := range s.needs {
		if sums[i]+s.most[i][position][k] < need {
			return 0, false
		}
	}
	if position == 0 {
		return chosen, true
	}
	at := position - 1
	id := s.ids[at]
	if !s.must.Contains(id) {
		if found, ok := s.below(at, k, chosen, sums); ok {
			return found, true
		}
	}
	if k == 0 {
		return 0, false
	}
	for i := range sums {
		sums[i] += s.amount[i][at]
	}
	found, ok := s.below(at, k-1, chosen.With(id), sums)
	for i := range sums {
		sums[i] -= s.amount[i][at]
	}
	return found, ok
}

func (f *family) needs() []int64 {
	needs := make([]int64, len(f.wants))
	for i, w := range f.wants {
		needs[i] = w.bytes
	}
	return needs
}

// least is the size of the smallest capable set; the number of nodes if no set is
// capable.
func (f *family) least() int {
	// Mostly one node would do, and then there is nothing to search.
	for _, id := range f.m.ids {
		if f.capable(numa.Of(id)) {
			return 1
		}
	}
	weights := make([]*amounts, len(f.wants))
	for i, c := range f.caps {
		if weights[i] = new(amounts); c != nil {
			weights[i] = &c.allocatable
		}
	}
	s := newSearcher(f.m.nodes, 0, weights, f.needs())
	for k := 2; k < len(f.m.ids); k++ {
		if _, ok := s.smallest(k); ok {
			return k
		}
	}
	return len(f.m.ids)
}

// unused searches sets of two and more unused nodes.
func (f *family) unused(must numa.Mask) *searcher {
	weights := make([]*amounts, len(f.wants))
	for i := range f.free {
		weights[i] = &f.free[i]
	}
	return newSearcher(f.m.nodes.Minus(f.used), must, weights, f.needs())
}

// allows tells whether a set is in the family.
func (f *family) allows(nodes numa.Mask) bool {
	return f.capable(nodes) && f.legal(nodes) && f.fitsReused(nodes)
}

// few returns the single nodes and groups of the family, in order of their sizes.
func (f *family) few() []numa.Mask {
	var out []numa.Mask
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

// search is best for large machines.
func (f *family) search(base numa.Mask) (hint.Hint, bool) {
	var best numa.Mask
	for _, nodes := range f.few() {
		if base.IsSubsetOf(nodes) && (best == 0 || nodes.NarrowerThan(best)) {
			best = nodes
		}
	}
	if free := f.m.nodes.Minus(f.used); base.IsSubsetOf(free) {
		s := f.unused(base)
		for k := max(2, base.Len()); k <= free.Len() && (best == 0 || k <= best.Len()); k++ {
			if nodes, ok := s.smallest(k); ok && (best == 0 || nodes.NarrowerThan(best)) {
				best = nodes
				break
			}
		}
	}
	return hint.Hint{Nodes: best, Preferred: best.Len() == f.least()}, best != 0
}

// some lists a part of the family of a large machine: its single nodes and
// groups, the sets of unused nodes by size for as long as those are maxSets, and
// of the larger sizes one set each.
func (f *family) some() []hint.Hint {
	sets := f.few()
	free := f.m.nodes.Minus(f.used)
	tried, k := 0, 2
	for ; k <= free.Len() && choose(free.Len(), k) <= maxSets-tried; k++ {
		for nodes := range numa.SubsetsOfSize(free, k) {
			tried++
			if f.allows(nodes) {
				sets = append(sets, nodes)
			}
		}
	}
	s := f.unused(0)
	for ; k <= free.Len(); k++ {
		if nodes, ok := s.smallest(k); ok {
			sets = append(sets, nodes)
		}
	}
	if len(sets) == 0 {
		return nil
	}
	least := f.least()
	hints := make([]hint.Hint, len(sets))
	for i, nodes := range sets {
		hints[i] = hint.Hint{Nodes: nodes, Preferred: nodes.Len() == least}
	}
	hint.SortHints(hints)
	return hints
}

// choose is the number of sets of k out of n, at most maxSets+1.
func choose(n, k int) int {
	sets := 1
	for i := range k {
		if sets = sets * (n - i) / (i + 1); sets > maxSets {
			return maxSets + 1
		}
	}
	return sets
}

// rule describes the family of a large machine where one rule can: no node is
// used, nothing is handed on, and at most one resource is not to be had on every
// node by itself. Otherwise the family is a union of parts, or has more than one
// threshold, which a rule cannot say.
func (f *family) rule() (*hint.Rule, bool) {
	if f.m.subsets != nil || f.used != 0 || len(f.left) > 0 {
		return nil, false
	}
	r := &hint.Rule{Universe: f.m.nodes}
	bound := false
	for i, w := range f.wants {
		if f.everywhere(i) {
			continue
		}
		if bound {
			return nil, false
		}
		bound = true
		r.Need = uint64(w.bytes)
		for _, id := range f.m.ids {
			r.Weights[id] = uint64(max(f.free[i][id], 0))
		}
	}
	if r.Weight(f.m.nodes) < r.Need {
		return nil, false
	}
	r.PreferredSize = f.least()
	return r, true
}

// everywhere tells whether each node by itself has enough of a want.
func (f *family) everywhere(want int) bool {
	for _, id := range f.m.ids {
		if f.free[want][id] < f.wants[want].bytes {
			return false
		}
	}
	return true
}
