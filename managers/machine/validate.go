package machine

import (
	"cmp"
	"fmt"
	"math"
	"math/bits"
	"slices"

	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/numa"
)

// normalize returns a checked copy of s with everything in ascending order and
// the nodes filled in.
func normalize(s Snapshot) (Snapshot, error) {
	if len(s.Nodes) == 0 {
		s.Nodes = nodesOf(s.CPUs)
	}
	var vs errdefs.Violations
	if s.Version != 0 && s.Version != FormatVersion {
		vs.Addf("version", "version %d is not known, expected %d", s.Version, FormatVersion)
	}
	nodes := checkNodes(s, &vs)
	checkCPUs(s, nodes, &vs)
	checkCounts(s.Counts, &vs)
	if err := vs.Err("machine"); err != nil {
		return Snapshot{}, err
	}

	s = s.clone()
	s.Version = FormatVersion
	slices.SortFunc(s.CPUs, func(a, b CPU) int { return cmp.Compare(a.ID, b.ID) })
	slices.SortFunc(s.Nodes, func(a, b Node) int { return cmp.Compare(a.ID, b.ID) })
	for _, node := range s.Nodes {
		slices.SortFunc(node.HugePages, func(a, b HugePages) int { return cmp.Compare(a.SizeKiB, b.SizeKiB) })
	}
	return s, nil
}

// nodesOf returns the nodes that CPUs name, as far as they can be nodes.
func nodesOf(cpus []CPU) []Node {
	var mask numa.Mask
	for _, cpu := range cpus {
		if cpu.Node >= 0 && cpu.Node < numa.MaxNodes {
			mask = mask.With(cpu.Node)
		}
	}
	var nodes []Node
	for id := range mask.All() {
		nodes = append(nodes, Node{ID: id})
	}
	return nodes
}

// checkCPUs checks the CPUs one by one and against each other; nodes are the
// nodes that they may be on.
func checkCPUs(s Snapshot, nodes numa.Mask, vs *errdefs.Violations) {
	if len(s.CPUs) == 0 {
		vs.Addf("cpus", "a machine has at least one online CPU")
		return
	}
	firstAt := make(map[int]int, len(s.CPUs))  // place in s.CPUs by CPU id
	threadOf := make(map[int]int, len(s.CPUs)) // place of the first thread by core id
	for i, cpu := range s.CPUs {
		field := fmt.Sprintf("cpus[%d]", i)
		if !checkCPUPlace(field, cpu, vs) {
			continue
		}
		if first, twice := firstAt[cpu.ID]; twice {
			vs.Addf(field+".id", "CPU %d is listed already as cpus[%d]", cpu.ID, first)
			continue
		}
		firstAt[cpu.ID] = i
		if s.Offline.Contains(cpu.ID) {
			vs.Addf("offline", "CPU %d is offline and listed as cpus[%d]", cpu.ID, i)
		}
		if !nodes.Contains(cpu.Node) {
			vs.Addf(field+".node", "node %d of CPU %d is not listed in nodes", cpu.Node, cpu.ID)
		}
		if s.Counts != nil {
			continue
		}
		first, ok := threadOf[cpu.Core]
		if !ok {
			threadOf[cpu.Core] = i
			continue
		}
		if other := s.CPUs[first]; other.Node != cpu.Node || other.Socket != cpu.Socket {
			vs.Addf(field+".core",
				"core %d has CPU %d on socket %d, node %d and CPU %d on socket %d, node %d; the threads of a core share both",
				cpu.Core, other.ID, other.Socket, other.Node, cpu.ID, cpu.Socket, cpu.Node)
		}
	}
}

// checkCPUPlace checks the numbers of one CPU by themselves.
func checkCPUPlace(field string, cpu CPU, vs *errdefs.Violations) bool {
	before := len(*vs)
	if cpu.ID < 0 || cpu.ID >= cpuset.MaxCPUs {
		vs.Addf(field+".id", "CPU id %d is outside 0..%d", cpu.ID, cpuset.MaxCPUs-1)
	}
	if cpu.Node < 0 || cpu.Node >= numa.MaxNodes {
		vs.Addf(field+".node", "%s", nodeOutside(cpu.Node))
	}
	if cpu.Core < 0 || cpu.Core > math.MaxInt32 {
		vs.Addf(field+".core", "core id %d is outside 0..%d", cpu.Core, math.MaxInt32)
	}
	for _, level := range []struct {
		name string
		id   int
	}{{"socket", cpu.Socket}, {"die", cpu.Die}, {"cluster", cpu.Cluster}, {"uncore", cpu.Uncore}} {
		if level.id < -1 || level.id > math.MaxInt32 {
			vs.Addf(field+"."+level.name, "%s id %d is outside -1..%d", level.name, level.id, math.MaxInt32)
		}
	}
	if int(cpu.Kind) >= len(kindNames) {
		vs.Addf(field+".kind", "kind %d has no name", cpu.Kind)
	}
	return len(*vs) == before
}

// nodeOutside words the limit of 64 nodes: berth's masks are one 64-bit word, as
// the reference's are.
func nodeOutside(id int) string {
	return fmt.Sprintf("NUMA node id %d is outside 0..%d, the ids that berth can place on", id, numa.MaxNodes-1)
}

// checkNodes checks the nodes and distances, and returns the nodes that are
// listed.
func checkNodes(s Snapshot, vs *errdefs.Violations) numa.Mask {
	var seen numa.Mask
	var total uint64
	for i, node := range s.Nodes {
		field := fmt.Sprintf("nodes[%d]", i)
		switch {
		case node.ID < 0 || node.ID >= numa.MaxNodes:
			vs.Addf(field+".id", "%s", nodeOutside(node.ID))
			continue
		case seen.Contains(node.ID):
			vs.Addf(field+".id", "node %d is listed twice", node.ID)
		}
		seen = seen.With(node.ID)
		if node.MemoryBytes > math.MaxUint64-total {
			vs.Addf(field+".memory_bytes", "the memory of all nodes together exceeds %d bytes", uint64(math.MaxUint64))
			continue
		}
		total += node.MemoryBytes
		checkHugePages(field, node, vs)
	}
	if extra := s.Distances.Nodes().Minus(seen); !extra.IsEmpty() {
		vs.Addf("distances", "nodes %s have distances and are not listed in nodes", extra)
	}
	return seen
}

func checkHugePages(field string, node Node, vs *errdefs.Violations) {
	for j, pages := range node.HugePages {
		field := fmt.Sprintf("%s.huge_pages[%d]", field, j)
		if pages.SizeKiB == 0 || pages.SizeKiB > math.MaxInt64/1024 {
			vs.Addf(field+".size_kib", "page size %d KiB is outside 1..%d", pages.SizeKiB, math.MaxInt64/1024)
			continue
		}
		if over, _ := bits.Mul64(pages.SizeKiB*1024, pages.Count); over != 0 {
			vs.Addf(field+".count", "%d pages of %d KiB exceed %d bytes", pages.Count, pages.SizeKiB, uint64(math.MaxUint64))
		}
		if slices.ContainsFunc(node.HugePages[:j], func(p HugePages) bool { return p.SizeKiB == pages.SizeKiB }) {
			vs.Addf(field+".size_kib", "page size %d KiB of node %d is listed twice", pages.SizeKiB, node.ID)
		}
	}
}

func checkCounts(c *Counts, vs *errdefs.Violations) {
	if c == nil {
		return
	}
	for _, count := range []struct {
		name  string
		value int
	}{{"cpus", c.CPUs}, {"cores", c.Cores}, {"sockets", c.Sockets}, {"numa_nodes", c.NUMANodes}, {"uncores", c.Uncores}} {
		if count.value < 0 || count.value > math.MaxInt32 {
			vs.Addf("counts."+count.name, "%d is outside 0..%d", count.value, math.MaxInt32)
		}
	}
}
