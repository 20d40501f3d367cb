package cpuset

import "math/bits"

// Builder is a set that changes, for algorithms that add and remove CPUs one
// by one. The zero value is empty and ready. A Builder must not be copied
// after its first use, and is for one goroutine at a time.
type Builder struct {
	head [headWords]uint64
	// tail continues head for ids of headBits and more; as long as needed.
	tail []uint64
}

// Add adds id. An id outside 0..MaxCPUs-1 is a programming error and panics,
// as in Of.
func (b *Builder) Add(id int) {
	mustBeID(id)
	*b.grow(id / wordBits) |= 1 << (id % wordBits)
}

// AddRange adds the ids from first to last, both included; none if
// last < first. Ids outside 0..MaxCPUs-1 panic, as in Of.
func (b *Builder) AddRange(first, last int) {
	if last < first {
		return
	}
	mustBeID(first)
	mustBeID(last)
	for i := first / wordBits; i <= last/wordBits; i++ {
		low, high := max(first-i*wordBits, 0), min(last-i*wordBits, wordBits-1)
		*b.grow(i) |= ^uint64(0) << low & (^uint64(0) >> (wordBits - 1 - high))
	}
}

// AddSet adds all ids of s.
func (b *Builder) AddSet(s Set) {
	for i := range s.head {
		b.head[i] |= s.head[i]
	}
	if n := len(s.tail) / wordBytes; n > 0 {
		b.grow(headWords + n - 1)
		for i := range n {
			b.tail[i] |= tailWord(s.tail, i)
		}
	}
}

// Remove removes id; removing what is not there does nothing.
func (b *Builder) Remove(id int) {
	if id < 0 {
		return
	}
	switch i := id / wordBits; {
	case i < headWords:
		b.head[i] &^= 1 << (id % wordBits)
	case i-headWords < len(b.tail):
		b.tail[i-headWords] &^= 1 << (id % wordBits)
	}
}

// Contains reports whether id is in b. Any int may be requested.
func (b *Builder) Contains(id int) bool {
	if id < 0 {
		return false
	}
	switch i := id / wordBits; {
	case i < headWords:
		return b.head[i]>>(id%wordBits)&1 != 0
	case i-headWords < len(b.tail):
		return b.tail[i-headWords]>>(id%wordBits)&1 != 0
	}
	return false
}

// Len returns the number of ids in b.
func (b *Builder) Len() int {
	n := 0
	for _, w := range b.head {
		n += bits.OnesCount64(w)
	}
	for _, w := range b.tail {
		n += bits.OnesCount64(w)
	}
	return n
}

// Set returns the ids of b as they are now; later changes of b do not touch it.
func (b *Builder) Set() Set { return Set{head: b.head, tail: packTail(b.tail)} }

// grow returns word i, after making b long enough to have it.
func (b *Builder) grow(i int) *uint64 {
	if i < headWords {
		return &b.head[i]
	}
	i -= headWords
	if i >= len(b.tail) {
		tail := make([]uint64, max(i+1, min(2*len(b.tail), tailWords)))
		copy(tail, b.tail)
		b.tail = tail
	}
	return &b.tail[i]
}
