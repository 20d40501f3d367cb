// Package cases has what hack/kubeletbench measures: requests as plain values, which each program turns into those of its own
// packages, and the loop that measures them (Serve).
//
// It is compiled into the module of a kubelet, too, so it imports only the standard library.
package cases

import (
	"fmt"
	"math/bits"
)

// Every machine has two sockets, and these on each NUMA node.
const (
	Sockets        = 2
	CoresPerNode   = 32
	ThreadsPerCore = 2
	CPUsPerNode    = CoresPerNode * ThreadsPerCore
	MemoryPerNode  = 64 << 30
	DevicesPerNode = 2 // of each resource
)

// The system has CPU 0 and this much memory of node 0.
const (
	ReservedCPU    = 0
	ReservedMemory = 1 << 30
)

// Resources are those of the device plugins.
var Resources = []string{"example.com/gpu", "example.com/nic"}

// The policies of the topology manager that are measured.
const (
	BestEffort     = "best-effort"
	Restricted     = "restricted"
	SingleNUMANode = "single-numa-node"
)

// Case is a merge of lists of hints, or the decision about a pod.
type Case struct {
	Operation string
	Nodes     int
	Policy    string
	// Preferred is whether there is a preferred result.
	Preferred bool
	// Lists are the hints of each resource; nil for a decision.
	Lists [][]Hint
	// Held are pods that are there already, pod i on NUMA node i. Pod is the pod to decide about.
	Held []Pod
	Pod  Pod
	// Devices is whether there are devices at all.
	Devices bool
}

// Hint is a set of NUMA nodes, as bits.
type Hint struct {
	Nodes     uint64
	Preferred bool
}

// Pod has one container with exclusive CPUs, memory and one device of each resource.
type Pod struct {
	UID    string
	CPUs   int
	Memory int64
}

// Container is the name of a pod's container.
const Container = "main"

// CPU is a CPU of the machine.
type CPU struct{ ID, Core, Node, Socket int }

// CPUs are those of a machine with a number of nodes. The first threads of all cores come before the second ones.
func CPUs(nodes int) []CPU {
	var all []CPU
	for core := range nodes * CoresPerNode {
		node := core / CoresPerNode
		for thread := range ThreadsPerCore {
			all = append(all, CPU{ID: core + thread*nodes*CoresPerNode, Core: core, Node: node, Socket: node * Sockets / nodes})
		}
	}
	return all
}

// Device is the id of a device of a node.
func Device(node, i int) string { return fmt.Sprintf("%02d-%d", node, i) }

// Name tells the cases apart.
func (c Case) Name() string { return fmt.Sprintf("%s/%d", c.Operation, c.Nodes) }

// All returns the cases in the order of the table.
func All() []Case {
	var all []Case
	for _, lists := range []int{1, 2, 3, 5} {
		all = append(all, merges(BestEffort, lists, true)...)
		all = append(all, merges(BestEffort, lists, false)...)
	}
	all = append(all, merges(SingleNUMANode, 5, true)...)
	all = append(all, merges(SingleNUMANode, 5, false)...)
	for _, devices := range []bool{false, true} {
		all = append(all, decisions("empty machine", Restricted, true, devices, func(int) []Pod { return nil })...)
		all = append(all, decisions("half of the nodes full", Restricted, true, devices,
			func(nodes int) []Pod { return held(nodes/2, CPUsPerNode-1) })...)
		all = append(all, decisions("4 CPUs free on each node", BestEffort, false, devices,
			func(nodes int) []Pod { return held(nodes, CPUsPerNode-4) })...)
	}
	return all
}

var nodeCounts = []int{2, 4, 6, 8}

func result(preferred bool) string {
	if preferred {
		return "preferred"
	}
	return "not preferred"
}

// merges are of lists that name every set of nodes. If there is no preferred result, the resources prefer one node and two by turns,
// and a single resource prefers nothing.
func merges(policy string, lists int, preferred bool) []Case {
	var all []Case
	for _, nodes := range nodeCounts {
		c := Case{
			Operation: fmt.Sprintf("merge, %s, lists: %d, %s", policy, lists, result(preferred)),
			Nodes:     nodes, Policy: policy, Preferred: preferred,
		}
		for i := range lists {
			size := 1
			if !preferred {
				size += i % 2
			}
			var list []Hint
			for set := uint64(1); set < 1<<nodes; set++ {
				list = append(list, Hint{set, bits.OnesCount64(set) == size && (preferred || lists > 1)})
			}
			c.Lists = append(c.Lists, list)
		}
		all = append(all, c)
	}
	return all
}

// decisions are about a pod of 6 CPUs. Where no node has 6 CPUs, no result is preferred.
func decisions(state, policy string, preferred, devices bool, held func(nodes int) []Pod) []Case {
	what := "CPU and memory"
	if devices {
		what = "CPU, memory and 2 devices"
	}
	var all []Case
	for _, nodes := range nodeCounts {
		all = append(all, Case{
			Operation: fmt.Sprintf("decision, %s, %s, %s, %s", what, policy, state, result(preferred)),
			Nodes:     nodes, Policy: policy, Preferred: preferred,
			Held: held(nodes), Pod: Pod{"pod", 6, 4 << 30}, Devices: devices,
		})
	}
	return all
}

// held are n pods. The first node has a CPU less, which is reserved.
func held(n, cpus int) []Pod {
	var all []Pod
	for i := range n {
		all = append(all, Pod{fmt.Sprint("held", i), cpus, 4 << 30})
	}
	return all
}
