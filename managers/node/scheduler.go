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
func (m *Manager) Excess(scheduler workload.Quantities) []string {
	out := excess(m.Allocatable(), scheduler, "pods can have")
	if m.cfg.ReservedByDefault && scheduler[workload.CPU] > m.Allocatable()[workload.CPU] {
		out[0] = fmt.Sprintf("no CPU is reserved in the kubelet, so CPUs %s stay shared (reserved.oneIfNone): the scheduler counts %s of cpu as allocatable, and %s can be exclusive; "+
			"set reservedSystemCPUs: %q in the kubelet's configuration, and restart the kubelet and berthd",
			m.cfg.ReservedCPUs, workload.CPU.Text(scheduler[workload.CPU]), workload.CPU.Text(m.Allocatable()[workload.CPU]),
			m.cfg.ReservedCPUs)
	}
	return out
}

// ExcessOfPool is Excess where pods and claims on dynamic resources have one pool, which has the allocatable amounts.
func ExcessOfPool(allocatable, scheduler workload.Quantities) []string {
	return excess(allocatable, scheduler, "pods and claims together can have")
}

func excess(allocatable, scheduler workload.Quantities, who string) (out []string) {
	for _, r := range slices.Sorted(maps.Keys(scheduler)) {
		have, compared := allocatable[r], r == workload.CPU || r == workload.Memory || r.IsHugePages()
		if r == workload.Memory {
			have += memoryTolerance
		}
		if compared && scheduler[r] > have {
			out = append(out, fmt.Sprintf("the scheduler counts %s of %s as allocatable, and %s %s: give berthd the kubelet's reservations (--kubelet-config), or reserve in the kubelet what berthd reserves",
				r.Text(scheduler[r]), r, who, r.Text(allocatable[r])))
		}
	}
	return out
}

// CountedTwice describes, as sentences, the resources that a scheduler gives to pods and that claims on dynamic resources can
// have, too: together more than the node's capacity. A node without such claims has none.
func CountedTwice(capacity, scheduler, claims workload.Quantities) (out []string) {
	for _, r := range slices.Sorted(maps.Keys(claims)) {
		has, pods := capacity[r], scheduler[r]
		if r == workload.Memory {
			has += memoryTolerance
		}
		if claims[r] == 0 || pods <= has-claims[r] {
			continue
		}
		field, reserve := "dra.memory", "systemReserved and reservedMemory"
		if r == workload.CPU {
			field, reserve = "dra.cpus", "reservedSystemCPUs"
		}
		out = append(out, fmt.Sprintf("%s is counted twice: the scheduler counts %s as allocatable, and claims on dynamic resources can have %s (%s of berthd), together more than the %s of the node: "+
			"reserve in the kubelet (%s) what claims can have", r, r.Text(pods), r.Text(claims[r]), field, r.Text(capacity[r]), reserve))
	}
	return out
}
