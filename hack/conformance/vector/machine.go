package vector

import (
	"encoding/json"
	"fmt"
	"os"

	"github.com/berthd/berth/managers/machine"
	"github.com/berthd/berth/managers/numa"
)

// Machines are recorded machines by name. One that cannot be built spoils only
// the cases that name it.
type Machines map[string]built

type built struct {
	topology *machine.Topology
	err      error
}

// Get returns the machine of a name, or an error that names it.
func (m Machines) Get(name string) (*machine.Topology, error) {
	b, ok := m[name]
	if !ok {
		return nil, fmt.Errorf("topologies.json has no machine %q", name)
	}
	if b.err != nil {
		return nil, fmt.Errorf("machine %q: %w", name, b.err)
	}
	return b.topology, nil
}

// Machine is one recorded machine. The counts are the reference's own and may
// disagree with the tables.
type Machine struct {
	Name        string `json:"name"`
	Description string `json:"description"`
	NumCPUs     int    `json:"num_cpus"`
	NumCores    int    `json:"num_cores"`
	NumSockets  int    `json:"num_sockets"`
	// NumNUMANodes counts the nodes that have CPUs.
	NumNUMANodes int `json:"num_numa_nodes"`
	NumUncore    int `json:"num_uncore"`
	CPUs         []struct {
		CPU    int `json:"cpu"`
		Core   int `json:"core"`
		Socket int `json:"socket"`
		NUMA   int `json:"numa"`
		Uncore int `json:"uncore"`
	} `json:"cpus"`
	Nodes []Node `json:"nodes"`
}

// Node is one NUMA node of a recorded machine. Distances has one entry for each
// listed node, in the order of the list.
type Node struct {
	ID        int     `json:"id"`
	Memory    uint64  `json:"memory"`
	HugePages []Pages `json:"hugepages"`
	Distances []int   `json:"distances"`
}

// Pages is a pool of huge pages of one size on one node.
type Pages struct {
	PageSizeKiB uint64 `json:"page_size_kib"`
	NumPages    uint64 `json:"num_pages"`
}

// LoadMachines reads a topologies.json.
func LoadMachines(path string) (Machines, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var recorded []Machine
	if err := json.Unmarshal(data, &recorded); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	out := make(Machines, len(recorded))
	for _, m := range recorded {
		t, err := m.Topology()
		out[m.Name] = built{t, err}
	}
	return out, nil
}

// Topology returns the machine as the managers see it, with the recorded counts.
func (m Machine) Topology() (*machine.Topology, error) {
	s := machine.Snapshot{
		Name:        m.Name,
		Description: m.Description,
		Counts: &machine.Counts{
			CPUs:      m.NumCPUs,
			Cores:     m.NumCores,
			Sockets:   m.NumSockets,
			NUMANodes: m.NumNUMANodes,
			Uncores:   m.NumUncore,
		},
	}
	for _, c := range m.CPUs {
		s.CPUs = append(s.CPUs, machine.CPU{
			ID: c.CPU, Core: c.Core, Socket: c.Socket, Node: c.NUMA, Uncore: c.Uncore, Die: -1, Cluster: -1,
		})
	}
	s.Nodes = Nodes(m.Nodes)
	online := make([]int, len(m.Nodes))
	lists := map[int][]int{}
	for i, n := range m.Nodes {
		online[i] = n.ID
		if len(n.Distances) > 0 {
			lists[n.ID] = n.Distances
		}
	}
	var err error
	if s.Distances, err = numa.FromLists(online, lists); err != nil {
		return nil, err
	}
	return machine.New(s)
}

// Nodes returns the memory of recorded nodes as a snapshot has it.
func Nodes(recorded []Node) []machine.Node {
	out := make([]machine.Node, len(recorded))
	for i, n := range recorded {
		out[i] = machine.Node{ID: n.ID, MemoryBytes: n.Memory}
		for _, p := range n.HugePages {
			out[i].HugePages = append(out[i].HugePages, machine.HugePages{SizeKiB: p.PageSizeKiB, Count: p.NumPages})
		}
	}
	return out
}
