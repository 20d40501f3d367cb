package numa

import (
	"cmp"
	"fmt"
	"iter"
	"math/bits"
	"slices"
	"strconv"

	"github.com/berthd/berth/managers/internal/idlist"
)

// MaxNodes is the number of NUMA node ids that a Mask can hold: 0 to
// MaxNodes-1.
const MaxNodes = 64

// Mask is a set of NUMA node ids, node i in bit i. The zero value is the empty
// set.
type Mask uint64

// Of returns the set of the given ids, in any order, duplicates allowed. An id
// outside 0..63 is a programming error and panics; ids from outside go through
// FromIDs or Parse.
func Of(ids ...int) Mask {
	var m Mask
	for _, id := range ids {
		m = m.With(id)
	}
	return m
}

// FromIDs is Of for ids from outside: an id outside 0..63 is an error that
// names it. Errors carry no class, as those of Parse.
func FromIDs(ids []int) (Mask, error) {
	var m Mask
	for _, id := range ids {
		if err := checkID(id); err != nil {
			return 0, err
		}
		m |= 1 << id
	}
	return m, nil
}

// Parse reads the kernel's list format, as in "0-1,4"; the empty text is the
// empty set. Order, duplicates and overlaps are free. Blanks, newlines, signs,
// empty elements, reversed ranges and ids of 64 or more are errors that quote
// the element. Errors carry no class: whether a bad list is bad input or a
// damaged file, is up to the caller.
func Parse(list string) (Mask, error) {
	var m Mask
	err := idlist.Parse(list, "node", MaxNodes, func(first, last int) {
		m |= ^Mask(0) << first & (^Mask(0) >> (MaxNodes - 1 - last))
	})
	if err != nil {
		return 0, err
	}
	return m, nil
}

// Contains reports whether id is in m. Any int may be requested.
func (m Mask) Contains(id int) bool { return id >= 0 && m>>uint(id)&1 != 0 }

// With returns m and id. An id outside 0..63 panics, as in Of.
func (m Mask) With(id int) Mask {
	if err := checkID(id); err != nil {
		panic("numa: " + err.Error())
	}
	return m | 1<<id
}

// Without returns m without id; m itself if id is not in it.
func (m Mask) Without(id int) Mask {
	if id < 0 {
		return m
	}
	return m &^ (1 << uint(id))
}

// Union returns the nodes that are in m or o.
func (m Mask) Union(o Mask) Mask { return m | o }

// Intersect returns the nodes that are in both m and o.
func (m Mask) Intersect(o Mask) Mask { return m & o }

// Minus returns the nodes of m that are not in o.
func (m Mask) Minus(o Mask) Mask { return m &^ o }

// IsSubsetOf reports whether every node of m is in o.
func (m Mask) IsSubsetOf(o Mask) bool { return m&^o == 0 }

// Overlaps reports whether m and o have a node in common.
func (m Mask) Overlaps(o Mask) bool { return m&o != 0 }

// IsEmpty reports whether m has no nodes.
func (m Mask) IsEmpty() bool { return m == 0 }

// Len returns the number of nodes in m.
func (m Mask) Len() int { return bits.OnesCount64(uint64(m)) }

// Lowest returns the smallest node id, and false if m is empty.
func (m Mask) Lowest() (int, bool) {
	if m == 0 {
		return 0, false
	}
	return bits.TrailingZeros64(uint64(m)), true
}

// All returns the node ids in ascending order.
func (m Mask) All() iter.Seq[int] {
	return func(yield func(int) bool) {
		for rest := uint64(m); rest != 0; rest &= rest - 1 {
			if !yield(bits.TrailingZeros64(rest)) {
				return
			}
		}
	}
}

// IDs returns the node ids in ascending order; never nil.
func (m Mask) IDs() []int { return slices.AppendSeq(make([]int, 0, m.Len()), m.All()) }

// Less is the reference's tie-break between masks: the plain order of the
// 64-bit integers. {0,1} is less than {2}.
func (m Mask) Less(o Mask) bool { return m < o }

// NarrowerThan is the reference's preference between masks: fewer nodes are
// narrower, ties are decided by Less. It is a strict total order.
func (m Mask) NarrowerThan(o Mask) bool {
	if m.Len() != o.Len() {
		return m.Len() < o.Len()
	}
	return m.Less(o)
}

// CompareEnumeration compares m and o in the order of Subsets: by size, inside
// one size by the first id that differs when both are written in ascending
// order. It returns a negative number if m comes first, 0 if they are equal, a
// positive number if o comes first, and suits slices.SortFunc.
//
// It differs from NarrowerThan inside one size: {0,3} is enumerated before
// {1,2}, but {1,2} is narrower.
func (m Mask) CompareEnumeration(o Mask) int {
	if m.Len() != o.Len() {
		return cmp.Compare(m.Len(), o.Len())
	}
	// Below the lowest bit that differs both are equal. The mask with that bit
	// has the smaller id at that place, because the other mask's next id is higher.
	differ := m ^ o
	switch lowest := differ & -differ; {
	case differ == 0:
		return 0
	case m.Overlaps(lowest):
		return -1
	default:
		return 1
	}
}

// String returns the kernel's list format, ascending, with every run of two or
// more adjacent ids as a range: "0-1,4". The empty set is the empty text.
func (m Mask) String() string {
	var room [64]byte // for most masks; longer texts move out by themselves
	return string(m.appendTo(room[:0]))
}

func (m Mask) appendTo(out []byte) []byte {
	return idlist.Text{Out: out}.Word(0, uint64(m)).End(MaxNodes)
}

// Commas returns the node ids as the reference writes them for a runtime: ascending, each by
// itself, "0,1,3". The kernel reads that as it reads String.
func (m Mask) Commas() string {
	var out []byte
	for id := range m.All() {
		if len(out) > 0 {
			out = append(out, ',')
		}
		out = strconv.AppendInt(out, int64(id), 10)
	}
	return string(out)
}

// MarshalText returns String, so that a mask is a JSON string and may be the
// key of a JSON object.
func (m Mask) MarshalText() ([]byte, error) { return m.appendTo(make([]byte, 0, usualText)), nil }

// usualText is the length of the text of most masks.
const usualText = 8

// UnmarshalText reads what Parse reads. On error m is unchanged.
func (m *Mask) UnmarshalText(text []byte) error {
	parsed, err := Parse(string(text))
	if err != nil {
		return err
	}
	*m = parsed
	return nil
}

// checkID refuses an id that no Mask can hold.
func checkID(id int) error {
	if id < 0 || id >= MaxNodes {
		return fmt.Errorf("node %d is outside 0..%d", id, MaxNodes-1)
	}
	return nil
}
