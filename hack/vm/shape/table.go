package shape

import "github.com/berthd/berth/managers/cpuset"

// Processors that QEMU emulates with threads, dies and caches as the real ones
// show them.
const (
	intel = "Skylake-Server-v4"
	amd   = "EPYC-Rome"
)

// table holds the named shapes.
func table() map[string]Shape {
	plain := func(about string, sockets, dies, cores int, nodes []Node, distance func(a, b int) int, pages ...HugePages) Shape {
		return Shape{
			About: about, Machine: "pc", CPU: "max", Sockets: sockets, Dies: dies, Cores: cores, Threads: 1,
			Nodes: nodes, Distance: distance, HugePages: pages,
		}
	}
	smt := func(about, cpu string, sockets, dies, cores int, nodes []Node, distance func(a, b int) int, pages ...HugePages) Shape {
		s := plain(about, sockets, dies, cores, nodes, distance, pages...)
		s.CPU, s.Threads = cpu, 2
		return s
	}
	small := func(perNode ...int) HugePages { return HugePages{"2M", perNode} }
	shapes := map[string]Shape{
		"n1":     plain("one node, 8 CPUs", 1, 1, 8, even(1, 8, 4096), flat(20), small(64)),
		"n2asym": plain("nodes of 6 and 2 CPUs, 3 and 1 GiB", 2, 1, 4, uneven(), flat(20)),
		"n2g": plain("pages of 1 GiB: one on node 0, two on node 1", 2, 1, 4, even(2, 4, 4096), flat(20), HugePages{"1G", []int{1, 2}},
			small(64, 32)),
		"n3cpuonly": plain("the third node has CPUs and no memory", 3, 1, 4,
			append(even(2, 4, 2048), Node{CPUs: cpuset.Range(8, 11)}), flat(20)),
		"n4":   plain("2 sockets of 2 dies, a node each", 2, 2, 4, even(4, 4, 2048), grouped(2), small(64, 64, 32, 32)),
		"n4il": plain("CPU ids interleaved over 4 nodes", 2, 2, 4, interleaved(4, 4, 2048), grouped(2)),
		"n4mem": plain("2 nodes of 8 CPUs, 2 nodes of memory only", 2, 1, 8,
			append(even(2, 8, 2048), Node{MemoryMiB: 1024}, Node{MemoryMiB: 1024}), expander, small(32, 32, 32, 32)),
		"n8":  plain("8 nodes of 2 CPUs", 2, 4, 2, even(8, 2, 768), grouped(4), small(16, 16, 16, 16, 16, 16, 16, 16)),
		"n12": plain("12 nodes of one CPU", 3, 1, 4, even(12, 1, 512), grouped(4)),

		"n1dies":  smt("4 dies on one node", intel, 1, 4, 2, even(1, 16, 4096), flat(20), small(64)),
		"n2intel": smt("2 sockets of 4 cores", intel, 2, 1, 4, even(2, 8, 3072), flat(21), small(64, 64)),
		"n2dies":  smt("2 sockets of 2 dies, a node each socket", intel, 2, 2, 4, even(2, 16, 3072), flat(21), small(64, 64)),
		"n4intel": smt("2 sockets of 2 dies, a node each die", intel, 2, 2, 4, even(4, 8, 2048), grouped(2), small(64, 64, 32, 32)),
		"n1epyc":  smt("4 dies on one node", amd, 1, 4, 2, even(1, 16, 4096), flat(20), small(64)),
		"n2epyc":  smt("2 sockets of 2 dies, a node each socket", amd, 2, 2, 4, even(2, 16, 3072), flat(32), small(64, 64)),
		"n4epyc":  smt("2 sockets of 2 dies, a node each die", amd, 2, 2, 4, even(4, 8, 2048), grouped(2), small(64, 64, 32, 32)),
	}
	plug := plain("CPUs and memory of two nodes can be plugged in; the third one has nothing at the boot", 3, 1, 4,
		append(even(2, 4, 1024), Node{CPUs: cpuset.Range(8, 11)}), flat(20))
	plug.Absent, plug.Modules = 6, []Module{{Node: 1, MiB: 256}, {Node: 2, MiB: 512}}
	shapes["n3plug"] = plug
	shapes["n2pci"] = withPCI(plain("devices on both nodes", 2, 1, 4, even(2, 4, 2048), flat(20)))
	return shapes
}

func uneven() []Node {
	return []Node{{cpuset.Range(0, 5), 3072}, {cpuset.Range(6, 7), 1024}}
}

// interleaved deals the CPUs out in turn.
func interleaved(nodes, cpus, memoryMiB int) []Node {
	all := make([]Node, nodes)
	for i := range all {
		ids := make([]int, cpus)
		for k := range ids {
			ids[k] = i + k*nodes
		}
		all[i] = Node{cpuset.Of(ids...), memoryMiB}
	}
	return all
}

// expander gives the distances of memory behind CXL: 17 to the socket that it is
// attached to, which is the one of two nodes before it, 28 to anything else.
func expander(a, b int) int {
	switch {
	case a == 0 && b == 1:
		return 21
	case b == a+2:
		return 17
	}
	return 28
}

// withPCI adds a bus with a device to each of two nodes.
func withPCI(s Shape) Shape {
	s.Machine = "q35"
	s.Devices = []string{
		"-device", "pxb-pcie,id=pxb0,bus_nr=16,bus=pcie.0,numa_node=0",
		"-device", "pxb-pcie,id=pxb1,bus_nr=32,bus=pcie.0,numa_node=1",
		"-device", "pcie-root-port,id=rp0,bus=pxb0,chassis=1",
		"-device", "pcie-root-port,id=rp1,bus=pxb1,chassis=2",
		"-device", "virtio-rng-pci,bus=rp0", "-device", "virtio-rng-pci,bus=rp1",
	}
	return s
}
