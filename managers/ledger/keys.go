package ledger

import (
	"cmp"
	"slices"
)

// sortedKeys returns the keys of a map in order. Most maps in a commit have no key or one
// or two.
func sortedKeys[K cmp.Ordered, V any](m map[K]V) []K {
	if len(m) == 0 {
		return nil
	}
	keys := make([]K, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}
