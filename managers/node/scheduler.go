package node

import (
	"fmt"
	"maps"
	"slices"

	"github.com/berthd/berth/managers/workload"
)

// memoryTolerance is how much more memory a scheduler may count: programs read the machine's memory
// at different times, and round it.
const memoryTolerance = 1 << 20

// Excess describes, as sentences, the resources of which a scheduler counts more as allocatable than
// pods can have here. It may send pods that are rejected. Less is no excess: some of the node is
// unused then. Devices are left out, because their plugins may be registered elsewhere.
func (m *Manager) Excess(scheduler workload.Quantities) (out []string) {
	allocatable := m.Allocatable()
	for _, r := range slices.Sorted(maps.Keys(scheduler)) {
		have, compared := allocatable[r], r == workload.CPU || r == workload.Memory || r.IsHugePages()
		if r == workload.Memory {
			have += memoryTolerance
		}
		if compared && scheduler[r] > have {
			out = append(out, fmt.Sprintf("the scheduler counts %s of %s as allocatable, and pods can have %s: give berthd the kubelet's reservations (--kubelet-config), or reserve in the kubelet what berthd reserves",
				r.Text(scheduler[r]), r, r.Text(allocatable[r])))
		}
	}
	return out
}
