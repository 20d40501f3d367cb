package cgroup

import (
	"fmt"
	"maps"
	"slices"
)

// NotApplied is a value that a tree has no place for.
type NotApplied struct {
	// Field is the value's name in the API.
	Field string
	// Why is a sentence: the missing part, and its replacement.
	Why string
}

// NotApplied lists the values that For drops. They do not appear in the tree.
func (v Values) NotApplied(f Facts) (out []NotApplied) {
	add := func(field, format string, args ...any) {
		out = append(out, NotApplied{field, fmt.Sprintf(format, args...)})
	}
	const v1, v2 = "cgroup v1 has no %s", "cgroup v2 has no %s"
	held := v.For(f)
	switch {
	case f.Version == V2 && v.CPUShares != nil && v.CPUWeight != nil:
		add("cpu_shares", "cpu_weight is given, too, and wins")
	case v.CPUWeight != nil && held.CPUWeight == nil:
		add("cpu_weight", v1+": give cpu_shares", "weight")
	}
	if v.MemorySwapBytes != nil && held.MemorySwapBytes == nil {
		switch {
		case f.Version == V2:
			add("memory_swap_limit_bytes", v2+": give unified %q", "limit of memory and swap together", fileSwapMax)
		case !f.SwapLimits:
			add("memory_swap_limit_bytes", "the kernel does not limit swap (boot option swapaccount=1)")
		}
	}
	for _, size := range slices.Sorted(maps.Keys(v.HugePages)) {
		if _, ok := held.HugePages[size]; ok {
			continue
		}
		why := "the controller hugetlb is not there"
		if len(f.HugePageSizes) > 0 {
			why = fmt.Sprintf("the kernel has huge pages of %v bytes", f.HugePageSizes)
		}
		add("hugepage_limits", "page_size_bytes %d: %s", size, why)
	}
	for _, file := range slices.Sorted(maps.Keys(v.Unified)) {
		if _, ok := held.Unified[file]; ok {
			continue
		}
		if f.Version == V1 {
			add(fmt.Sprintf("unified[%q]", file), v1, "such file")
		} else {
			add(fmt.Sprintf("unified[%q]", file), "the kernel does not limit swap")
		}
	}
	return out
}
