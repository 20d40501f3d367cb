package hint

import (
	"math"
	"math/bits"

	"github.com/berthd/berth/managers/fault"
	"github.com/berthd/berth/managers/numa"
)

// Weight returns what the nodes of m within the universe contribute to Need;
// math.MaxUint64 if the sum is larger than that.
func (r *Rule) Weight(m numa.Mask) uint64 {
	var sum uint64
	for rest := uint64(m & r.Universe); rest != 0; rest &= rest - 1 {
		next, carry := bits.Add64(sum, r.Weights[bits.TrailingZeros64(rest)], 0)
		if carry != 0 {
			return math.MaxUint64
		}
		sum = next
	}
	return sum
}

// Allows tells whether a set of nodes is in the family. The empty set never is.
func (r *Rule) Allows(m numa.Mask) bool {
	return m != 0 && m.IsSubsetOf(r.Universe) && r.Must.IsSubsetOf(m) && r.Weight(m) >= r.Need
}

// Expand lists the family in enumeration order; empty if no set will do. It has
// to look at 2^n sets, n being the nodes of the universe that are not in Must,
// and refuses with class Exhausted if those are more than limit.
func (r *Rule) Expand(limit int) ([]Hint, error) {
	free := r.Universe.Minus(r.Must)
	if n := free.Len(); n >= 63 || 1<<n > limit {
		return nil, fault.Exhaustedf("expand a rule: %d free nodes make 2^%d sets, more than the %d allowed", n, n, limit)
	}
	hints := []Hint{}
	if !r.Must.IsSubsetOf(r.Universe) {
		return hints, nil
	}
	consider := func(m numa.Mask) {
		if r.Allows(m) {
			hints = append(hints, Hint{Nodes: m, Preferred: m.Len() == r.PreferredSize})
		}
	}
	consider(r.Must)
	for m := range numa.Subsets(free) {
		consider(m | r.Must)
	}
	if r.Must != 0 {
		SortHints(hints)
	}
	return hints, nil
}
