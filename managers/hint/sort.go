package hint

import (
	"cmp"
	"slices"
)

// compareHints is the order of the options of an answer: enumeration order of
// the nodes, hints without an opinion behind all others, preferred first.
func compareHints(a, b Hint) int {
	if a.Any != b.Any {
		return rank(a.Any) - rank(b.Any)
	}
	return cmp.Or(a.Nodes.CompareEnumeration(b.Nodes), rank(b.Preferred)-rank(a.Preferred))
}

func rank(b bool) int {
	if b {
		return 1
	}
	return 0
}

// SortHints puts options in the order that an Answer has them in.
func SortHints(hints []Hint) { slices.SortFunc(hints, compareHints) }
