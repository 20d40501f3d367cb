package admission_test

import (
	"fmt"
	"strings"

	"pgregory.net/rapid"

	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/machine"
	"github.com/berthd/berth/managers/machine/machinetest"
)

// shapes are the machines of histories, with everything that they may have.
var shapes = []string{"2s1n8c1t", "2s1n4c2t", "1s4n4c1t", "1s1n8c1t", "2s2n2c2t", "2s1n8c1t1m", "1s2n6c1t2m"}

// changingMachine is a machine of which CPUs, NUMA nodes, memory and huge pages come and go. CPU 0 is always online.
type changingMachine struct {
	shape string
	whole *machine.Topology
	// offline are CPUs that are offline, and the others of nodes without CPUs.
	offline cpuset.Set
	nodes   []changingNode
}

// changingNode is a NUMA node of a changingMachine.
type changingNode struct {
	cpus cpuset.Set
	// gone is whether the machine does not have the node; unplugged is whether it does not have its CPUs either, rather
	// than offline ones.
	gone, unplugged bool
	// gib is the memory with the huge pages, small are those of 2 MiB, and large those of 1 GiB.
	gib, small, large uint64
}

const (
	smallKiB = 2 << 10
	largeKiB = 1 << 20
)

func newChangingMachine(shape string) *changingMachine {
	m := &changingMachine{shape: shape, whole: machinetest.Build(shape)}
	for id := range m.whole.NodeMask().All() {
		m.nodes = append(m.nodes, changingNode{cpus: m.whole.CPUsInNode(id), gib: 16, small: 512, large: 2})
	}
	return m
}

// build returns the machine as it is now.
func (m *changingMachine) build() *machine.Topology {
	var options []machinetest.Option
	var offline cpuset.Builder
	var gone []int
	for id, n := range m.nodes {
		if n.gone {
			gone = append(gone, id)
		}
		for cpu := range n.cpus.All() {
			if n.gone && !n.unplugged || !n.gone && m.offline.Contains(cpu) {
				offline.Add(cpu)
			}
		}
		options = append(options, machinetest.Memory(id, n.gib<<30))
		if n.gib > 0 {
			options = append(options, machinetest.HugePages(id, smallKiB, n.small), machinetest.HugePages(id, largeKiB, n.large))
		}
	}
	return machinetest.Build(m.shape, append(options, machinetest.WithoutNodes(gone...), machinetest.Offline(offline.Set().String()))...)
}

// draw changes the machine: CPUs, and some of the nodes.
func (m *changingMachine) draw(r *rapid.T) {
	var offline cpuset.Builder
	for range rapid.IntRange(0, 4).Draw(r, "offline") {
		if cpus := m.whole.CPUs().Len(); cpus > 1 {
			offline.Add(rapid.IntRange(1, cpus-1).Draw(r, "cpu"))
		}
	}
	m.offline = offline.Set()
	for range rapid.IntRange(0, 2).Draw(r, "nodes that change") {
		id := rapid.IntRange(0, len(m.nodes)-1).Draw(r, "node")
		n := &m.nodes[id]
		switch what := evenly16(r, "what changes"); {
		case what < 3:
			n.gib = rapid.SampledFrom([]uint64{16, 16, 12, 8, 0}).Draw(r, "gib")
			if id == 0 { // the amount of a machine without any is not known
				n.gib = max(n.gib, 8)
			}
		case what < 5:
			n.small = rapid.SampledFrom([]uint64{512, 1024, 100, 0}).Draw(r, "pages of 2Mi")
		case what < 7:
			n.large = rapid.SampledFrom([]uint64{2, 3, 1, 0}).Draw(r, "pages of 1Gi")
		case what < 9:
			m.offline = m.offline.Union(n.cpus.Minus(cpuset.Of(0)))
		default:
			n.gone = id > 0 && !n.gone
			n.unplugged = rapid.Bool().Draw(r, "without its CPUs")
		}
	}
}

// String describes the machine as it is now.
func (m *changingMachine) String() string {
	out := []string{fmt.Sprintf("CPUs %q offline", m.offline)}
	for id, n := range m.nodes {
		if n.gone {
			out = append(out, fmt.Sprintf("node %d gone (without CPUs %v)", id, n.unplugged))
		} else {
			out = append(out, fmt.Sprintf("node %d %dGi, %d*2Mi, %d*1Gi", id, n.gib, n.small, n.large))
		}
	}
	return strings.Join(out, "; ")
}
