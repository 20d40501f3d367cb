package memory

import (
	"cmp"
	"slices"

	"github.com/berthd/berth/managers/hint"
	"github.com/berthd/berth/managers/numa"
)

// On machines of more than listedNodes nodes the family is taken apart: single
// nodes, groups, and sets of unused nodes. The first two are few. The last is
// described by a rule (see rule.go), and searched by size.

// maxSteps bounds a search. To find out whether k nodes exist that have enough of
// several resources is a knapsack question; with the bounds below it takes more
// steps than nodes only where amounts differ from node to node.
const maxSteps = 1 << 16

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
	least, largest := 2, numa.Mask(0)
	for i, c := range f.caps {
		if weights[i] = new(amounts); c != nil {
			weights[i] = &c.allocatable
		}
		nodes := f.m.largest(weights[i], f.wants[i].bytes)
		if n := nodes.Len(); n > least || n == least && !f.capable(largest) {
			least, largest = n, nodes
		}
	}
	// Nor is there where the nodes with most of one resource have enough of all.
	if f.capable(largest) {
		return least
	}
	s := newSearcher(f.m.nodes, 0, weights, f.needs())
	for k := least; k < len(f.m.ids); k++ {
		if _, ok := s.smallest(k); ok {
			return k
		}
	}
	return len(f.m.ids)
}

// largest is the set of nodes that have most of something, as few as have enough
// together; all nodes if those have not.
func (m *Manager) largest(a *amounts, need int64) numa.Mask {
	var buffer [numa.MaxNodes]int
	ids := append(buffer[:0], m.ids...)
	slices.SortStableFunc(ids, func(i, j int) int { return cmp.Compare(a[j], a[i]) })
	var nodes numa.Mask
	for _, id := range ids {
		if need <= 0 {
			break
		}
		need -= a[id]
		nodes = nodes.With(id)
	}
	return nodes
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
