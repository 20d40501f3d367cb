package topology

import (
	"iter"
	"math/bits"

	"github.com/berthd/berth/managers/numa"
)

// dense computes the reachable subsets of a universe of at most maxExact nodes. Internally,
// a node set is a number of n bits: bit i is the i-th node of the universe. So packed sets
// have the same order as masks.
type dense struct {
	universe numa.Mask
	n        int
	// low is set if the universe is nodes 0 to n-1. Then packed sets equal masks.
	low  bool
	work int

	// members are the subsets reached so far, while they are kept as a list.
	members []uint32
	// counts replace members when listing all pairs costs too much. For each subset they
	// have the number of choices that lead to a superset of it. bound is an upper bound for
	// all of them.
	counts []uint64
	bound  uint64

	// masks and scratch hold the current list; seen marks the masks in it.
	masks   []uint32
	scratch []uint64
	seen    []uint64
}

// small holds the buffers of a dense on at most eight nodes, in one allocation.
type small struct {
	members, masks  [1 << 8]uint32
	counts, scratch [1 << 8]uint64
	seen            [1 << 8 / 64]uint64
}

func newDense(universe numa.Mask) *dense {
	n := universe.Len()
	d := &dense{universe: universe, n: n, low: universe == 1<<n-1}
	if n <= 8 {
		b := new(small)
		d.members, d.masks, d.seen = b.members[:0], b.masks[:0], b.seen[:]
		d.scratch, d.counts = b.scratch[:1<<n], b.counts[:0]
	} else {
		d.seen = make([]uint64, 1<<n/64)
	}
	d.members = append(d.members, 1<<n-1)
	return d
}

// reach applies the lists one after the other.
func (d *dense) reach(lists []*list) {
	for _, l := range lists {
		d.load(l)
		if d.bound == 0 && len(d.members)*len(d.masks) <= 2*d.n<<d.n {
			d.pairs()
		} else {
			d.transform()
		}
	}
	if d.bound > 0 {
		d.list()
	}
}

// load copies the masks of a list to masks, restricted to the universe and without
// duplicates. The empty set is left out, because no choice with it leaves a node.
func (d *dense) load(l *list) {
	d.masks = d.masks[:0]
	clear(d.seen)
	d.work += len(l.hints)
	for i := range l.hints {
		cut := mask(l.hints[i]) & d.universe
		if cut == 0 {
			continue
		}
		x := uint32(cut)
		if !d.low {
			x = uint32(pack(cut, d.universe))
		}
		if word, bit := &d.seen[x/64], uint64(1)<<(x%64); *word&bit == 0 {
			*word |= bit
			d.masks = append(d.masks, x)
		}
	}
}

// pairs replaces members by the intersections of every member with every mask.
func (d *dense) pairs() {
	d.work += len(d.members) * len(d.masks)
	clear(d.seen)
	for _, s := range d.members {
		for _, x := range d.masks {
			both := s & x
			d.seen[both/64] |= 1 << (both % 64)
		}
	}
	d.members = d.members[:0]
	for i, word := range d.seen {
		for ; word != 0; word &= word - 1 {
			if x := uint32(i*64 + bits.TrailingZeros64(word)); x != 0 {
				d.members = append(d.members, x)
			}
		}
	}
}

// transform multiplies counts by the counts of masks. Both count, for each subset, the
// choices that leave a superset of it. The count of a combination is then the product of
// the counts, and list recovers the choices that leave exactly a subset.
func (d *dense) transform() {
	high, bound := bits.Mul64(d.bound, uint64(len(d.masks)))
	if d.bound > 0 && (high != 0 || bound > 1<<63) {
		d.list() // counts must not overflow: start again from the reachable subsets
		bound = 0
	}
	if bound == 0 {
		if cap(d.counts) < 1<<d.n {
			d.counts = make([]uint64, 1<<d.n)
			d.scratch = make([]uint64, 1<<d.n)
		}
		d.counts = d.counts[:1<<d.n]
		d.indicate(d.counts, d.members)
		bound = uint64(len(d.members)) * uint64(len(d.masks))
	}
	d.indicate(d.scratch, d.masks)
	for i, n := range d.scratch {
		d.counts[i] *= n
	}
	d.bound = bound
}

// indicate fills the table with the number of given subsets that contain each subset.
func (d *dense) indicate(table []uint64, subsets []uint32) {
	d.work += d.n << d.n / 2
	clear(table)
	for _, x := range subsets {
		table[x] = 1
	}
	for half := 1; half < len(table); half *= 2 {
		for at := 0; at < len(table); at += 2 * half {
			without, with := table[at:at+half], table[at+half:at+2*half]
			for i, n := range with {
				without[i] += n
			}
		}
	}
}

// list converts counts back to members.
func (d *dense) list() {
	d.work += d.n << d.n / 2
	for half := 1; half < len(d.counts); half *= 2 {
		for at := 0; at < len(d.counts); at += 2 * half {
			without, with := d.counts[at:at+half], d.counts[at+half:at+2*half]
			for i, n := range with {
				without[i] -= n
			}
		}
	}
	d.members = d.members[:0]
	for x, n := range d.counts {
		if x != 0 && n != 0 {
			d.members = append(d.members, uint32(x))
		}
	}
	d.bound = 0
}

// sets returns every reachable set of nodes.
func (d *dense) sets() iter.Seq[numa.Mask] {
	return func(yield func(numa.Mask) bool) {
		for _, x := range d.members {
			nodes := numa.Mask(x)
			if !d.low {
				nodes = unpack(uint64(x), d.universe)
			}
			if !yield(nodes) {
				return
			}
		}
	}
}

// pack converts a subset of the universe to a number: bit i of the result is the i-th node
// of the universe.
func pack(nodes, universe numa.Mask) uint64 {
	var x, bit uint64 = 0, 1
	for rest := universe; rest != 0; rest &= rest - 1 {
		if nodes&rest&-rest != 0 {
			x |= bit
		}
		bit <<= 1
	}
	return x
}

// unpack is the inverse of pack.
func unpack(x uint64, universe numa.Mask) numa.Mask {
	var nodes numa.Mask
	for rest := universe; rest != 0; rest &= rest - 1 {
		if x&1 != 0 {
			nodes |= rest & -rest
		}
		x >>= 1
	}
	return nodes
}
