package ordered

import (
	"cmp"
	"slices"
)

// Keys returns the keys of a map in order. It allocates nothing for an empty map.
func Keys[K cmp.Ordered, V any](m map[K]V) []K {
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
