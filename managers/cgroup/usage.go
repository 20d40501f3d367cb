package cgroup

import (
	"context"
	"time"
)

// Usage counts what the processes of a cgroup and of all below it use.
type Usage struct {
	// CPU is their time since the cgroup was created.
	CPU time.Duration
	// MemoryBytes includes the page cache. WorkingSetBytes is without its inactive part, as
	// the kubelet computes it.
	MemoryBytes, WorkingSetBytes int64
}

// Details is a Usage with further values for people. A nil pointer, and a node or a page
// size that is absent, is not counted by the kernel.
type Details struct {
	Usage
	// Quota is how often and how long the cgroup was throttled.
	Quota *Throttling
	// NUMABytes is the memory on each NUMA node, by node id.
	NUMABytes map[int]uint64
	// MappedBytes are the part of them that processes have mapped and that is of no file on a disk. This memory moves when
	// the memory nodes change.
	MappedBytes map[int]uint64
	// UnmappedBytes is how much of MappedBytes, on whichever nodes, may be files of a tmpfs that no process has mapped. The
	// kernel does not move these, and cgroup v1 counts both together.
	UnmappedBytes uint64
	// HugePageBytes are the huge pages in use, by page size in bytes.
	HugePageBytes map[int64]uint64
	// CPUPressure, MemoryPressure and IOPressure are the times in which at least one process
	// waited for the resource.
	CPUPressure, MemoryPressure, IOPressure *time.Duration
}

// fewBytes is how much memory of a container may be counted on other nodes after it has moved: the kernel counts by batches for
// each CPU.
const fewBytes = 4 << 20

// Arrived returns whether memory counts as arrived on other NUMA nodes if a part of it is counted elsewhere.
func Arrived(elsewhere, all uint64) bool { return elsewhere <= max(fewBytes, all/64) }

// Throttling counts what a CPU quota has cost a cgroup since it was created.
type Throttling struct {
	Periods, Throttled uint64
	Time               time.Duration
}

// HugeBytes are huge pages in bytes, by page size in bytes and by NUMA node.
type HugeBytes map[int64]map[int]uint64

// Add adds the pages of another map.
func (h HugeBytes) Add(more HugeBytes) {
	for size, nodes := range more {
		if h[size] == nil {
			h[size] = map[int]uint64{}
		}
		for id, bytes := range nodes {
			h[size][id] += bytes
		}
	}
}

// Meter reads what cgroups use. A tree that is not the kernel's has none.
type Meter interface {
	// Usage is an error of class NotFound for an absent cgroup.
	Usage(ctx context.Context, name Name) (Usage, error)
	// Details reads more files than Usage. Its errors are those of Usage.
	Details(ctx context.Context, name Name) (Details, error)
}
