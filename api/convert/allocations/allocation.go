package allocations

import (
	"slices"

	"google.golang.org/protobuf/types/known/timestamppb"

	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/api/convert"
	"github.com/berthd/berth/managers/cgroup"
	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/machine"
	"github.com/berthd/berth/managers/workload"
)

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
	var ids map[ledger.Owner][]string
	for b := range view.BindingsOf(pod.UID()) {
		if ids == nil {
			ids = map[ledger.Owner][]string{}
		}
		ids[b.Owner] = append(ids[b.Owner], b.ID)
	}
	return ids
}

// CgroupParent returns the cgroup of a pod; a resource claim has none.
func CgroupParent(pod *ledger.Pod) string {
	if pod.Pod.ResourceClaim != nil {
		return ""
	}
	return pod.CgroupParent
}

// Pod returns an admitted pod with everything it holds.
func Pod(view *ledger.View, pod *ledger.Pod) *typesv1.PodAllocation {
	out := &typesv1.PodAllocation{
		Uid: pod.UID(), Namespace: pod.Pod.Namespace, Name: pod.Pod.Name,
		QosClass: convert.QoS(pod.QoS), CgroupParent: CgroupParent(pod),
		Containers:  Containers(view, pod),
		AdmissionId: pod.AdmissionID, AdmitTime: timestamppb.New(pod.AdmittedAt),
		Owner: pod.Agent(), Moving: pod.Move != nil,
	}
	if pod.Move != nil {
		out.MoveReason = pod.Move.Reason
	}
	ofPod(out, pod)
	return out
}

// ofPod adds what a pod, or a resource claim, has as a whole.
func ofPod(out *typesv1.PodAllocation, pod *ledger.Pod) {
	if claim := pod.Pod.ResourceClaim; claim != nil {
		out.ResourceClaimNodes = convert.SomeNodes(claim.Nodes())
		for _, p := range claim.Pods {
			out.ResourceClaimPods = append(out.ResourceClaimPods, &typesv1.ClaimPod{Name: p.Name, Uid: p.UID})
		}
	}
	for i := range pod.Claims {
		if pod.Claims[i].Owner.Container == "" {
			out.Claims = append(out.Claims, bare(&pod.Claims[i]))
		}
	}
}

// Unadmitted returns what is known of a running pod that a view's ledger does not have. Its containers are those with claims or ids.
func Unadmitted(view *ledger.View, u *ledger.UnknownLivePod) *typesv1.PodAllocation {
	pod, ids := u.Held(), map[ledger.Owner][]string{}
	var names []string
	for _, b := range u.Bindings {
		owner := ledger.Owner{Pod: u.UID, Container: b.Container}
		ids[owner], names = append(ids[owner], b.ID), append(names, b.Container)
	}
	for i := range pod.Claims {
		if name := pod.Claims[i].Owner.Container; name != "" {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	out := &typesv1.PodAllocation{Uid: u.UID, Namespace: u.Namespace, Name: u.Name, QosClass: convert.QoS(u.QoS)}
	if owner, known := u.Agent(); known {
		out.Owner = owner
	}
	for _, name := range slices.Compact(names) {
		out.Containers = append(out.Containers, container(view, pod, name, ids))
	}
	ofPod(out, pod)
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
		ContainerName: name, Affinity: convert.Hint(pod.Affinity(name)), ContainerIds: ids[owner],
	}
	if c := pod.Pod.Container(name); c != nil {
		out.Role, out.ExternalDevices = roles[c.Role], convert.ExternalDevices(c.ExternalDevices)
		if len(c.Requests)+len(c.Limits) > 0 {
			out.Resources = convert.Requirements(c.Requests, c.Limits, c.Excess)
		}
	}
	if now := cgroup.ContainerCpuset(view, owner).Mems; pod.Move != nil || now != pod.MemoryNodes(name) {
		out.MemoryNodes = convert.SomeNodes(now)
	}
	for i := range pod.Claims {
		c := &pod.Claims[i]
		if c.Owner != owner {
			continue
		}
		out.Claims = append(out.Claims, bare(c))
		out.NodeMemory = append(out.NodeMemory, nodeMemory(c)...)
		if c.CPUs != nil {
			out.Cpus, out.ExclusiveCpus = convert.CPUSet(c.CPUs.Set), c.CPUs.Use != ledger.CPUPodShared
		}
		if out.GetExclusiveCpus() && c.CPUs != nil {
			out.CpuLocations = cpuLocations(view.Machine(), c.CPUs.Set)
		}
	}
	return out
}

// bare returns the message form of a claim without its owner, which is around it.
func bare(c *ledger.Claim) *typesv1.Claim {
	out := convert.Claim(c)
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
