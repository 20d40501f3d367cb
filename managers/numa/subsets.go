package numa

import (
	"iter"
	"math/bits"
)

// Subsets returns all non-empty subsets of universe in enumeration order: by
// size, inside one size by sorted ids. This is the order in which the
// reference's hint providers list their hints. There are 2^Len-1 of them: a
// caller with more than a handful of nodes stops early or uses Search.
func Subsets(universe Mask) iter.Seq[Mask] {
	return func(yield func(Mask) bool) {
		for size := 1; size <= universe.Len(); size++ {
			for m := range SubsetsOfSize(universe, size) {
				if !yield(m) {
					return
				}
			}
		}
	}
}

// SubsetsOfSize returns the subsets of universe with k nodes in the order of
// Subsets; none unless 1 <= k <= universe.Len().
func SubsetsOfSize(universe Mask, k int) iter.Seq[Mask] {
	return func(yield func(Mask) bool) {
		n := universe.Len()
		if k < 1 || k > n {
			return
		}
		low, _ := universe.Lowest()
		places := ^uint64(0) >> (MaxNodes - n) // a bit for each node of universe
		row := uint64(universe)>>low == places
		// With the lowest node as the highest bit, the sets of a size are in order
		// when these numbers fall, so when those of what is left out rise. The next
		// number with as many bits is known as Gosper's hack.
		out := places >> k
		for {
			in := bits.Reverse64(places&^out) >> (MaxNodes - n)
			if row {
				in <<= low
			} else {
				in = spread(in, uint64(universe))
			}
			if !yield(Mask(in)) || out == places<<k&places {
				return
			}
			next := out + out&-out
			out = (next^out)>>(bits.TrailingZeros64(out)+2) | next
		}
	}
}

// spread puts the i-th bit of x at the place of the i-th one of to.
func spread(x, to uint64) (out uint64) {
	for ; x != 0; x >>= 1 {
		if x&1 != 0 {
			out |= to & -to
		}
		to &= to - 1
	}
	return out
}
