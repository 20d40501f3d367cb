package nodemap

import (
	"cmp"
	"slices"
	"strings"

	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/machine"
	"github.com/berthd/berth/managers/numa"
)

// State holds what a map shows.
type State struct {
	Machine *machine.Topology
	// Offline are the CPUs that are not online. CPUs outside of the machine's data are listed
	// above the map, because their position is unknown.
	Offline cpuset.Set
	// Reserved are the CPUs that are never exclusive. Shared are the CPUs of containers without
	// exclusive CPUs. ForClaims are the reserved CPUs that claims on dynamic resources may have.
	Reserved, Shared, ForClaims cpuset.Set
	Pods                        []Pod
	Memory                      []Memory
	Devices                     []Device
	// Revision of the allocations; 0 is not shown.
	Revision uint64
}

// Pod is a pod with what it holds, or a claim on dynamic resources, which holds what others have reserved.
type Pod struct {
	UID string
	// Name is namespace/name.
	Name string
	// CPUs are the exclusive CPUs of the pod and of its containers.
	CPUs   cpuset.Set
	Blocks []Block
	// New marks a pod that a map is to point out.
	New bool
	// Claim marks a claim on dynamic resources. UsedBy are the containers that use it.
	Claim  bool
	UsedBy []string
}

// Block is memory, or huge pages of a size, that a pod holds on NUMA nodes. It may lie
// anywhere on them.
type Block struct {
	Resource string
	Nodes    numa.Mask
	Bytes    uint64
}

// Memory counts what a NUMA node has of memory, or of huge pages of a size, in bytes.
type Memory struct {
	Node     int
	Resource string
	// Reserved is not for pods, and has what claims hold. Held is the part of the rest that pods hold.
	Reserved, Allocatable, Held uint64
	// KernelFree is the kernel's free amount; nil if unknown.
	KernelFree *uint64
}

// Device is a device of a plugin.
type Device struct {
	Resource, ID string
	// Nodes are the NUMA nodes near the device; none if unknown.
	Nodes   numa.Mask
	Healthy bool
	// Pod is the uid of the pod that holds the device; empty if none does.
	Pod string
}

// use is what a CPU is used for.
type use struct {
	kind useKind
	pod  int // index in the order of signs; with exclusive and broken
}

type useKind uint8

const (
	unknown useKind = iota
	shared
	reserved
	forClaims // reserved, and free for claims on dynamic resources
	offline
	exclusive
	broken // exclusive and offline
)

// plan is a state prepared for drawing.
type plan struct {
	State
	// pods in the order of their signs, the largest first.
	pods  []Pod
	podOf map[string]int
	uses  map[int]use
}

func newPlan(s State) *plan {
	p := &plan{State: s, pods: slices.Clone(s.Pods), podOf: map[string]int{}, uses: map[int]use{}}
	devices := map[string]int{}
	for _, d := range s.Devices {
		devices[d.Pod]++
	}
	slices.SortFunc(p.pods, func(a, b Pod) int {
		return cmp.Or(
			-cmp.Compare(a.CPUs.Len(), b.CPUs.Len()), -cmp.Compare(a.bytes(), b.bytes()), -cmp.Compare(devices[a.UID], devices[b.UID]),
			strings.Compare(a.Name, b.Name), strings.Compare(a.UID, b.UID))
	})
	for id := range s.Machine.CPUs().All() {
		switch {
		case s.Offline.Contains(id):
			p.uses[id] = use{kind: offline}
		case s.ForClaims.Contains(id):
			p.uses[id] = use{kind: forClaims}
		case s.Reserved.Contains(id):
			p.uses[id] = use{kind: reserved}
		case s.Shared.Contains(id):
			p.uses[id] = use{kind: shared}
		}
	}
	for i, pod := range p.pods {
		p.podOf[pod.UID] = i
		for id := range pod.CPUs.All() {
			kind := exclusive
			if s.Offline.Contains(id) {
				kind = broken
			}
			p.uses[id] = use{kind, i}
		}
	}
	return p
}

// bytes is the sum of what a pod holds of memory and huge pages.
func (p Pod) bytes() (sum uint64) {
	for _, b := range p.Blocks {
		sum += b.Bytes
	}
	return sum
}

// sharesReserved reports whether containers without exclusive CPUs run on reserved CPUs, too.
func (p *plan) sharesReserved() bool { return p.Shared.Overlaps(p.Reserved) }

// count returns how many of the machine's CPUs are used in a way.
func (p *plan) count(kinds ...useKind) (n int) {
	for id := range p.Machine.CPUs().All() {
		if slices.Contains(kinds, p.uses[id].kind) {
			n++
		}
	}
	return n
}

// part is a pod's share of an amount.
type part struct {
	pod    int
	amount uint64
}

// held divides what pods hold of a resource on a node: first blocks that lie on it alone,
// then blocks on several nodes as far as they fit in what the node counts as held.
func (p *plan) held(m Memory) []part {
	parts, left := p.parts(m, m.Held, false)
	if left > 0 {
		parts = append(parts, part{-1, left})
	}
	return parts
}

// claimed divides the reserved amount of a resource on a node: what claims hold, and the rest.
func (p *plan) claimed(m Memory) (parts []part, rest uint64) { return p.parts(m, m.Reserved, true) }

// parts divides an amount among the pods, or among the claims, that hold of a resource on a node.
func (p *plan) parts(m Memory, left uint64, claims bool) (parts []part, rest uint64) {
	for _, alone := range []bool{true, false} {
		for i, pod := range p.pods {
			for _, b := range pod.Blocks {
				if pod.Claim != claims || b.Resource != m.Resource || !b.Nodes.Contains(m.Node) || (b.Nodes.Len() == 1) != alone {
					continue
				}
				amount := min(b.Bytes, left)
				left -= amount
				if amount > 0 {
					parts = append(parts, part{i, amount})
				}
			}
		}
	}
	return parts, left
}
