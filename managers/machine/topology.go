package machine

import (
	"slices"

	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/numa"
)

// Topology is a checked machine. It never changes.
type Topology struct {
	snap   Snapshot
	cpus   cpuset.Set
	at     []int32 // place in snap.CPUs by CPU id, -1 where there is none
	counts Counts

	cores, sockets, nodes, uncores Partition

	nodeMask    numa.Mask
	cpuNodeMask numa.Mask
	// nodeSets are the CPUs of a node by node id, so that summing over a mask
	// needs no search.
	nodeSets    [numa.MaxNodes]cpuset.Set
	memoryBytes uint64
	pageSizes   []uint64
	fingerprint string
}

// New checks a snapshot and builds the tables. The snapshot is copied, its CPUs
// and nodes may be in any order. Errors name the entry and what was expected:
// no CPUs, a CPU or node listed twice, an id out of range (CPU ids from
// cpuset.MaxCPUs on, node ids from numa.MaxNodes on), a CPU on a node that is
// not listed, a core that spans sockets or nodes (unless Counts is given).
func New(s Snapshot) (*Topology, error) {
	s, err := normalize(s)
	if err != nil {
		return nil, err
	}
	t := &Topology{snap: s}
	size := s.CPUs[len(s.CPUs)-1].ID + 1
	t.at = make([]int32, size)
	for i := range t.at {
		t.at[i] = -1
	}
	var cpus cpuset.Builder
	for i, cpu := range s.CPUs {
		t.at[cpu.ID] = int32(i)
		cpus.Add(cpu.ID)
	}
	t.cpus = cpus.Set()
	t.cores = newPartition(s.CPUs, size, func(c CPU) int { return c.Core })
	t.sockets = newPartition(s.CPUs, size, func(c CPU) int { return c.Socket })
	t.nodes = newPartition(s.CPUs, size, func(c CPU) int { return c.Node })
	t.uncores = newPartition(s.CPUs, size, func(c CPU) int { return c.Uncore })
	t.fillNodes()
	t.fillCounts()
	t.fingerprint = fingerprint(s)
	return t, nil
}

func (t *Topology) fillNodes() {
	for _, node := range t.snap.Nodes {
		t.nodeMask = t.nodeMask.With(node.ID)
		t.memoryBytes += node.MemoryBytes
		for _, pages := range node.HugePages {
			t.pageSizes = append(t.pageSizes, pages.SizeKiB)
		}
	}
	slices.Sort(t.pageSizes)
	t.pageSizes = slices.Compact(t.pageSizes)
	if t.snap.MemoryBytes != 0 {
		t.memoryBytes = t.snap.MemoryBytes
	}
	for i := range t.nodes.Len() {
		t.cpuNodeMask = t.cpuNodeMask.With(t.nodes.ID(i))
		t.nodeSets[t.nodes.ID(i)] = t.nodes.CPUs(i)
	}
}

func (t *Topology) fillCounts() {
	if t.snap.Counts != nil {
		t.counts = *t.snap.Counts
		return
	}
	t.counts = t.tableCounts()
}

// tableCounts returns the counts that follow from the tables.
func (t *Topology) tableCounts() Counts {
	return Counts{
		CPUs:      len(t.snap.CPUs),
		Cores:     t.cores.Len(),
		Sockets:   t.sockets.Len(),
		NUMANodes: t.nodes.Len(),
		Uncores:   t.uncores.Len(),
	}
}

// Snapshot returns the description that t was built from, with CPUs, nodes and
// page sizes in ascending order; the caller's to keep and change.
func (t *Topology) Snapshot() Snapshot { return t.snap.clone() }

// Fingerprint identifies what claims rely on: the CPUs, their cores, sockets,
// nodes and uncores, and the ids of all nodes. Memory and page counts are not
// in it, since they change by a little from boot to boot, nor are names,
// distances, dies, clusters, kinds or offline CPUs. 32 hexadecimal digits.
func (t *Topology) Fingerprint() string { return t.fingerprint }

// CPUs returns the online CPUs.
func (t *Topology) CPUs() cpuset.Set { return t.cpus }

// Offline returns the CPUs that are present but not online, and those without a known core.
func (t *Topology) Offline() cpuset.Set { return t.snap.Offline }

// Isolated returns the CPUs that the kernel leaves out of load balancing.
func (t *Topology) Isolated() cpuset.Set { return t.snap.Isolated }

// NoHZFull returns the CPUs without a periodic tick.
func (t *Topology) NoHZFull() cpuset.Set { return t.snap.NoHZFull }

// CPU returns an online CPU by its id, and false if there is none.
func (t *Topology) CPU(id int) (CPU, bool) {
	if id < 0 || id >= len(t.at) || t.at[id] < 0 {
		return CPU{}, false
	}
	return t.snap.CPUs[t.at[id]], true
}

// NumCPUs returns the count of CPUs that enters the averages.
func (t *Topology) NumCPUs() int { return t.counts.CPUs }

// NumCores returns the count of cores that enters the averages.
func (t *Topology) NumCores() int { return t.counts.Cores }

// NumSockets returns the count of sockets that enters the averages and the
// choice between "NUMA first" and "socket first".
func (t *Topology) NumSockets() int { return t.counts.Sockets }

// NumNUMANodes returns the count of nodes with CPUs, as NumSockets.
func (t *Topology) NumNUMANodes() int { return t.counts.NUMANodes }

// NumUncores returns the count of uncores that enters the averages.
func (t *Topology) NumUncores() int { return t.counts.Uncores }

// CPUsPerCore returns NumCPUs / NumCores rounded down, 0 without cores. On
// machines whose cores differ it is no core's size: ByCore().Size is.
func (t *Topology) CPUsPerCore() int { return average(t.counts.CPUs, t.counts.Cores) }

// CPUsPerSocket returns NumCPUs / NumSockets rounded down, 0 without sockets.
func (t *Topology) CPUsPerSocket() int { return average(t.counts.CPUs, t.counts.Sockets) }

// CPUsPerUncore returns NumCPUs / NumUncores rounded down, 0 without uncores.
func (t *Topology) CPUsPerUncore() int { return average(t.counts.CPUs, t.counts.Uncores) }

func average(total, groups int) int {
	if groups == 0 {
		return 0
	}
	return total / groups
}

// ByCore returns the CPUs grouped by core.
func (t *Topology) ByCore() *Partition { return &t.cores }

// BySocket returns the CPUs grouped by socket.
func (t *Topology) BySocket() *Partition { return &t.sockets }

// ByNode returns the CPUs grouped by NUMA node; memory-only nodes have no
// group.
func (t *Topology) ByNode() *Partition { return &t.nodes }

// ByUncore returns the CPUs grouped by uncore.
func (t *Topology) ByUncore() *Partition { return &t.uncores }

// Sockets returns the ids of all sockets in ascending order.
func (t *Topology) Sockets() []int { return t.sockets.IDs() }

// Uncores returns the ids of all uncores in ascending order.
func (t *Topology) Uncores() []int { return t.uncores.IDs() }

// CPUsInCore returns the threads of a core; empty if there is no such core.
func (t *Topology) CPUsInCore(id int) cpuset.Set { return t.cores.Of(id) }

// CPUsInSocket returns the CPUs of a socket; empty if there is no such socket.
func (t *Topology) CPUsInSocket(id int) cpuset.Set { return t.sockets.Of(id) }

// CPUsInUncore returns the CPUs of an uncore; empty if there is no such uncore.
func (t *Topology) CPUsInUncore(id int) cpuset.Set { return t.uncores.Of(id) }

// CPUsInNode returns the CPUs of a node; empty for a memory-only node and for
// a node that the machine does not have.
func (t *Topology) CPUsInNode(id int) cpuset.Set {
	if id < 0 || id >= numa.MaxNodes {
		return cpuset.Set{}
	}
	return t.nodeSets[id]
}

// CPUsInNodes returns the CPUs of all nodes of a mask; nodes that the machine
// does not have add nothing.
func (t *Topology) CPUsInNodes(nodes numa.Mask) cpuset.Set {
	nodes = nodes.Intersect(t.cpuNodeMask)
	if nodes == t.cpuNodeMask {
		return t.cpus
	}
	if id, ok := nodes.Lowest(); ok && nodes.Len() == 1 {
		return t.nodeSets[id]
	}
	var b cpuset.Builder
	for id := range nodes.All() {
		b.AddSet(t.nodeSets[id])
	}
	return b.Set()
}

// NodesOf returns the nodes that have a CPU in set.
func (t *Topology) NodesOf(set cpuset.Set) numa.Mask {
	var mask numa.Mask
	for i := range t.nodes.Touched(set) {
		mask = mask.With(t.nodes.ID(i))
	}
	return mask
}

// SocketsOf returns the ids of the sockets that have a CPU in set, ascending.
func (t *Topology) SocketsOf(set cpuset.Set) []int {
	var ids []int
	for i := range t.sockets.Touched(set) {
		ids = append(ids, t.sockets.ID(i))
	}
	return ids
}

// Nodes returns all nodes in ascending order of their ids, the caller's to
// keep.
func (t *Topology) Nodes() []Node { return cloneNodes(t.snap.Nodes) }

// Node returns a node by its id, and false if there is none.
func (t *Topology) Node(id int) (Node, bool) {
	for _, node := range t.snap.Nodes {
		if node.ID == id {
			node.HugePages = slices.Clone(node.HugePages)
			return node, true
		}
	}
	return Node{}, false
}

// NodeMask returns all nodes, memory-only ones included.
func (t *Topology) NodeMask() numa.Mask { return t.nodeMask }

// CPUNodeMask returns the nodes that have CPUs.
func (t *Topology) CPUNodeMask() numa.Mask { return t.cpuNodeMask }

// MemoryNodeMask returns the nodes that have memory; all nodes if the amounts are not known. The kernel accepts no others as
// memory nodes of a cgroup.
func (t *Topology) MemoryNodeMask() (nodes numa.Mask) {
	for _, node := range t.snap.Nodes {
		if node.MemoryBytes > 0 {
			nodes = nodes.With(node.ID)
		}
	}
	if nodes.IsEmpty() {
		return t.nodeMask
	}
	return nodes
}

// Distances returns the distances between the nodes.
func (t *Topology) Distances() numa.Distances { return t.snap.Distances }

// MemoryBytes returns the memory of the whole machine.
func (t *Topology) MemoryBytes() uint64 { return t.memoryBytes }

// HugePageSizesKiB returns the page sizes of all nodes, in KiB,
// ascending.
func (t *Topology) HugePageSizesKiB() []uint64 { return slices.Clone(t.pageSizes) }
