package fit

import (
	"cmp"
	"slices"

	"github.com/berthd/berth/managers/cpu"
	"github.com/berthd/berth/managers/device"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/machine"
	"github.com/berthd/berth/managers/managerset"
	"github.com/berthd/berth/managers/memory"
	"github.com/berthd/berth/managers/workload"
)

// Node has the amounts of a NUMA node by resource.
type Node struct {
	ID int
	// Resources by name.
	Resources []Resource
}

// Resource is the amount of a resource on a NUMA node.
type Resource struct {
	Name                             string
	Capacity, Allocatable, Available uint64
	// Held is the part of Allocatable that pods hold. The rest is available, unless the node is used together
	// with others.
	Held uint64
	// Aligned is false for a resource that is not placed on NUMA nodes.
	Aligned bool
}

// Nodes returns the amounts of the NUMA nodes of a view's machine, by id. A device that is near to
// several nodes counts on each of them, and a device that is near to none on no node.
func Nodes(view *ledger.View, set *managerset.Set, devices *device.Snapshot) []Node {
	m := view.Machine()
	states, free := set.Memory.State(view), device.Available(view, devices)
	var out []Node
	for _, n := range m.Nodes() {
		node := Node{ID: n.ID, Resources: deviceAmounts(devices, free, n.ID)}
		node.Resources = append(node.Resources, cpuAmount(view, set.CPU, n.ID))
		if at := slices.IndexFunc(states, func(s memory.NodeState) bool { return s.Node == n.ID }); at >= 0 {
			node.Resources = append(node.Resources, memoryAmounts(states[at])...)
		} else {
			node.Resources = append(node.Resources, unalignedMemory(n)...)
		}
		slices.SortFunc(node.Resources, func(a, b Resource) int { return cmp.Compare(a.Name, b.Name) })
		out = append(out, node)
	}
	return out
}

// cpuAmount counts CPUs. Under the policy none all pods share all CPUs, so pods do not reduce the amount.
func cpuAmount(view *ledger.View, m *cpu.Manager, node int) Resource {
	here := view.Machine().CPUsInNode(node)
	allocatable := here.Intersect(view.AllocatableCPUs())
	out := Resource{
		Name: string(workload.CPU), Aligned: m.Describe().Policy != cpu.PolicyNone,
		Capacity: uint64(here.Len()), Allocatable: uint64(allocatable.Len()), Available: uint64(allocatable.Len()),
	}
	if out.Aligned {
		out.Available = uint64(allocatable.IntersectLen(m.Available(view)))
	}
	out.Held = out.Allocatable - out.Available
	return out
}

// memoryAmounts are the amounts of the memory manager. Memory of a node that is used together with
// others is not available to a request on this node alone.
func memoryAmounts(s memory.NodeState) (out []Resource) {
	for _, r := range s.Resources {
		one := Resource{Name: r.Resource, Aligned: true, Capacity: r.Total, Allocatable: r.Allocatable, Available: r.Free, Held: r.Held}
		if s.Group.Len() > 1 {
			one.Available = 0
		}
		out = append(out, one)
	}
	return out
}

// unalignedMemory is a node's memory if no manager places memory.
func unalignedMemory(n machine.Node) []Resource {
	var pages uint64
	var out []Resource
	for _, p := range n.HugePages {
		bytes := p.Count * p.SizeKiB << 10
		pages += bytes
		name := workload.HugePagesOf(int64(p.SizeKiB) << 10)
		out = append(out, Resource{Name: string(name), Capacity: bytes, Allocatable: bytes, Available: bytes})
	}
	left := n.MemoryBytes - min(pages, n.MemoryBytes)
	return append(out, Resource{Name: string(workload.Memory), Capacity: n.MemoryBytes, Allocatable: left, Available: left})
}

// deviceAmounts counts the devices that are near to a node.
func deviceAmounts(devices *device.Snapshot, free map[string][]device.Device, node int) (out []Resource) {
	for r := range devices.Resources() {
		one := Resource{Name: r.Name, Aligned: true}
		for _, d := range r.Devices {
			if !d.Nodes.Contains(node) {
				continue
			}
			one.Capacity++
			if r.Healthy(d) {
				one.Allocatable++
			}
		}
		for _, d := range free[r.Name] {
			if d.Nodes.Contains(node) {
				one.Available++
			}
		}
		if one.Held = one.Allocatable - one.Available; one.Capacity > 0 {
			out = append(out, one)
		}
	}
	return out
}
