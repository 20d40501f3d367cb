package cgroup

import (
	"strconv"
	"strings"

	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/numa"
)

// MappedBytes returns the memory on each NUMA node that processes have mapped and that is of no file on a disk, from
// memory.numa_stat of cgroup v2 (Documentation/admin-guide/cgroup-v2.rst). shmem also has files of a tmpfs that no process has mapped,
// and file_mapped also has mapped files of disks. So the lower one of them is the most that mapped shared memory can be.
//
// A text without the line of anonymous memory is an error of class Unsupported, another format one of class Internal.
func MappedBytes(numaStat string) (map[int]uint64, error) {
	lines := map[string]map[int]uint64{}
	for line := range strings.Lines(numaStat) {
		fields := strings.Fields(line)
		if len(fields) == 0 || fields[0] != "anon" && fields[0] != "shmem" && fields[0] != "file_mapped" {
			continue
		}
		nodes := map[int]uint64{}
		for _, field := range fields[1:] {
			node, amount, _ := strings.Cut(field, "=")
			id, err := strconv.Atoi(strings.TrimPrefix(node, "N"))
			bytes, err2 := strconv.ParseUint(amount, 10, 62)
			if err != nil || err2 != nil || id < 0 || id >= numa.MaxNodes {
				return nil, errdefs.Internalf("memory.numa_stat has %.40q", field)
			}
			nodes[id] = bytes
		}
		lines[fields[0]] = nodes
	}
	out := lines["anon"]
	if out == nil {
		return nil, errdefs.Unsupportedf("memory.numa_stat has no line of anonymous memory")
	}
	for id, bytes := range lines["shmem"] {
		out[id] += min(bytes, lines["file_mapped"][id])
	}
	return out, nil
}
