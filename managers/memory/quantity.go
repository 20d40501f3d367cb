package memory

import (
	"strconv"

	"github.com/berthd/berth/managers/workload"
)

// binary are the suffixes of whole powers of 1024, largest last.
var binary = [...]string{"", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"}

// quantity writes bytes exactly, in the largest unit that divides them: 2Mi,
// 1073741825.
func quantity(bytes uint64) string {
	unit := 0
	for bytes != 0 && bytes%1024 == 0 && unit < len(binary)-1 {
		bytes /= 1024
		unit++
	}
	return strconv.FormatUint(bytes, 10) + binary[unit]
}

// HugePages names the resource of a page size.
func HugePages(sizeKiB uint64) string {
	return workload.HugePagesPrefix + quantity(sizeKiB*1024)
}

// isMemory tells whether the manager hands a resource out.
func isMemory(r workload.Resource) bool { return r == workload.Memory || r.IsHugePages() }
