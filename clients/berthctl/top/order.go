package top

import (
	"cmp"
	"slices"
	"strings"
)

// Orders are the columns that a table can be sorted by, in the order in which a key changes
// them. All but pod are descending.
func Orders() []string {
	return []string{"cpu", "memory", "throttled", "pressure", "drift", "pod"}
}

// Sort sorts rows by a column, and reports whether the column exists. Unknown values come last;
// rows of equal values keep the order of pods.
func Sort(rows []Row, by string, reverse bool) bool {
	key := map[string]func(Row) *float64{
		"cpu": func(r Row) *float64 { return r.CPU }, "throttled": func(r Row) *float64 { return r.Throttled },
		"memory":   func(r Row) *float64 { v := float64(r.WorkingSet); return &v },
		"pressure": func(r Row) *float64 { return largest(r.CPUPressure, r.MemoryPressure, r.IOPressure) },
		"drift":    func(r Row) *float64 { v := float64(r.Drifts); return &v },
	}[by]
	if key == nil && by != "pod" {
		return false
	}
	slices.SortStableFunc(rows, func(a, b Row) int {
		byPod := cmp.Or(strings.Compare(a.Pod, b.Pod), strings.Compare(a.PodUID, b.PodUID), strings.Compare(a.Container, b.Container))
		sign := 1
		if reverse {
			sign = -1
		}
		if key == nil {
			return sign * byPod
		}
		x, y := key(a), key(b)
		switch {
		case x == nil || y == nil:
			return cmp.Or(cmp.Compare(btoi(x == nil), btoi(y == nil)), byPod)
		}
		return cmp.Or(sign*-cmp.Compare(*x, *y), byPod)
	})
	return true
}

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}

func largest(values ...*float64) (out *float64) {
	for _, v := range values {
		if v != nil && (out == nil || *v > *out) {
			out = v
		}
	}
	return out
}

// Filter returns the rows whose pod or container name contains a text.
func Filter(rows []Row, text string) []Row {
	return slices.DeleteFunc(slices.Clone(rows), func(r Row) bool {
		return !strings.Contains(r.Pod, text) && !strings.Contains(r.Container, text)
	})
}
