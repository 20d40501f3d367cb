package topology

import (
	"iter"
	"math/bits"

	"github.com/berthd/berth/managers/numa"
)

// dense computes which subsets of a universe of at most maxExact nodes are
// reachable. Inside, node sets are numbers of n bits: bit i stands for the i-th
// node of the universe, so that their order is that of the masks.
type dense struct {
	universe numa.Mask
	n        int
	// low is set if the universe is nodes 0 to n-1, so that nothing has to be
	// renumbered.
	low  bool
	work int

	// members are the subsets reachable so far, while they are listed.
	members []uint32
	// counts are set once listing all pairs became too dear: the number of
	// choices that lead to a superset of each subset, and an upper bound for
	// all of them.
	counts []uint64
	bound  uint64

	// masks and scratch hold one list at a time, seen what masks has already.
	masks   []uint32
	scratch []uint64
	seen    []uint64
}

// small are the buffers of a dense on eight nodes, in one piece.
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

// load puts the masks of a list, cut to the universe and without repetition,
// into masks. The empty set is left out: it leads nowhere.
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

// pairs replaces members by the intersections of all members with all masks.
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

// transform multiplies the counts with those of masks. Choices are counted by
// the supersets of what they leave: the count of a product is then the product
// of the counts, and list gets back what each choice leaves exactly.
func (d *dense) transform() {
	high, bound := bits.Mul64(d.bound, uint64(len(d.masks)))
	if d.bound > 0 && (high != 0 || bound > 1<<63) {
		d.list() // counts must not wrap: start again from what is reachable
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

// indicate makes of the table the counts of supersets of the subsets given.
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

// list turns counts back into members.
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

// pack numbers a subset of the universe: bit i of the result stands for the
// i-th node of the universe.
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
