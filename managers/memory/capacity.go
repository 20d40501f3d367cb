package memory

import (
	"fmt"
	"math/bits"
	"slices"

	"github.com/berthd/berth/managers/machine"
	"github.com/berthd/berth/managers/numa"
	"github.com/berthd/berth/managers/workload"
)

// maxBytes bounds what a node has of a resource, so that sums over all nodes stay
// within an int64. It is a thousand times the largest machine there is.
const maxBytes = 1 << 56

// amounts are bytes by node id. Free amounts may be below zero while the machine
// has less than was allocated.
type amounts [numa.MaxNodes]int64

// sum adds up the nodes of a set.
func (a *amounts) sum(nodes numa.Mask) (sum int64) {
	for rest := uint64(nodes); rest != 0; rest &= rest - 1 {
		sum += a[bits.TrailingZeros64(rest)]
	}
	return sum
}

// capacity is what the machine has of one resource.
type capacity struct {
	resource string
	// nodes are those that know the resource, be it with an amount of zero.
	nodes                        numa.Mask
	total, reserved, allocatable amounts
	// weights are what is allocatable, for searches.
	weights numa.Weights
}

// measure fills in what each node has. Regular memory is what is left of a node
// without its huge pages; the kernel decides whether those fit into the
// rest, so a difference below zero counts as 0.
func (m *Manager) measure(topo *machine.Topology, reserved []Reservation) {
	memory := m.capacity(string(workload.Memory))
	memory.nodes = m.nodes
	for _, node := range topo.Nodes() {
		m.ids = append(m.ids, node.ID)
		memory.total[node.ID] = int64(min(node.MemoryBytes, maxBytes))
		memory.allocatable[node.ID] = memory.total[node.ID]
		for _, pages := range node.HugePages {
			c := m.capacity(hugePages(pages.SizeKiB))
			hi, bytes := bits.Mul64(pages.Count, min(pages.SizeKiB, maxBytes/1024)*1024)
			if hi != 0 || bytes > maxBytes {
				bytes = maxBytes
			}
			c.nodes = c.nodes.With(node.ID)
			c.total[node.ID] = int64(bytes)
			c.allocatable[node.ID] = int64(bytes)
			m.take(memory, node.ID, int64(bytes), "its huge pages")
		}
	}
	for _, r := range reserved {
		c := m.capacity(string(r.Resource))
		bytes := int64(min(r.Bytes, maxBytes))
		c.reserved[r.Node] = bytes
		m.take(c, r.Node, bytes, "what is reserved for the system")
	}
	for _, c := range m.capacities {
		for _, id := range m.ids {
			c.weights[id] = uint64(c.allocatable[id])
		}
	}
}

// take lowers what is allocatable, to no less than nothing.
func (m *Manager) take(c *capacity, node int, bytes int64, why string) {
	if lacking := bytes - c.allocatable[node]; lacking > 0 {
		m.warnings = append(m.warnings, fmt.Sprintf("NUMA node %d has nothing of %s to give: it lacks %s for %s",
			node, c.resource, quantity(uint64(lacking)), why))
		bytes = c.allocatable[node]
	}
	c.allocatable[node] -= bytes
}

// capacity finds or makes the entry of a resource.
func (m *Manager) capacity(resource string) *capacity {
	at, found := slices.BinarySearchFunc(m.capacities, resource, func(c *capacity, r string) int {
		switch {
		case c.resource < r:
			return -1
		case c.resource > r:
			return 1
		}
		return 0
	})
	if !found {
		m.capacities = slices.Insert(m.capacities, at, &capacity{resource: resource})
	}
	return m.capacities[at]
}
