package convert

import (
	"google.golang.org/protobuf/types/known/timestamppb"

	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/managers/cgroup"
	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/machine"
	"github.com/berthd/berth/managers/workload"
)

// Hint returns the message form of an affinity; nil for none.
func Hint(a *ledger.Affinity) *typesv1.TopologyHint {
	if a == nil {
		return nil
	}
	out := &typesv1.TopologyHint{Preferred: a.Preferred}
	if !a.Any {
		out.NumaNodes = Mask(a.Nodes)
	}
	return out
}

// Hints returns the message form of a list of affinities.
func Hints(list []ledger.Affinity) []*typesv1.TopologyHint {
	if len(list) == 0 {
		return nil
	}
	// Every answer to Admit has some of these: one piece of memory for each kind.
	out, hints, masks := make([]*typesv1.TopologyHint, len(list)), make([]typesv1.TopologyHint, len(list)), make([]typesv1.NUMANodeSet, len(list))
	nodes := 0
	for i := range list {
		nodes += list[i].Nodes.Len()
	}
	ids := make([]uint32, 0, nodes)
	for i := range list {
		out[i], hints[i].Preferred = &hints[i], list[i].Preferred
		if list[i].Any {
			continue
		}
		first := len(ids)
		for id := range list[i].Nodes.All() {
			ids = append(ids, uint32(id))
		}
		hints[i].NumaNodes, masks[i].Ids = &masks[i], ids[first:len(ids):len(ids)]
	}
	return out
}

// Claims returns the message form of claims. Plugins' answers stay behind: they
// are for runtimes, by Allocate.
func Claims(claims []ledger.Claim) []*typesv1.Claim {
	out := make([]*typesv1.Claim, len(claims))
	for i := range claims {
		out[i] = Claim(&claims[i])
	}
	return out
}

// Claim returns the message form of a claim; nil for none.
func Claim(c *ledger.Claim) *typesv1.Claim {
	if c == nil {
		return nil
	}
	out := &typesv1.Claim{
		PodUid: c.Owner.Pod, ContainerName: c.Owner.Container,
		Provider: c.Provider, Resource: c.Resource,
		Affinity: Hint(c.Affinity),
	}
	switch {
	case c.CPUs != nil:
		out.Payload = &typesv1.Claim_Cpu{Cpu: &typesv1.CPUClaim{Cpus: CPUSet(c.CPUs.Set), Sharing: sharings[c.CPUs.Use]}}
	case len(c.Memory) > 0:
		m := &typesv1.MemoryClaim{Blocks: make([]*typesv1.MemoryBlock, len(c.Memory))}
		for i, b := range c.Memory {
			m.Blocks[i] = &typesv1.MemoryBlock{NumaNodes: Mask(b.Nodes), Bytes: b.Bytes}
		}
		out.Payload = &typesv1.Claim_Memory{Memory: m}
	case c.Devices != nil:
		d := &typesv1.DeviceClaim{Devices: make([]*typesv1.Device, len(c.Devices.Devices))}
		for i := range c.Devices.Devices {
			d.Devices[i] = Device(c.Devices.Devices[i])
		}
		out.Payload = &typesv1.Claim_Device{Device: d}
	case len(c.Opaque) > 0:
		out.Payload = &typesv1.Claim_Opaque{Opaque: c.Opaque}
	}
	return out
}

var sharings = map[ledger.CPUUse]typesv1.CPUSharing{
	ledger.CPUExclusive:    typesv1.CPUSharing_CPU_SHARING_EXCLUSIVE,
	ledger.CPUPod:          typesv1.CPUSharing_CPU_SHARING_POD,
	ledger.CPUPodExclusive: typesv1.CPUSharing_CPU_SHARING_POD_EXCLUSIVE,
	ledger.CPUPodShared:    typesv1.CPUSharing_CPU_SHARING_POD_SHARED,
}

// Device returns the message form of a device; Health adds how it is.
func Device(d ledger.Device) *typesv1.Device {
	out := &typesv1.Device{Id: d.ID}
	if d.Topology {
		out.NumaNodes = Mask(d.Nodes)
	}
	return out
}

// Container returns what one container of an admitted pod got, as the view has
// it.
func Container(view *ledger.View, pod *ledger.Pod, name string) *typesv1.ContainerAllocation {
	return container(view, pod, name, containerIDs(view, pod))
}

// Containers returns what the containers of an admitted pod got, in admission
// order.
func Containers(view *ledger.View, pod *ledger.Pod) []*typesv1.ContainerAllocation {
	return containers(view, pod, containerIDs(view, pod))
}

// containerIDs returns the runtime's ids of each container of a pod, oldest first.
func containerIDs(view *ledger.View, pod *ledger.Pod) map[ledger.Owner][]string {
	ids := make(map[ledger.Owner][]string)
	for b := range view.BindingsOf(pod.UID()) {
		ids[b.Owner] = append(ids[b.Owner], b.ID)
	}
	return ids
}

// cgroupParent returns the cgroup of a pod; a resource claim has none.
func cgroupParent(pod *ledger.Pod) string {
	if pod.Pod.ResourceClaim != nil {
		return ""
	}
	return pod.CgroupParent
}

// Allocation returns an admitted pod with everything it holds.
func Allocation(view *ledger.View, pod *ledger.Pod) *typesv1.PodAllocation {
	out := &typesv1.PodAllocation{
		Uid: pod.UID(), Namespace: pod.Pod.Namespace, Name: pod.Pod.Name,
		QosClass: QoS(pod.QoS), CgroupParent: cgroupParent(pod),
		Containers:  Containers(view, pod),
		AdmissionId: pod.AdmissionID, AdmitTime: timestamppb.New(pod.AdmittedAt),
		Owner: pod.Agent(), Moving: pod.Move != nil,
	}
	if pod.Move != nil {
		out.MoveReason = pod.Move.Reason
	}
	if claim := pod.Pod.ResourceClaim; claim != nil {
		out.ResourceClaimNodes = SomeNodes(claim.Nodes())
		for _, p := range claim.Pods {
			out.ResourceClaimPods = append(out.ResourceClaimPods, &typesv1.ClaimPod{Name: p.Name, Uid: p.UID})
		}
	}
	for i := range pod.Claims {
		if pod.Claims[i].Owner.Container == "" {
			out.Claims = append(out.Claims, bare(&pod.Claims[i]))
		}
	}
	return out
}

func containers(view *ledger.View, pod *ledger.Pod, ids map[ledger.Owner][]string) []*typesv1.ContainerAllocation {
	var out []*typesv1.ContainerAllocation
	for _, c := range pod.Pod.Walk() {
		out = append(out, container(view, pod, c.Name, ids))
	}
	return out
}

func container(view *ledger.View, pod *ledger.Pod, name string, ids map[ledger.Owner][]string) *typesv1.ContainerAllocation {
	owner := ledger.Owner{Pod: pod.UID(), Container: name}
	out := &typesv1.ContainerAllocation{
		ContainerName: name, Affinity: Hint(pod.Affinity(name)), ContainerIds: ids[owner],
	}
	if c := pod.Pod.Container(name); c != nil {
		out.Role, out.ExternalDevices = roles[c.Role], externalDevices(c.ExternalDevices)
		if len(c.Requests)+len(c.Limits) > 0 {
			out.Resources = requirements(c.Requests, c.Limits, c.Excess)
		}
	}
	if now := cgroup.ContainerCpuset(view, owner).Mems; pod.Move != nil || now != pod.MemoryNodes(name) {
		out.MemoryNodes = SomeNodes(now)
	}
	for i := range pod.Claims {
		c := &pod.Claims[i]
		if c.Owner != owner {
			continue
		}
		out.Claims = append(out.Claims, bare(c))
		out.NodeMemory = append(out.NodeMemory, nodeMemory(c)...)
		if c.CPUs != nil {
			out.Cpus, out.ExclusiveCpus = CPUSet(c.CPUs.Set), c.CPUs.Use != ledger.CPUPodShared
		}
		if out.GetExclusiveCpus() && c.CPUs != nil {
			out.CpuLocations = cpuLocations(view.Machine(), c.CPUs.Set)
		}
	}
	return out
}

// bare returns the message form of a claim without its owner, which is around it.
func bare(c *ledger.Claim) *typesv1.Claim {
	out := Claim(c)
	out.PodUid, out.ContainerName = "", ""
	return out
}

// cpuLocations returns where CPUs are, without those that the machine has no more.
func cpuLocations(m *machine.Topology, cpus cpuset.Set) []*typesv1.CPULocation {
	out, each := make([]*typesv1.CPULocation, 0, cpus.Len()), make([]typesv1.CPULocation, cpus.Len())
	for id := range cpus.All() {
		if cpu, known := m.CPU(id); known {
			l := &each[len(out)]
			l.Cpu, l.Core, l.NumaNode = uint32(id), uint32(cpu.Core), uint32(cpu.Node)
			out = append(out, l)
		}
	}
	return out
}

// nodeMemory returns how a claim's memory is divided among nodes.
func nodeMemory(c *ledger.Claim) (out []*typesv1.NodeMemory) {
	for _, b := range c.Memory {
		parts := b.Parts
		if len(parts) == 0 {
			lowest, _ := b.Nodes.Lowest()
			parts = []ledger.Part{{Node: lowest, Bytes: b.Bytes}}
		}
		for _, part := range parts {
			out = append(out, &typesv1.NodeMemory{Resource: c.Resource, NumaNode: uint32(part.Node), Bytes: part.Bytes})
		}
	}
	return out
}

var roles = map[workload.Role]typesv1.ContainerRole{
	workload.Init:    typesv1.ContainerRole_CONTAINER_ROLE_INIT,
	workload.Sidecar: typesv1.ContainerRole_CONTAINER_ROLE_SIDECAR,
	workload.App:     typesv1.ContainerRole_CONTAINER_ROLE_APP,
}
