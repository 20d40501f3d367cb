package ledger

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/numa"
)

// Affinity is a wish or a decision about NUMA placement: a set of nodes, or no
// opinion at all when Any is true (Nodes is then empty). Preferred says that the
// nodes are the narrowest that could serve the request on an idle machine. The
// zero value (no nodes, not Any, not preferred) never results from a merge.
type Affinity struct {
	Nodes     numa.Mask `json:"nodes"`
	Any       bool      `json:"any,omitempty"`
	Preferred bool      `json:"preferred,omitempty"`
}

// Owner names who holds a claim: a container of a pod, or with an empty
// Container the pod as a whole.
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

// CPUUse says in which way a CPU set is owned.
type CPUUse string

const (
	// CPUExclusive is a set taken from the node's shared pool for one container.
	CPUExclusive CPUUse = "exclusive"
	// CPUPod is a set taken from the node's shared pool for a pod as a whole
	// (KEP-5526); its containers' sets are parts of it.
	CPUPod CPUUse = "pod"
	// CPUPodExclusive is a container's own part of its pod's set.
	CPUPodExclusive CPUUse = "pod-exclusive"
	// CPUPodShared is the part of a pod's set that containers without CPUs of
	// their own share.
	CPUPodShared CPUUse = "pod-shared"
)

// CPUs is the payload of a claim on CPUs.
type CPUs struct {
	Set cpuset.Set `json:"set"`
	Use CPUUse     `json:"use"`
}

// Block is an amount of one memory resource held on a group of NUMA nodes. It may
// lie anywhere on its nodes; Parts say on which of them it was counted, so that
// sums by node follow from the claims in any order.
type Block struct {
	Nodes numa.Mask `json:"nodes"`
	Bytes uint64    `json:"bytes"`
	// Parts by ascending node, together Bytes. Without them all of the block is
	// counted on its lowest node, which for a block on one node is the whole
	// truth.
	Parts []Part `json:"parts,omitempty"`
}

// Part is what is counted of a block on one of its nodes.
type Part struct {
	Node  int    `json:"node"`
	Bytes uint64 `json:"bytes"`
}

// Equal tells whether two blocks are the same fact.
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
	// Response is the plugin's ContainerAllocateResponse in wire form, present
	// once the claim is prepared. The ledger does not look into it.
	Response []byte `json:"response,omitempty"`
	// Answer is the digest of the plugin's answer where its content is not known,
	// as of a pod that was taken over from its claim record.
	Answer string `json:"answer,omitempty"`
}

// IDs returns the device ids in the order they are kept.
func (d *Devices) IDs() []string {
	ids := make([]string, len(d.Devices))
	for i, dev := range d.Devices {
		ids[i] = dev.ID
	}
	return ids
}

// Claim is one fact of ownership: who holds what, by whose decision, and which
// affinity the decision followed. Exactly one of the payloads is set. A claim is
// never changed after it was added to a draft; holders share it.
type Claim struct {
	Owner    Owner  `json:"owner"`
	Provider string `json:"provider"`
	Resource string `json:"resource"`
	// Affinity is the merged hint that the plan followed; nil where no merge ran.
	Affinity *Affinity `json:"affinity,omitempty"`

	CPUs    *CPUs    `json:"cpus,omitempty"`
	Memory  []Block  `json:"memory,omitempty"`
	Devices *Devices `json:"devices,omitempty"`
	// Opaque is an outside provider's own description; berth only keeps it.
	Opaque []byte `json:"opaque,omitempty"`
}

// SortClaims puts claims into the order in which records keep them.
func SortClaims(claims []Claim) { slices.SortFunc(claims, compareClaims) }

// compareClaims orders claims by owner, then resource, then provider: the order
// in which records keep them.
func compareClaims(a, b Claim) int {
	return cmp.Or(
		cmp.Compare(a.Owner.Pod, b.Owner.Pod),
		cmp.Compare(a.Owner.Container, b.Owner.Container),
		cmp.Compare(a.Resource, b.Resource),
		cmp.Compare(a.Provider, b.Provider),
	)
}

// Holding says in words what the claim is about.
func (c *Claim) Holding() string {
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
