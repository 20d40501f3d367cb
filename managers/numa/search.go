package numa

import (
	"cmp"
	"iter"
	"math/bits"
	"slices"
)

// maxSteps is the limit of a Search that has none, in steps of some tens of
// nanoseconds. Whether k nodes have enough of several things is a knapsack
// question, so no bound is safe for all amounts.
const maxSteps = 1 << 21

// Search finds the sets of nodes that have enough: every set is part of
// Universe, contains Must, is not empty and satisfies all Needs.
type Search struct {
	Universe, Must Mask
	Needs          []Need
	// Distances, where they are set, decide between sets of one size. They must
	// know all pairs of the universe.
	Distances *Distances
	// Steps counts the sets that were tried, complete or not, over all calls. A
	// search ends without a result when Steps exceeds Limit; 0 stands for two
	// million.
	Steps, Limit int
}

// Enough reports whether a set of nodes has enough.
func (s *Search) Enough(nodes Mask) bool {
	if nodes == 0 || !nodes.IsSubsetOf(s.Universe) || !s.Must.IsSubsetOf(nodes) {
		return false
	}
	for _, n := range s.Needs {
		if n.Weights.Sum(nodes) < n.Amount {
			return false
		}
	}
	return true
}

// Cut reports whether the limit of steps has ended the search.
func (s *Search) Cut() bool { return s.Steps > s.limit() }

func (s *Search) limit() int { return cmp.Or(s.Limit, maxSteps) }

// Fewest returns the size of the smallest set with enough; the size of the
// universe if no set has enough. If the search was cut, no smaller set has
// enough, and a set of the size may not have either.
func (s *Search) Fewest() int {
	if !s.Enough(s.Universe) {
		return s.Universe.Len()
	}
	size, heaviest := max(1, s.Must.Len()), Mask(0)
	for i := range s.Needs {
		nodes := s.Needs[i].heaviest(s.Universe, s.Must)
		if n := nodes.Len(); n > size || n == size && !s.Enough(heaviest) {
			size, heaviest = n, nodes
		}
	}
	if s.Enough(heaviest) {
		return size
	}
	for ; size < s.Universe.Len(); size++ {
		for range s.OfSize(size) {
			return size
		}
		if s.Cut() {
			break
		}
	}
	return size
}

// Narrowest returns the narrowest set with enough, and false if there is none. For
// a size at which the search was cut it continues with the next size, so the result
// may have more nodes than necessary then.
func (s *Search) Narrowest() (Mask, bool) {
	if !s.Enough(s.Universe) {
		return 0, false
	}
	for size := s.Fewest(); size <= s.Universe.Len(); size++ {
		s.Steps = 0
		for nodes := range s.OfSize(size) {
			return nodes, true
		}
	}
	return 0, false
}

// OfSize returns the sets of size nodes with enough, in ascending order as
// integers. With distances it leaves out those that are not nearer than one
// before: the last one has the smallest sum of distances, and is the smallest
// integer of those that have it.
func (s *Search) OfSize(size int) iter.Seq[Mask] {
	return func(yield func(Mask) bool) {
		if size < 1 || size > s.Universe.Len() || s.Must.Len() > size || !s.Must.IsSubsetOf(s.Universe) {
			return
		}
		w := walk{Search: s, size: size, ids: s.Universe.IDs(), sums: make([]uint64, len(s.Needs)), yield: yield}
		slices.Reverse(w.ids)
		w.weigh()
		w.measure()
		w.from(0, 0, s.Must.Len(), 0)
	}
}

// walk is a search for the sets of one size. It takes the nodes from the highest
// id down and tries first to leave a node out, so that sets are found in
// ascending order as integers. It turns back as soon as some need cannot be satisfied
// even with the heaviest nodes that remain.
type walk struct {
	*Search
	size int
	ids  []int // descending
	// heaviest has for each need, by position in ids, the weights of the l
	// heaviest nodes from that position on, for l from 0 to size.
	heaviest [][]uint64
	// sums has for each need the weight of the nodes that are chosen.
	sums  []uint64
	yield func(Mask) bool
	// self and cross are the least distances from a node to itself and to another.
	self, cross int64
	// found is set once a set was found; nearest is its sum of distances.
	found   bool
	nearest int64
}

// weigh fills in heaviest.
func (w *walk) weigh() {
	width := w.size + 1
	w.heaviest = make([][]uint64, len(w.Needs))
	table := (len(w.ids) + 1) * width
	room := make([]uint64, len(w.Needs)*table+width) // for all needs, and top
	for i, n := range w.Needs {
		cells := room[i*table : (i+1)*table]
		top := room[len(room)-width : len(room)-width] // of the nodes so far, descending
		for at := len(w.ids) - 1; at >= 0; at-- {
			weight := n.Weights[w.ids[at]]
			place, _ := slices.BinarySearchFunc(top, weight, func(have, weight uint64) int { return cmp.Compare(weight, have) })
			top = slices.Insert(top, place, weight)
			top = top[:min(len(top), w.size)]
			sum := uint64(0)
			for l := range w.size {
				if l < len(top) {
					sum += top[l]
				}
				cells[at*width+l+1] = sum
			}
		}
		w.heaviest[i] = cells
	}
}

// measure fills in the least distances.
func (w *walk) measure() {
	if w.Distances == nil {
		return
	}
	w.self, w.cross = maxDistance, maxDistance
	for _, i := range w.ids {
		for _, j := range w.ids {
			least := &w.cross
			if i == j {
				least = &w.self
			}
			d, _ := w.Distances.Between(i, j)
			*least = min(*least, int64(d))
		}
	}
}

// from adds nodes of ids[at:] to those that are chosen, musts of which are
// necessary. It returns false when the search is over.
func (w *walk) from(at int, chosen Mask, musts int, distance int64) bool {
	if w.Steps++; w.Cut() {
		return false
	}
	left := w.size - chosen.Len()
	if musts > left || left > len(w.ids)-at || !w.possible(at, left) || w.tooFar(left, distance) {
		return true
	}
	if left == 0 {
		w.found, w.nearest = true, distance
		return w.yield(chosen)
	}
	id := w.ids[at]
	if w.Must.Contains(id) {
		musts--
	} else if !w.from(at+1, chosen, musts, distance) {
		return false
	}
	for i, n := range w.Needs {
		w.sums[i] += n.Weights[id]
	}
	more := w.from(at+1, chosen.With(id), musts, distance+w.further(id, chosen))
	for i, n := range w.Needs {
		w.sums[i] -= n.Weights[id]
	}
	return more
}

// possible reports whether the heaviest nodes of ids[at:] would be enough.
func (w *walk) possible(at, left int) bool {
	for i, n := range w.Needs {
		if w.sums[i]+w.heaviest[i][at*(w.size+1)+left] < n.Amount {
			return false
		}
	}
	return true
}

// tooFar reports whether no set with what is chosen can be nearer than the nearest.
func (w *walk) tooFar(left int, distance int64) bool {
	if w.Distances == nil || !w.found {
		return false
	}
	pairs := int64(left * (2*w.size - left - 1)) // ordered pairs that a node to come is in
	return distance+int64(left)*w.self+pairs*w.cross >= w.nearest
}

// further is how much distance a node adds to those that are chosen.
func (w *walk) further(id int, chosen Mask) int64 {
	if w.Distances == nil {
		return 0
	}
	d, _ := w.Distances.Between(id, id)
	sum := int64(d)
	for rest := uint64(chosen); rest != 0; rest &= rest - 1 {
		other := bits.TrailingZeros64(rest)
		to, _ := w.Distances.Between(id, other)
		from, _ := w.Distances.Between(other, id)
		sum += int64(to) + int64(from)
	}
	return sum
}
