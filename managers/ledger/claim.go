package ledger

import (
	"bytes"
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/machine"
	"github.com/berthd/berth/managers/numa"
)

// Affinity is a preference or a decision about NUMA nodes: a set of nodes, or, with Any, no
// preference (Nodes is then empty). Preferred means that no smaller set of nodes could
// serve the request on an idle machine. The zero value (no nodes, not Any, not preferred)
// is never the result of a merge.
type Affinity struct {
	Nodes     numa.Mask `json:"nodes"`
	Any       bool      `json:"any,omitempty"`
	Preferred bool      `json:"preferred,omitempty"`
}

// Owner is the owner of a claim: a container of a pod, or, with an empty Container, the pod
// as a whole.
type Owner struct {
	Pod       string `json:"pod"`
	Container string `json:"container,omitempty"`
}

// String prints the owner as "uid/container", or "uid" for a whole pod.
func (o Owner) String() string {
	if o.Container == "" {
		return o.Pod
	}
	return o.Pod + "/" + o.Container
}

// CPUUse is the way in which a CPU set is owned.
type CPUUse string

const (
	// CPUExclusive is a set taken from the node's shared pool for one container.
	CPUExclusive CPUUse = "exclusive"
	// CPUPod is a set taken from the node's shared pool for a pod as a whole
	// (KEP-5526); its containers' sets are parts of it.
	CPUPod CPUUse = "pod"
	// CPUPodExclusive is a container's own part of its pod's set.
	CPUPodExclusive CPUUse = "pod-exclusive"
	// CPUPodShared is the part of a pod's set that its containers without exclusive CPUs
	// share.
	CPUPodShared CPUUse = "pod-shared"
)

// CPUs is the payload of a claim on CPUs.
type CPUs struct {
	Set cpuset.Set `json:"set"`
	Use CPUUse     `json:"use"`
	// Admitted are the CPUs of the set that the owner has had since its admission, if a resize
	// has added others; else empty.
	Admitted cpuset.Set `json:"admitted,omitzero"`
}

// Block is an amount of one memory resource on a group of NUMA nodes. The memory may be on
// any of these nodes. Parts assign it to single nodes, so that sums by node do not depend
// on the order of claims.
type Block struct {
	Nodes numa.Mask `json:"nodes"`
	Bytes uint64    `json:"bytes"`
	// Parts are ordered by node, and their sum is Bytes. Without Parts, all of the block is
	// assigned to its lowest node; for a block on one node this is exact.
	Parts []Part `json:"parts,omitempty"`
}

// NodesOf returns the NUMA nodes of blocks.
func NodesOf(blocks []Block) (nodes numa.Mask) {
	for _, b := range blocks {
		nodes = nodes.Union(b.Nodes)
	}
	return nodes
}

// Part is the part of a block assigned to one node.
type Part struct {
	Node  int    `json:"node"`
	Bytes uint64 `json:"bytes"`
}

// Equal returns whether two blocks are the same.
func (b Block) Equal(o Block) bool {
	return b.Nodes == o.Nodes && b.Bytes == o.Bytes && slices.Equal(b.Parts, o.Parts)
}

// Device is one device of a claim with the NUMA nodes its plugin reported when
// it was allocated; Topology is false if the plugin reported none.
type Device struct {
	ID       string    `json:"id"`
	Nodes    numa.Mask `json:"nodes,omitempty"`
	Topology bool      `json:"topology,omitempty"`
}

// Devices is the payload of a claim on devices of one resource.
type Devices struct {
	// Devices in order of their ids.
	Devices []Device `json:"devices"`
	// Response is the plugin's ContainerAllocateResponse in wire form, set after the claim
	// is prepared. The ledger does not interpret it.
	Response []byte `json:"response,omitempty"`
	// Answer is the digest of the plugin's answer if its content is unknown, for example
	// for a pod taken over from its claim record.
	Answer string `json:"answer,omitempty"`
}

// IDs returns the device ids in stored order.
func (d *Devices) IDs() []string {
	ids := make([]string, len(d.Devices))
	for i, dev := range d.Devices {
		ids[i] = dev.ID
	}
	return ids
}

// InOrder returns whether there are devices, in the strict order of their ids.
func (d *Devices) InOrder() bool {
	return len(d.Devices) > 0 && slices.IsSortedFunc(d.Devices, func(a, b Device) int {
		return cmp.Or(cmp.Compare(a.ID, b.ID), -1) // so that equal ids are not in order
	})
}

// Claim is one allocation: the owner, the content, the provider that decided, and the
// affinity of the decision. Exactly one of the payloads is set. A claim is immutable after
// it was added to a draft, because several holders share it.
type Claim struct {
	Owner    Owner  `json:"owner"`
	Provider string `json:"provider"`
	Resource string `json:"resource"`
	// Affinity is the merge result that the plan followed; nil without a merge.
	Affinity *Affinity `json:"affinity,omitempty"`

	CPUs    *CPUs    `json:"cpus,omitempty"`
	Memory  []Block  `json:"memory,omitempty"`
	Devices *Devices `json:"devices,omitempty"`
	// Opaque is an external provider's own data; berth only stores it.
	Opaque []byte `json:"opaque,omitempty"`
}

// NUMANodes returns the NUMA nodes of the claim's CPUs, memory or devices.
func (c *Claim) NUMANodes(m *machine.Topology) numa.Mask {
	nodes := NodesOf(c.Memory)
	if c.CPUs != nil {
		nodes = nodes.Union(m.NodesOf(c.CPUs.Set))
	}
	if c.Devices != nil {
		for _, d := range c.Devices.Devices {
			nodes = nodes.Union(d.Nodes)
		}
	}
	return nodes
}

// ClaimKey identifies a claim in a pod.
type ClaimKey struct {
	Owner              Owner
	Provider, Resource string
}

// Key returns what identifies the claim in its pod.
func (c *Claim) Key() ClaimKey {
	return ClaimKey{Owner: c.Owner, Provider: c.Provider, Resource: c.Resource}
}

// SortClaims puts claims into the order of records.
func SortClaims(claims []Claim) { slices.SortFunc(claims, CompareClaims) }

// CompareClaims orders claims by owner, then resource, then provider: the order of records.
func CompareClaims(a, b Claim) int {
	switch {
	case a.Owner.Pod != b.Owner.Pod:
		return cmp.Compare(a.Owner.Pod, b.Owner.Pod)
	case a.Owner.Container != b.Owner.Container:
		return cmp.Compare(a.Owner.Container, b.Owner.Container)
	case a.Resource != b.Resource:
		return cmp.Compare(a.Resource, b.Resource)
	}
	return cmp.Compare(a.Provider, b.Provider)
}

// Content describes the content of the claim.
func (c *Claim) Content() string {
	switch {
	case c.CPUs != nil:
		return fmt.Sprintf("CPUs %s (%s)", c.CPUs.Set, c.CPUs.Use)
	case len(c.Memory) > 0:
		parts := make([]string, len(c.Memory))
		for i, b := range c.Memory {
			parts[i] = fmt.Sprintf("%d bytes of %s on NUMA nodes %s", b.Bytes, c.Resource, b.Nodes)
		}
		return strings.Join(parts, ", ")
	case c.Devices != nil:
		return c.Resource + " " + strings.Join(c.Devices.IDs(), ", ")
	}
	return "other " + c.Resource
}

// Payloads returns the number of payloads of a claim.
func (c *Claim) Payloads() (n int) {
	for _, is := range []bool{c.CPUs != nil, len(c.Memory) > 0, c.Devices != nil, len(c.Opaque) > 0} {
		if is {
			n++
		}
	}
	return n
}

// SameClaims returns whether two lists of claims are equal, without plugins' answers and
// affinities.
func SameClaims(a, b []Claim) bool {
	return slices.EqualFunc(a, b, func(a, b Claim) bool {
		return CompareClaims(a, b) == 0 && sameCPUs(a.CPUs, b.CPUs) && slices.EqualFunc(a.Memory, b.Memory, Block.Equal) &&
			sameDevices(a.Devices, b.Devices) && bytes.Equal(a.Opaque, b.Opaque)
	})
}

func sameCPUs(a, b *CPUs) bool { return a == b || a != nil && b != nil && *a == *b }

func sameDevices(a, b *Devices) bool {
	return a == b || a != nil && b != nil && slices.EqualFunc(a.Devices, b.Devices, func(a, b Device) bool { return a.ID == b.ID })
}
