package topology

import (
	"cmp"
	"math/bits"
	"slices"

	"github.com/berthd/berth/managers/hint"
	"github.com/berthd/berth/managers/numa"
)

// maxSteps bounds each search that has no polynomial bound, in steps of some
// tens of nanoseconds.
const maxSteps = 1 << 21

// leastOf is the size of the smallest set that a rule allows, which must be one
// that allows any. With several needs it may have to search, and says if that was
// cut short; the size is then one that no smaller set has.
func leastOf(r *hint.Rule) (size int, cut bool) {
	var heaviest numa.Mask
	for weights, need := range r.Needs() {
		if nodes := heaviestOf(r, weights, need); nodes.Len() > size || nodes.Len() == size && !r.Allows(heaviest) {
			size, heaviest = nodes.Len(), nodes
		}
	}
	if r.Allows(heaviest) {
		return size, false
	}
	for ; ; size++ {
		s := newMeeting([]*hint.Rule{r}, size, nil)
		s.from(0, 0, s.size, s.must.Len(), 0)
		if s.rank.kept > 0 || s.steps > maxSteps {
			return size, s.rank.kept == 0
		}
	}
}

// heaviestOf is the set of nodes that are heaviest for one need of a rule, as few
// as meet it.
func heaviestOf(r *hint.Rule, weights *hint.Weights, need uint64) numa.Mask {
	nodes, sum := r.Must, weights.Sum(r.Must)
	var ids [numa.MaxNodes]int
	n := 0
	for id := range r.Universe.Minus(r.Must).All() {
		ids[n] = id
		n++
	}
	slices.SortFunc(ids[:n], func(a, b int) int { return cmp.Compare(weights[b], weights[a]) })
	for _, id := range ids[:n] {
		if sum >= need && nodes != 0 {
			break
		}
		sum += weights[id]
		nodes = nodes.With(id)
	}
	return nodes
}

// trace lists what a rule's sets leave of the universe: each set as a hint of the
// whole rule, with all nodes that are not in question. It looks at all subsets of
// the universe.
func trace(r *hint.Rule, universe numa.Mask) []hint.Hint {
	outside := r.Universe.Minus(universe)
	universe &= r.Universe
	must := pack(r.Must, universe)
	ids := universe.IDs()
	sums := make([]uint64, 1<<len(ids))
	short := make([]bool, len(sums))
	for weights, need := range r.Needs() {
		sums[0] = weights.Sum(outside)
		for x := 1; x < len(sums); x++ {
			sums[x] = sums[x&(x-1)] + weights[ids[bits.TrailingZeros(uint(x))]]
			short[x] = short[x] || sums[x] < need
		}
	}
	var hints []hint.Hint
	for x := 1; x < len(sums); x++ {
		if !short[x] && uint64(x)&must == must {
			nodes := outside | unpack(uint64(x), universe)
			hints = append(hints, hint.Hint{Nodes: nodes, Preferred: nodes.Len() == r.PreferredSize})
		}
	}
	return hints
}
