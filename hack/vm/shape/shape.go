// Package shape describes the machines that hack/vm can make up: processors,
// NUMA nodes, distances, huge pages.
//
// # Words
//
//   - shape: one machine; the named ones are those that the recorded decisions of
//     the kubelet were made on, so that berth can be held against them.
//   - near and far: the distances inside of a group of nodes and between groups.
//   - part: a CPU or memory that the machine lacks at its boot, and that can be plugged into it while it runs.
//
// # Invariant
//
//   - A node without CPUs and a node without memory are allowed; a machine without
//     either is not.
package shape

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/berthd/berth/hack/vm/arch"
	"github.com/berthd/berth/managers/cpuset"
)

// Node is one NUMA node.
type Node struct {
	CPUs      cpuset.Set
	MemoryMiB int
}

// HugePages are pages reserved at boot.
type HugePages struct {
	// Size as the kernel's command line has it, 2M or 1G.
	Size string
	// PerNode counts them by node.
	PerNode []int
}

// Shape is one machine.
type Shape struct {
	Name, About string
	// Machine and CPU are QEMU's names of the board and the processor.
	Machine, CPU string
	// Sockets of Dies of Cores of Threads.
	Sockets, Dies, Cores, Threads int
	Nodes                         []Node
	// Distance between two different nodes.
	Distance  func(a, b int) int
	HugePages []HugePages
	// Devices are further arguments of QEMU.
	Devices []string
	// Absent are so many CPUs, those with the highest numbers of QEMU, that the machine lacks at its boot.
	Absent int
	// Modules are memory that the machine lacks at its boot.
	Modules []Module
}

// Module is a memory module of a node.
type Module struct{ Node, MiB int }

// Part is a CPU or a memory module that can be plugged into the machine.
type Part struct {
	// Name is cpuN or memoryN, with QEMU's number of the CPU or the number of the module.
	Name string
	// Device are the arguments with which QEMU plugs it in (device_add).
	Device map[string]any
}

// Parts lists what can be plugged into the machine.
func (s Shape) Parts() (all []Part) {
	for i := s.CPUs() - s.Absent; i < s.CPUs(); i++ {
		name := fmt.Sprintf("cpu%d", i)
		core := i / s.Threads
		device := map[string]any{
			"id": name, "driver": s.CPU + "-x86_64-cpu",
			"socket-id": core / s.Cores / s.Dies, "die-id": core / s.Cores % s.Dies, "core-id": core % s.Cores, "thread-id": i % s.Threads,
		}
		all = append(all, Part{name, device})
	}
	for i, m := range s.Modules {
		name := fmt.Sprintf("memory%d", i)
		all = append(all, Part{name, map[string]any{"id": name, "driver": "pc-dimm", "memdev": "spare" + strconv.Itoa(i), "node": m.Node}})
	}
	return all
}

// Even makes a machine of equal nodes, CPUs in order, distance 20.
func Even(a arch.Arch, nodes, cpus, memoryMiB int) (Shape, error) {
	switch {
	case nodes < 1 || nodes > 64:
		return Shape{}, fmt.Errorf("%d NUMA nodes: between 1 and 64 can be had", nodes)
	case cpus < nodes || cpus%nodes != 0:
		return Shape{}, fmt.Errorf("%d CPUs on %d nodes: a multiple of the nodes is needed", cpus, nodes)
	case memoryMiB/nodes < 128:
		return Shape{}, fmt.Errorf("%d MiB on %d nodes: a node needs at least 128", memoryMiB, nodes)
	}
	return Shape{
		Machine: a.Machine, CPU: a.CPU, Sockets: nodes, Dies: 1, Cores: cpus / nodes, Threads: 1,
		Nodes: even(nodes, cpus/nodes, memoryMiB/nodes), Distance: flat(20),
	}, nil
}

// CPUs counts the machine's CPUs, with those that it lacks at its boot.
func (s Shape) CPUs() int { return s.Sockets * s.Dies * s.Cores * s.Threads }

// MemoryMiB is all nodes' memory at the boot.
func (s Shape) MemoryMiB() (sum int) {
	for _, n := range s.Nodes {
		sum += n.MemoryMiB
	}
	return sum
}

// Args are the arguments with which QEMU makes the machine.
func (s Shape) Args() []string {
	smp := strconv.Itoa(s.CPUs() - s.Absent)
	if s.Absent > 0 {
		smp += fmt.Sprintf(",maxcpus=%d", s.CPUs())
	}
	smp += fmt.Sprintf(",sockets=%d", s.Sockets)
	if s.Dies > 1 {
		smp += fmt.Sprintf(",dies=%d", s.Dies)
	}
	smp += fmt.Sprintf(",cores=%d,threads=%d", s.Cores, s.Threads)
	memory, most := strconv.Itoa(s.MemoryMiB())+"M", s.MemoryMiB()
	for _, m := range s.Modules {
		most += m.MiB
	}
	if len(s.Modules) > 0 {
		memory += fmt.Sprintf(",slots=%d,maxmem=%dM", len(s.Modules), most)
	}
	args := []string{"-machine", s.Machine, "-cpu", s.CPU, "-m", memory, "-smp", smp}
	for i, m := range s.Modules {
		args = append(args, "-object", fmt.Sprintf("memory-backend-ram,id=spare%d,size=%dM", i, m.MiB))
	}
	for i, n := range s.Nodes {
		numa := fmt.Sprintf("node,nodeid=%d", i)
		if n.MemoryMiB > 0 {
			args = append(args, "-object", fmt.Sprintf("memory-backend-ram,id=m%d,size=%dM", i, n.MemoryMiB))
			numa += fmt.Sprintf(",memdev=m%d", i)
		}
		if !n.CPUs.IsEmpty() {
			numa += ",cpus=" + strings.ReplaceAll(n.CPUs.String(), ",", ",cpus=")
		}
		args = append(args, "-numa", numa)
	}
	for a := range s.Nodes {
		for b := a + 1; b < len(s.Nodes); b++ {
			args = append(args, "-numa", fmt.Sprintf("dist,src=%d,dst=%d,val=%d", a, b, s.Distance(a, b)))
		}
	}
	return append(args, s.Devices...)
}

// KernelArgs are the parameters with which the kernel reserves the huge pages.
func (s Shape) KernelArgs() []string {
	var args []string
	for _, h := range s.HugePages {
		counts := make([]string, len(h.PerNode))
		for node, n := range h.PerNode {
			counts[node] = fmt.Sprintf("%d:%d", node, n)
		}
		args = append(args, "hugepagesz="+h.Size, "hugepages="+strings.Join(counts, ","))
	}
	return args
}

// ParseHugePages reads SIZE=COUNT,COUNT… with a count for each node, several of
// them with a semicolon between; "2M=64,32;1G=0,1".
func ParseHugePages(text string) ([]HugePages, error) {
	var all []HugePages
	for part := range strings.SplitSeq(text, ";") {
		size, counts, ok := strings.Cut(part, "=")
		if !ok || size != "2M" && size != "1G" {
			return nil, fmt.Errorf("huge pages %q: want 2M= or 1G= and a count for each node", part)
		}
		h := HugePages{Size: size}
		for count := range strings.SplitSeq(counts, ",") {
			n, err := strconv.Atoi(count)
			if err != nil || n < 0 {
				return nil, fmt.Errorf("huge pages %q: %q is no count", part, count)
			}
			h.PerNode = append(h.PerNode, n)
		}
		all = append(all, h)
	}
	return all, nil
}

// Named finds a named shape.
func Named(name string) (Shape, error) {
	all := table()
	s, ok := all[name]
	if !ok {
		return Shape{}, fmt.Errorf("no shape is called %q; there are %s", name, strings.Join(slices.Sorted(maps.Keys(all)), ", "))
	}
	s.Name = name
	return s, nil
}

// even makes nodes with CPUs in order.
func even(nodes, cpus, memoryMiB int) []Node {
	all := make([]Node, nodes)
	for i := range all {
		all[i] = Node{cpuset.Range(i*cpus, (i+1)*cpus-1), memoryMiB}
	}
	return all
}

// flat gives all pairs the same distance.
func flat(far int) func(a, b int) int {
	return func(int, int) int { return far }
}

// grouped gives nodes of one group of the given size the distance 12, others 20.
func grouped(size int) func(a, b int) int {
	return func(a, b int) int {
		if a/size == b/size {
			return 12
		}
		return 20
	}
}
