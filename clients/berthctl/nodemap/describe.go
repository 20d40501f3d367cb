package nodemap

import "slices"

// Description is a map as data. Sets of CPUs and NUMA nodes are lists such as "0-3,8".
type Description struct {
	Revision uint64       `json:"revision"`
	Nodes    []NodeData   `json:"nodes"`
	Pods     []PodData    `json:"pods"`
	Devices  []DeviceData `json:"devices"`
	Offline  string       `json:"offlineCPUs"`
}

// NodeData is a NUMA node. Reserved CPUs are also shared, unless the policy's option strict-cpu-reservation is set.
type NodeData struct {
	ID       int    `json:"id"`
	Sockets  []int  `json:"sockets"`
	CPUs     string `json:"cpus"`
	Shared   string `json:"sharedCPUs"`
	Reserved string `json:"reservedCPUs"`
	// ForClaims are the reserved CPUs that claims on dynamic resources may have, or have.
	ForClaims string       `json:"claimCPUs,omitempty"`
	Memory    []MemoryData `json:"memory"`
}

// MemoryData is memory, or huge pages of a size, in bytes.
type MemoryData struct {
	Resource    string  `json:"resource"`
	Reserved    uint64  `json:"reservedBytes"`
	Allocatable uint64  `json:"allocatableBytes"`
	Held        uint64  `json:"heldBytes"`
	KernelFree  *uint64 `json:"kernelFreeBytes,omitempty"`
}

// PodData is a pod with what it holds, the largest pod first.
type PodData struct {
	UID    string      `json:"uid"`
	Name   string      `json:"name"`
	CPUs   string      `json:"exclusiveCPUs"`
	Memory []BlockData `json:"memory"`
	New    bool        `json:"new"`
	// Claim marks a claim on dynamic resources; UsedBy are the containers that use it.
	Claim  bool     `json:"claim,omitempty"`
	UsedBy []string `json:"usedBy,omitempty"`
}

// BlockData is memory that a pod holds somewhere on NUMA nodes.
type BlockData struct {
	Resource string `json:"resource"`
	Nodes    string `json:"nodes"`
	Bytes    uint64 `json:"bytes"`
}

// DeviceData is a device; pod is empty if none holds it.
type DeviceData struct {
	Resource string `json:"resource"`
	ID       string `json:"id"`
	Nodes    string `json:"nodes"`
	Healthy  bool   `json:"healthy"`
	Pod      string `json:"podUid"`
}

// Describe returns a state as data.
func Describe(s State) Description {
	p := newPlan(s)
	out := Description{
		Revision: s.Revision, Offline: s.Offline.String(),
		Nodes: []NodeData{}, Pods: []PodData{}, Devices: []DeviceData{},
	}
	for id := range s.Machine.NodeMask().All() {
		cpus := s.Machine.CPUsInNode(id)
		n := NodeData{
			ID: id, Sockets: slices.Clip(append([]int{}, s.Machine.SocketsOf(cpus)...)), CPUs: cpus.String(),
			Shared: cpus.Intersect(s.Shared).String(), Reserved: cpus.Intersect(s.Reserved).String(),
			ForClaims: cpus.Intersect(s.ForClaims).String(), Memory: []MemoryData{},
		}
		for _, m := range s.Memory {
			if m.Node == id {
				n.Memory = append(n.Memory, MemoryData{m.Resource, m.Reserved, m.Allocatable, m.Held, m.KernelFree})
			}
		}
		out.Nodes = append(out.Nodes, n)
	}
	for _, pod := range p.pods {
		d := PodData{UID: pod.UID, Name: pod.Name, CPUs: pod.CPUs.String(), Memory: []BlockData{}, New: pod.New, Claim: pod.Claim,
			UsedBy: pod.UsedBy}
		for _, b := range pod.Blocks {
			d.Memory = append(d.Memory, BlockData{b.Resource, b.Nodes.String(), b.Bytes})
		}
		out.Pods = append(out.Pods, d)
	}
	for _, d := range s.Devices {
		out.Devices = append(out.Devices, DeviceData{d.Resource, d.ID, d.Nodes.String(), d.Healthy, d.Pod})
	}
	return out
}
