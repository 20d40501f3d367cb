package podresources

import (
	"cmp"
	"slices"

	v1 "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/numa"
)

// heldBy returns the claims of a container by resource; with an empty name the claims of the pod
// as a whole.
func heldBy(p *ledger.Pod, container string) []*ledger.Claim {
	var out []*ledger.Claim
	for i := range p.Claims {
		if p.Claims[i].Owner.Container == container {
			out = append(out, &p.Claims[i])
		}
	}
	return out
}

// container returns what one container holds, on a machine with some NUMA nodes.
func container(p *ledger.Pod, name string, nodes numa.Mask) *v1.ContainerResources {
	out := &v1.ContainerResources{Name: name}
	for _, c := range heldBy(p, name) {
		out.CpuIds = append(out.CpuIds, cpus(c)...)
		out.Memory = append(out.Memory, memory(c)...)
		if c.Devices != nil {
			out.Devices = append(out.Devices, devices(c.Resource, c.Devices.Devices)...)
		}
	}
	if c := p.Pod.Container(name); c != nil && len(c.ExternalDevices) > 0 {
		for resource, list := range external(c, nodes) {
			out.Devices = append(out.Devices, devices(resource, list)...)
		}
		slices.SortStableFunc(out.Devices, func(a, b *v1.ContainerDevices) int { return cmp.Compare(a.ResourceName, b.ResourceName) })
		out.DynamicResources = dynamic(p.Pod.Namespace, c)
	}
	return out
}

// cpus returns the CPUs of a claim unless they are shared by several containers.
func cpus(c *ledger.Claim) []int64 {
	if c.CPUs == nil || c.CPUs.Use == ledger.CPUPodShared {
		return nil
	}
	return ids(c.CPUs.Set)
}

func ids(s cpuset.Set) []int64 {
	out := make([]int64, 0, s.Len())
	for id := range s.All() {
		out = append(out, int64(id))
	}
	return out
}

// memory returns the blocks of a claim, each with all of its nodes.
func memory(c *ledger.Claim) []*v1.ContainerMemory {
	var out []*v1.ContainerMemory
	for _, b := range c.Memory {
		block := &v1.ContainerMemory{MemoryType: c.Resource, Size: b.Bytes, Topology: &v1.TopologyInfo{}}
		for id := range b.Nodes.All() {
			block.Topology.Nodes = append(block.Topology.Nodes, &v1.NUMANode{ID: int64(id)})
		}
		out = append(out, block)
	}
	return out
}

// nowhere is the node of an entry without topology.
const nowhere = -1

// entry is a device id with one of its nodes.
type entry struct {
	id   string
	node int
}

// entries splits devices, given by id, into entries by node and id; those
// without a node come first.
func entries(devices []ledger.Device) []entry {
	out := make([]entry, 0, len(devices))
	for _, d := range devices {
		if d.Nodes.IsEmpty() {
			out = append(out, entry{d.ID, nowhere})
		}
		for node := range d.Nodes.All() {
			out = append(out, entry{d.ID, node})
		}
	}
	slices.SortStableFunc(out, func(a, b entry) int { return cmp.Compare(a.node, b.node) })
	return out
}

// devices returns the entries of one resource in message form. Those without a
// node have no topology.
func devices(resource string, list []ledger.Device) []*v1.ContainerDevices {
	var out []*v1.ContainerDevices
	for _, e := range entries(list) {
		d := &v1.ContainerDevices{ResourceName: resource, DeviceIds: []string{e.id}}
		if e.node != nowhere {
			d.Topology = &v1.TopologyInfo{Nodes: []*v1.NUMANode{{ID: int64(e.node)}}}
		}
		out = append(out, d)
	}
	return out
}
