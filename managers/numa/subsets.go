package numa

import "iter"

// Subsets returns all non-empty subsets of universe in enumeration order: by
// size, inside one size by sorted ids. This is the order in which the
// reference's hint providers list their hints. There are 2^Len-1 of them: a
// caller with more than a handful of nodes stops early or asks another way.
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
		var ids, at [MaxNodes]int // at[i] is the place in ids of the i-th node chosen
		place := 0
		for id := range universe.All() {
			ids[place] = id
			place++
		}
		for i := range k {
			at[i] = i
		}
		for {
			var m Mask
			for _, p := range at[:k] {
				m |= 1 << ids[p]
			}
			if !yield(m) {
				return
			}
			// Move the last choice that can still move, and put those behind
			// it right after it.
			i := k - 1
			for i >= 0 && at[i] == n-k+i {
				i--
			}
			if i < 0 {
				return
			}
			for next := at[i] + 1; i < k; i, next = i+1, next+1 {
				at[i] = next
			}
		}
	}
}
