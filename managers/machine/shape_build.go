package machine

import (
	"fmt"

	"github.com/berthd/berth/managers/numa"
)

// snapshot lays the machine out, core by core from the outside in.
func (sh *shape) snapshot(text string) Snapshot {
	total := sh.totalCores()
	s := Snapshot{Version: FormatVersion, Name: text, CPUs: make([]CPU, 0, total*sh.threads)}
	for core := range total {
		cache := core / sh.cores
		inner := cache / sh.caches // the innermost of socket and node, whichever it is
		socket, node := inner/sh.nodes, inner
		if sh.socketsInNodes {
			socket, node = inner, inner/sh.sockets
		}
		uncore := socket
		if sh.caches > 1 {
			uncore = cache
		}
		for thread := range sh.threads {
			s.CPUs = append(s.CPUs, CPU{
				ID: sh.cpuID(core, thread), Core: sh.cpuID(core, 0),
				Socket: socket, Cluster: -1, Node: node, Uncore: uncore,
			})
		}
	}
	for id := range sh.totalNodes() {
		s.Nodes = append(s.Nodes, Node{ID: id, MemoryBytes: sh.memoryBytes, HugePages: sh.hugePages})
	}
	for i := range sh.memoryOnly {
		s.Nodes = append(s.Nodes, Node{ID: sh.totalNodes() + i, MemoryBytes: sh.memoryBytes})
	}
	s.Distances = sh.distances()
	s.Description = sh.describe(len(s.CPUs), len(s.Nodes))
	return s.clone()
}

func (sh *shape) cpuID(core, thread int) int {
	if sh.adjacent {
		return core*sh.threads + thread
	}
	return core + thread*sh.totalCores()
}

func (sh *shape) distances() numa.Distances {
	withCPUs := sh.totalNodes()
	all := withCPUs + sh.memoryOnly
	rows := make(map[int]map[int]int, all)
	for i := range all {
		rows[i] = make(map[int]int, all)
		for j := range all {
			switch {
			case i == j:
				rows[i][j] = distanceLocal
			case !sh.socketsInNodes && i < withCPUs && j < withCPUs && i/sh.nodes == j/sh.nodes:
				rows[i][j] = distanceNear
			default:
				rows[i][j] = distanceFar
			}
		}
	}
	// The ids are below numa.MaxNodes, which is all that can be refused.
	distances, _ := numa.NewDistances(rows)
	return distances
}

func (sh *shape) describe(cpus, nodes int) string {
	outer := fmt.Sprintf("%d sockets of %d NUMA nodes", sh.sockets, sh.nodes)
	if sh.socketsInNodes {
		outer = fmt.Sprintf("%d NUMA nodes of %d sockets", sh.nodes, sh.sockets)
	}
	if sh.caches > 1 {
		outer += fmt.Sprintf(" of %d L3 groups", sh.caches)
	}
	text := fmt.Sprintf("simulated: %s of %d cores of %d threads", outer, sh.cores, sh.threads)
	if sh.memoryOnly > 0 {
		text += fmt.Sprintf(", and %d memory-only nodes", sh.memoryOnly)
	}
	return fmt.Sprintf("%s: %d CPUs, %d nodes in all", text, cpus, nodes)
}
