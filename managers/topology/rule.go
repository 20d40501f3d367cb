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
// that allows any.
func leastOf(r *hint.Rule) int {
	size, sum := r.Must.Len(), r.Weight(r.Must)
	var weights [numa.MaxNodes]uint64
	n := 0
	for id := range r.Universe.Minus(r.Must).All() {
		weights[n] = r.Weights[id]
		n++
	}
	slices.SortFunc(weights[:n], func(a, b uint64) int { return cmp.Compare(b, a) })
	for _, w := range weights[:n] {
		if sum >= r.Need {
			break
		}
		sum += w
		size++
	}
	return max(size, 1)
}

// trace lists what a rule's sets leave of the universe, which is part of the
// rule's own: each set as a hint of the whole rule, with all nodes that are not
// in question. It looks at all subsets of the universe.
func trace(r *hint.Rule, universe numa.Mask) []hint.Hint {
	outside := r.Universe.Minus(universe)
	var need uint64
	if given := r.Weight(outside); given < r.Need {
		need = r.Need - given
	}
	must := pack(r.Must, universe)
	ids := universe.IDs()
	sums := make([]uint64, 1<<len(ids))
	var hints []hint.Hint
	for x := 1; x < len(sums); x++ {
		sums[x] = sums[x&(x-1)] + r.Weights[ids[bits.TrailingZeros(uint(x))]]
		if sums[x] >= need && uint32(x)&must == must {
			hints = append(hints, hint.Hint{Nodes: outside | unpack(uint32(x), universe)})
		}
	}
	return hints
}

// slack is how much weight a rule can do without.
func slack(r *hint.Rule) uint64 { return r.Weight(r.Universe) - r.Need }
