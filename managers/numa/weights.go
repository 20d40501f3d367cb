package numa

import (
	"cmp"
	"math"
	"math/bits"
	"slices"
)

// Weights count what each node has of something, by node id.
type Weights [MaxNodes]uint64

// Sum returns what the nodes of m have together; math.MaxUint64 if it is more
// than that.
func (w *Weights) Sum(m Mask) uint64 {
	var sum uint64
	for rest := uint64(m); rest != 0; rest &= rest - 1 {
		next, carry := bits.Add64(sum, w[bits.TrailingZeros64(rest)], 0)
		if carry != 0 {
			return math.MaxUint64
		}
		sum = next
	}
	return sum
}

// Need tells how much of something the nodes of a set must have together. Sums of
// the weights of all nodes must fit into 64 bits.
type Need struct {
	Weights *Weights
	Amount  uint64
}

// heaviest returns must and the fewest other nodes of the universe that satisfy the
// need, those with most first; the universe if even that is not enough.
func (n *Need) heaviest(universe, must Mask) Mask {
	var buffer [MaxNodes]int
	ids := slices.AppendSeq(buffer[:0], (universe &^ must).All())
	slices.SortStableFunc(ids, func(a, b int) int { return cmp.Compare(n.Weights[b], n.Weights[a]) })
	nodes, sum := must, n.Weights.Sum(must)
	for _, id := range ids {
		if sum >= n.Amount && nodes != 0 {
			break
		}
		sum += n.Weights[id]
		nodes |= 1 << id
	}
	return nodes
}
