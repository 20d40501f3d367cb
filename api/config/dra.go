package config

import (
	"fmt"
	"maps"
	"slices"

	"github.com/berthd/berth/managers/cpu"
	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/managerset"
	"github.com/berthd/berth/managers/memory"
	"github.com/berthd/berth/managers/workload"
)

// Values of dra.from.
const (
	FromReserved    = "reserved"
	FromAllocatable = "allocatable"
)

// DRA limits what claims on dynamic resources may have. From reserved, it is a part of what is reserved: pods get none of
// it, and neither the scheduler nor a kubelet counts it. From allocatable, it is what pods may have, and the
// scheduler has to count both together.
type DRA struct {
	// From is reserved or allocatable; empty: reserved.
	From string `json:"from,omitempty"`
	// CPUs are exclusive CPUs of claims.
	CPUs cpuset.Set `json:"cpus,omitzero"`
	// Memory is the memory of each NUMA node, and its huge pages.
	Memory []ReservedMemory `json:"memory,omitempty"`
}

// IsZero reports whether there is nothing for claims.
func (d DRA) IsZero() bool {
	return d.From == "" && d.CPUs.IsEmpty() && len(d.Memory) == 0
}

// validateDRA checks what needs no machine.
func (c Config) validateDRA(vs *errdefs.Violations) {
	if c.DRA.From != "" && c.DRA.From != FromReserved && c.DRA.From != FromAllocatable {
		vs.Addf("dra.from", "%.80q: expected %s or %s", c.DRA.From, FromReserved, FromAllocatable)
		return
	}
	if c.DRA.IsZero() {
		return
	}
	needs := func(field, value, why string) {
		vs.Addf("dra", "needs %s: %s, %s", field, value, why)
	}
	if c.Beside != Kubelet {
		needs("beside", Kubelet, "whose pods use the claims")
	}
	if c.CPU.Policy != cpu.PolicyStatic {
		needs("cpu.policy", cpu.PolicyStatic, "because otherwise no CPU is allocated exclusively")
	}
	if c.Memory.Policy != memory.PolicyStatic {
		needs("memory.policy", memory.PolicyStatic, "because otherwise no memory of a NUMA node is allocated")
	}
	if c.DRA.From == FromAllocatable {
		if !c.DRA.CPUs.IsEmpty() || len(c.DRA.Memory) > 0 {
			vs.Addf("dra", "from: %s gives claims what pods may have: leave out cpus and memory, or from", FromAllocatable)
		}
		return
	}
	if c.Hotplug.ReservedCPUs != ReservedKeep {
		needs("hotplug.reservedCPUs", ReservedKeep, "because dra.cpus are reserved CPUs")
	}
	if len(c.DRA.Memory) == 0 {
		vs.Addf("dra.memory", "is required: the part of the reserved memory of each NUMA node that claims may have")
	}
	if _, err := c.claims(); err != nil {
		include(vs, "dra.memory", err)
	}
}

// claims is what resource claims may have; nil for nothing.
func (c Config) claims() (*managerset.Claims, error) {
	if c.DRA.IsZero() {
		return nil, nil
	}
	if c.DRA.From == FromAllocatable {
		return &managerset.Claims{OnePool: true}, nil
	}
	var vs errdefs.Violations
	out := &managerset.Claims{CPUs: c.DRA.CPUs, Memory: map[int]map[workload.Resource]uint64{}}
	for i, r := range c.DRA.Memory {
		node := int(r.NUMANode)
		if out.Memory[node] != nil {
			vs.Addf(fmt.Sprintf("dra.memory[%d].numaNode", i), "NUMA node %d is given twice", node)
		}
		out.Memory[node] = map[workload.Resource]uint64{}
		for _, name := range slices.Sorted(maps.Keys(r.Limits)) {
			resource, field := workload.Resource(name), fmt.Sprintf("dra.memory[%d].limits[%q]", i, name)
			bytes, err := amount(resource, r.Limits[name])
			pages := resource.IsHugePages()
			if pages && err == nil {
				err = wholePages(resource, bytes)
			}
			switch {
			case resource != workload.Memory && !pages:
				vs.Addf(field, "only memory and hugepages-<size> can be given to claims")
			case err != nil:
				vs.Addf(field, "%v", err)
			case bytes.Whole <= 0:
				vs.Addf(field, "%s: expected more than 0", r.Limits[name])
			default:
				out.Memory[node][resource] = uint64(bytes.Whole)
			}
		}
	}
	return out, vs.Err("configuration")
}
