package ledger

import (
	"cmp"
	"slices"
)

// sortedKeys gives the keys of a map in order. Of the maps that a commit looks at
// most are empty, and the others have one key or two.
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
