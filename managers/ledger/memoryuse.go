package ledger

import (
	"math"
	"slices"

	"github.com/berthd/berth/managers/internal/ordered"
	"github.com/berthd/berth/managers/numa"
	"github.com/berthd/berth/managers/workload"
)

// NodeBytes are amounts by NUMA node id.
type NodeBytes [numa.MaxNodes]uint64

// MemoryUse is what all memory claims hold together. It follows from the claims
// in any order, so it is the same after a restart.
//
// A container's claim keeps its size when a later container of the pod takes
// over what an init container leaves, and the two then lie on the same bytes: of
// a pod counts, for each resource and group of nodes, what its sidecars and app
// containers hold, and what its init containers still leave to others. Where a
// pod holds memory as a whole, its containers' claims are parts of that and do
// not count.
type MemoryUse struct {
	// Blocks counts by node id the blocks that a node is part of, empty ones
	// included.
	Blocks [numa.MaxNodes]int
	// Groups has by node id the nodes that are used together with a node: those
	// of the narrowest block on it. Empty where there is no block.
	Groups [numa.MaxNodes]numa.Mask
	held   ordered.Map[string, *NodeBytes]
}

// Held returns what is held of a resource, by node.
func (u *MemoryUse) Held(resource string) NodeBytes {
	if held, ok := u.held.Get(resource); ok {
		return *held
	}
	return NodeBytes{}
}

// MemoryUse returns what the memory claims hold; see Requests for what that costs.
func (v *View) MemoryUse() *MemoryUse {
	total := v.facts.sums.known().memory
	use := &MemoryUse{held: total.held}
	for nodes, blocks := range total.groups.All() {
		for id := range nodes.All() {
			use.Blocks[id] += blocks
			if use.Groups[id] == 0 || nodes.NarrowerThan(use.Groups[id]) {
				use.Groups[id] = nodes
			}
		}
	}
	return use
}

// memoryHeld is what memory claims hold together, as it is carried along.
type memoryHeld struct {
	groups ordered.Map[numa.Mask, int]     // how many blocks are on exactly these nodes
	held   ordered.Map[string, *NodeBytes] // by resource; the amounts do not change
}

// change adds the claims of a pod, or takes them out; see sums.change.
func (u *memoryHeld) change(p *Pod, add bool) (exact bool) {
	whole := slices.ContainsFunc(p.Claims, func(c Claim) bool { return c.Owner.Container == "" && len(c.Memory) > 0 })
	exact = true
	var handedOn []memoryKey
	for i := range p.Claims {
		c := &p.Claims[i]
		if len(c.Memory) == 0 || whole && c.Owner.Container != "" {
			continue
		}
		container := p.Pod.Container(c.Owner.Container)
		feeds := container != nil && container.Role.Feeds()
		for _, b := range c.Memory {
			u.count(b.Nodes, add)
			key := memoryKey{c.Resource, b.Nodes}
			switch {
			case !feeds:
				var own NodeBytes
				b.addTo(&own)
				exact = u.amount(c.Resource, &own, add) && exact
			case !slices.Contains(handedOn, key):
				handedOn = append(handedOn, key)
			}
		}
	}
	for _, key := range handedOn {
		left := p.ReusableMemory("", key.resource, key.nodes)
		exact = u.amount(key.resource, &left, add) && exact
	}
	return exact
}

// count counts a block.
func (u *memoryHeld) count(nodes numa.Mask, add bool) {
	blocks, _ := u.groups.Get(nodes)
	if add {
		u.groups = u.groups.Set(nodes, blocks+1)
	} else if blocks > 1 {
		u.groups = u.groups.Set(nodes, blocks-1)
	} else {
		u.groups = u.groups.Delete(nodes)
	}
}

func (u *memoryHeld) amount(resource string, own *NodeBytes, add bool) (exact bool) {
	var total NodeBytes
	if held, ok := u.held.Get(resource); ok {
		total = *held
	}
	exact = true
	if add {
		total.add(own)
	} else {
		exact = total.subtract(own)
	}
	if total == (NodeBytes{}) {
		u.held = u.held.Delete(resource)
	} else {
		u.held = u.held.Set(resource, &total)
	}
	return exact
}

// ReusableMemory returns what the init containers before a container leave to it
// of a resource on exactly the given nodes; with an empty name what is left when
// all containers have their memory.
func (p *Pod) ReusableMemory(container, resource string, nodes numa.Mask) NodeBytes {
	held := func(c *workload.Container) (bytes NodeBytes) {
		claim, _ := p.Claim(c.Name, resource)
		for _, b := range claim.Memory {
			if b.Nodes == nodes {
				b.addTo(&bytes)
			}
		}
		return bytes
	}
	return workload.Reusable(&p.Pod, container, held, larger, without)
}

// larger is the union of what two init containers leave: they run one after the
// other, so the second lies on what the first one had.
func larger(a, b NodeBytes) NodeBytes {
	for i := range a {
		a[i] = max(a[i], b[i])
	}
	return a
}

// without is what a container leaves of a.
func without(a, b NodeBytes) NodeBytes {
	for i := range a {
		a[i] -= min(a[i], b[i])
	}
	return a
}

// Total returns the sum over all nodes.
func (n *NodeBytes) Total() (sum uint64) {
	for _, bytes := range n {
		sum = saturate(sum, bytes)
	}
	return sum
}

func (n *NodeBytes) add(o *NodeBytes) {
	for i := range n {
		n[i] = saturate(n[i], o[i])
	}
}

// subtract takes out what was added, and tells whether the rest is exact: where a sum
// has stopped at its end nobody knows.
func (n *NodeBytes) subtract(o *NodeBytes) (exact bool) {
	exact = true
	for i := range n {
		exact = exact && (o[i] == 0 || n[i] < math.MaxUint64)
		n[i] -= o[i]
	}
	return exact
}

// addTo adds a block's bytes to the nodes on which they are counted.
func (b *Block) addTo(n *NodeBytes) {
	if len(b.Parts) == 0 {
		if id, ok := b.Nodes.Lowest(); ok {
			n[id] = saturate(n[id], b.Bytes)
		}
		return
	}
	for _, part := range b.Parts {
		if part.Node >= 0 && part.Node < len(n) {
			n[part.Node] = saturate(n[part.Node], part.Bytes)
		}
	}
}

// On returns what of the block is counted on some nodes.
func (b *Block) On(nodes numa.Mask) (sum uint64) {
	var bytes NodeBytes
	b.addTo(&bytes)
	for id := range nodes.All() {
		sum = saturate(sum, bytes[id])
	}
	return sum
}

// whole tells whether the parts of a block are on its nodes, in order, and
// together its size.
func (b *Block) whole() bool {
	if len(b.Parts) == 0 {
		return true
	}
	last, sum := -1, uint64(0)
	for _, part := range b.Parts {
		if part.Node <= last || !b.Nodes.Contains(part.Node) {
			return false
		}
		last, sum = part.Node, saturate(sum, part.Bytes)
	}
	return sum == b.Bytes
}
