package cpuset

import (
	"fmt"
	"iter"
	"math/bits"
	"slices"

	"github.com/berthd/berth/managers/internal/idlist"
)

// MaxCPUs is the number of CPU ids that a Set can hold: 0 to MaxCPUs-1.
// It is the largest NR_CPUS that the kernel offers on any architecture
// (arch/x86/Kconfig with MAXSMP).
const MaxCPUs = 8192

const (
	wordBits  = 64
	headWords = 4
	headBits  = headWords * wordBits
)

// Set is an immutable set of CPU ids. The zero value is the empty set; sets
// with the same ids are ==, and a Set may be a map key.
type Set struct {
	// head holds the ids below headBits, id i in bit i%64 of word i/64.
	head [headWords]uint64
	// tail holds the other ids as little-endian words, without zero words at
	// the end: that makes the representation of a set unique and == correct.
	tail string
}

// Of returns the set of the given ids, in any order, duplicates allowed. An id
// outside 0..MaxCPUs-1 is a programming error and panics. Callers with untrusted
// ids check them first or use Parse.
func Of(ids ...int) Set { return Collect(slices.Values(ids)) }

// Range returns the set of the ids from first to last, both included; empty if
// last < first. Ids outside 0..MaxCPUs-1 panic, as in Of.
func Range(first, last int) Set {
	var b Builder
	b.AddRange(first, last)
	return b.Set()
}

// Collect returns the set of the ids of seq. Ids outside 0..MaxCPUs-1 panic,
// as in Of.
func Collect(seq iter.Seq[int]) Set {
	var b Builder
	for id := range seq {
		b.Add(id)
	}
	return b.Set()
}

// UnionOf returns the ids that are in any of sets; empty without sets.
func UnionOf(sets ...Set) Set {
	var b Builder
	for _, s := range sets {
		b.AddSet(s)
	}
	return b.Set()
}

// Parse reads the kernel's list format, as in "0-3,8,10-11"; the empty text is
// the empty set. Order, duplicates and overlaps are free. Blanks, newlines,
// signs, empty elements, reversed ranges and ids of MaxCPUs or more are errors
// that quote the element; so is a text longer than 64 KiB. Errors carry no
// class: only the caller can distinguish bad input from a damaged file.
func Parse(list string) (Set, error) {
	var b Builder
	if err := idlist.Parse(list, "cpu", MaxCPUs, b.AddRange); err != nil {
		return Set{}, err
	}
	return b.Set(), nil
}

// Union returns the ids that are in s or o.
func (s Set) Union(o Set) Set {
	r := Set{}
	for i := range r.head {
		r.head[i] = s.head[i] | o.head[i]
	}
	if s.tail != "" || o.tail != "" {
		r.tail = unionTails(s.tail, o.tail)
	}
	return r
}

// Intersect returns the ids that are in both s and o.
func (s Set) Intersect(o Set) Set {
	r := Set{}
	for i := range r.head {
		r.head[i] = s.head[i] & o.head[i]
	}
	if s.tail != "" && o.tail != "" {
		r.tail = intersectTails(s.tail, o.tail)
	}
	return r
}

// Minus returns the ids of s that are not in o.
func (s Set) Minus(o Set) Set {
	r := Set{}
	for i := range r.head {
		r.head[i] = s.head[i] &^ o.head[i]
	}
	if s.tail != "" {
		r.tail = minusTails(s.tail, o.tail)
	}
	return r
}

// Contains reports whether id is in s. Any int may be requested.
func (s Set) Contains(id int) bool {
	if id < 0 || id >= MaxCPUs {
		return false
	}
	return s.word(id/wordBits)>>(id%wordBits)&1 != 0
}

// IsSubsetOf reports whether every id of s is in o.
func (s Set) IsSubsetOf(o Set) bool {
	for i := range s.words() {
		if s.word(i)&^o.word(i) != 0 {
			return false
		}
	}
	return true
}

// Overlaps reports whether s and o have an id in common.
func (s Set) Overlaps(o Set) bool {
	for i := range min(s.words(), o.words()) {
		if s.word(i)&o.word(i) != 0 {
			return true
		}
	}
	return false
}

// IsEmpty reports whether s has no ids.
func (s Set) IsEmpty() bool { return s == Set{} }

// Len returns the number of ids in s.
func (s Set) Len() int {
	n := 0
	for i := range s.words() {
		n += bits.OnesCount64(s.word(i))
	}
	return n
}

// IntersectLen returns s.Intersect(o).Len() without building the set.
func (s Set) IntersectLen(o Set) int {
	n := 0
	for i := range min(s.words(), o.words()) {
		n += bits.OnesCount64(s.word(i) & o.word(i))
	}
	return n
}

// Min returns the smallest id, and false if s is empty.
func (s Set) Min() (int, bool) {
	for i := range s.words() {
		if w := s.word(i); w != 0 {
			return i*wordBits + bits.TrailingZeros64(w), true
		}
	}
	return 0, false
}

// Max returns the largest id, and false if s is empty.
func (s Set) Max() (int, bool) {
	for i := s.words() - 1; i >= 0; i-- {
		if w := s.word(i); w != 0 {
			return i*wordBits + bits.Len64(w) - 1, true
		}
	}
	return 0, false
}

// Lowest returns the n smallest ids of s: all of them if there are fewer, none
// if n is not positive.
func (s Set) Lowest(n int) Set {
	var b Builder
	for id := range s.All() {
		if n <= 0 {
			break
		}
		b.Add(id)
		n--
	}
	return b.Set()
}

// All returns the ids in ascending order.
func (s Set) All() iter.Seq[int] {
	return func(yield func(int) bool) {
		for i := range s.words() {
			for w := s.word(i); w != 0; w &= w - 1 {
				if !yield(i*wordBits + bits.TrailingZeros64(w)) {
					return
				}
			}
		}
	}
}

// IDs returns the ids in ascending order; never nil, the caller's to keep.
func (s Set) IDs() []int {
	return slices.AppendSeq(make([]int, 0, s.Len()), s.All())
}

// String returns the kernel's list format, ascending, with every run of two or
// more adjacent ids as a range: "0-1,4". The empty set is the empty text.
func (s Set) String() string {
	var room [64]byte // for most sets; longer texts move out by themselves
	return string(s.appendTo(room[:0]))
}

func (s *Set) appendTo(out []byte) []byte {
	text := idlist.Text{Out: out}
	words := s.words()
	for i := range words {
		text = text.Word(i*wordBits, s.word(i))
	}
	return text.End(words * wordBits)
}

// MarshalText returns String, so that a set is a JSON string and may be the
// key of a JSON object.
func (s Set) MarshalText() ([]byte, error) { return s.appendTo(make([]byte, 0, usualText)), nil }

// usualText is the length of the text of most sets.
const usualText = 32

// UnmarshalText reads what Parse reads. On error s is unchanged.
func (s *Set) UnmarshalText(text []byte) error {
	parsed, err := Parse(string(text))
	if err != nil {
		return err
	}
	*s = parsed
	return nil
}

// words returns the number of words that may be non-zero.
func (s *Set) words() int { return headWords + len(s.tail)/wordBytes }

// word returns word i, zero beyond the end.
func (s *Set) word(i int) uint64 {
	if i < headWords {
		return s.head[i]
	}
	return tailWord(s.tail, i-headWords)
}

// mustBeID panics on an id that no Set can hold.
func mustBeID(id int) {
	if id < 0 || id >= MaxCPUs {
		panic(fmt.Sprintf("cpuset: cpu %d is outside 0..%d", id, MaxCPUs-1))
	}
}
