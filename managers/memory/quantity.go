package memory

import (
	"math"

	"github.com/berthd/berth/managers/workload"
)

// quantity writes bytes exactly, in the largest unit that divides them: 2Mi,
// 1073741825.
func quantity(bytes uint64) string { return workload.Memory.Text(int64(min(bytes, math.MaxInt64))) }

// hugePages names the resource of a page size.
func hugePages(sizeKiB uint64) string {
	return string(workload.HugePagesOf(int64(min(sizeKiB, maxBytes/1024) * 1024)))
}

// isMemory reports whether the manager hands a resource out.
func isMemory(r workload.Resource) bool { return r == workload.Memory || r.IsHugePages() }
