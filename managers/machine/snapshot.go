package machine

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/numa"
)

// FormatVersion is the version of the JSON form of a Snapshot that Marshal
// writes, and the only one that Load reads.
const FormatVersion = 1

// Snapshot describes a machine in plain values. The zero value describes
// nothing and is refused by New.
type Snapshot struct {
	// Version is FormatVersion, or 0 for "the current one" in a snapshot that
	// was built in memory; Load insists on it.
	Version int `json:"version"`
	// Name and Description are for people and decide nothing.
	Name        string `json:"name,omitempty"`
	Description string `json:"description,omitempty"`
	// CPUs are the online CPUs, in any order, at least one.
	CPUs []CPU `json:"cpus"`
	// Offline are the CPUs that are present but not online, and those without a known core.
	Offline cpuset.Set `json:"offline,omitzero"`
	// Isolated are the CPUs that the kernel leaves out of load balancing (isolcpus=), and
	// NoHZFull those without a periodic tick (nohz_full=). Both may contain other than online
	// CPUs, and decide nothing by themselves.
	Isolated cpuset.Set `json:"isolated,omitzero"`
	NoHZFull cpuset.Set `json:"nohz_full,omitzero"`
	// Nodes are all NUMA nodes, in any order, those without CPUs and those
	// without memory included. If empty, the nodes that the CPUs name are
	// taken, without memory.
	Nodes []Node `json:"nodes,omitempty"`
	// Distances between the nodes; pairs may be missing.
	Distances numa.Distances `json:"distances,omitzero"`
	// MemoryBytes is the memory of the whole machine (MemTotal of
	// /proc/meminfo); 0 means the sum over the nodes.
	MemoryBytes uint64 `json:"memory_bytes,omitempty"`
	// Counts, if given, replace the counts that follow from the tables, and
	// mean that the tables were recorded elsewhere and are used as they
	// are: New then accepts cores that span sockets or nodes.
	Counts *Counts `json:"counts,omitempty"`
	// Notes are what discovery had to leave out, in sentences for people.
	Notes []string `json:"notes,omitempty"`
}

// CPU is one online logical CPU and its place. Socket, Die, Cluster and Uncore
// are -1 where the kernel does not know; Core and Node are never negative.
type CPU struct {
	// ID is the Linux CPU number, below cpuset.MaxCPUs.
	ID int `json:"id"`
	// Core is the lowest ID among the threads of the core.
	Core int `json:"core"`
	// Socket is the kernel's physical_package_id.
	Socket int `json:"socket"`
	// Die and Cluster are the kernel's die_id and cluster_id.
	Die     int `json:"die"`
	Cluster int `json:"cluster"`
	// Node is the NUMA node, below numa.MaxNodes.
	Node int `json:"node"`
	// Uncore is the id of the last level cache group, see the package comment.
	Uncore int `json:"uncore"`
	// Kind distinguishes performance and efficient cores on a hybrid machine.
	Kind Kind `json:"kind,omitzero"`
}

// UnmarshalJSON reads one CPU. The numbers id, core, socket and node are needed;
// die and cluster are -1 where they are left out, and uncore is the socket.
func (c *CPU) UnmarshalJSON(data []byte) error {
	var read struct {
		ID, Core, Socket, Die, Cluster, Node, Uncore *int
		Kind                                         Kind
	}
	decoder := json.NewDecoder(bytes.NewReader(data))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&read); err != nil {
		return fmt.Errorf("CPU %s: %w", data, err)
	}
	cpu := CPU{Die: -1, Cluster: -1, Kind: read.Kind}
	for _, number := range []struct {
		name   string
		from   *int
		to     *int
		needed bool
	}{
		{"id", read.ID, &cpu.ID, true},
		{"core", read.Core, &cpu.Core, true},
		{"socket", read.Socket, &cpu.Socket, true},
		{"node", read.Node, &cpu.Node, true},
		{"die", read.Die, &cpu.Die, false},
		{"cluster", read.Cluster, &cpu.Cluster, false},
	} {
		switch {
		case number.from != nil:
			*number.to = *number.from
		case number.needed:
			return fmt.Errorf("CPU %s: %s is missing", data, number.name)
		}
	}
	cpu.Uncore = cpu.Socket
	if read.Uncore != nil {
		cpu.Uncore = *read.Uncore
	}
	*c = cpu
	return nil
}

// Node is one NUMA node.
type Node struct {
	// ID is the number in /sys/devices/system/node/node<ID>.
	ID int `json:"id"`
	// MemoryBytes is MemTotal of the node's meminfo; 0 for a node without
	// memory, and for one whose memory is not reported.
	MemoryBytes uint64 `json:"memory_bytes,omitempty"`
	// HugePages are the page sizes of the node, each once.
	HugePages []HugePages `json:"huge_pages,omitempty"`
}

// HugePages is the pool of one huge page size on one node.
type HugePages struct {
	// SizeKiB is the page size in KiB, not 0.
	SizeKiB uint64 `json:"size_kib"`
	// Count is the number of pages, used and free.
	Count uint64 `json:"count"`
}

// Counts are the sizes of a machine as the reference counts them. A recorded
// machine may have counts that disagree with its tables.
type Counts struct {
	CPUs    int `json:"cpus"`
	Cores   int `json:"cores"`
	Sockets int `json:"sockets"`
	// NUMANodes counts the nodes that have CPUs.
	NUMANodes int `json:"numa_nodes"`
	Uncores   int `json:"uncores"`
}

// Kind is the kind of a CPU's core.
type Kind uint8

// The kinds of cores. KindUnknown is every core of a machine that has one kind.
const (
	KindUnknown Kind = iota
	KindPerformance
	KindEfficient
)

var kindNames = [...]string{KindUnknown: "unknown", KindPerformance: "performance", KindEfficient: "efficient"}

// String returns "unknown", "performance" or "efficient".
func (k Kind) String() string {
	if int(k) < len(kindNames) {
		return kindNames[k]
	}
	return fmt.Sprintf("Kind(%d)", uint8(k))
}

// MarshalText returns String, and an error for a kind that has no name.
func (k Kind) MarshalText() ([]byte, error) {
	if int(k) >= len(kindNames) {
		return nil, fmt.Errorf("kind %d of a CPU has no name", uint8(k))
	}
	return []byte(kindNames[k]), nil
}

// UnmarshalText reads what MarshalText writes.
func (k *Kind) UnmarshalText(text []byte) error {
	i := slices.Index(kindNames[:], string(text))
	if i < 0 {
		return fmt.Errorf("kind %q of a CPU is not one of %q", text, kindNames)
	}
	*k = Kind(i)
	return nil
}

// clone returns a copy that shares nothing that can be changed.
func (s Snapshot) clone() Snapshot {
	s.CPUs = slices.Clone(s.CPUs)
	s.Nodes = cloneNodes(s.Nodes)
	s.Notes = slices.Clone(s.Notes)
	if s.Counts != nil {
		counts := *s.Counts
		s.Counts = &counts
	}
	return s
}

func cloneNodes(nodes []Node) []Node {
	nodes = slices.Clone(nodes)
	for i := range nodes {
		nodes[i].HugePages = slices.Clone(nodes[i].HugePages)
	}
	return nodes
}
