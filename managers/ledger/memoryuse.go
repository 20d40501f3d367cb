package ledger

import (
	"slices"
	"sync"

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
	held   map[string]*NodeBytes
}

// Held returns what is held of a resource, by node.
func (u *MemoryUse) Held(resource string) NodeBytes {
	if held := u.held[resource]; held != nil {
		return *held
	}
	return NodeBytes{}
}

// lazyUse is worked out by the first who asks.
type lazyUse struct {
	once sync.Once
	use  MemoryUse
}

func (l *lazyUse) of(base map[string]*Pod) *MemoryUse {
	l.once.Do(func() {
		l.use.held = make(map[string]*NodeBytes)
		for _, p := range base {
			l.use.pod(p)
		}
	})
	return &l.use
}

// MemoryUse returns what the memory claims hold. Views share it: it must not be
// changed. A draft that only adds pods, as an admission does, adds to what its
// base holds.
func (v *View) MemoryUse() *MemoryUse {
	base := v.pods.facts().use.of(v.pods.base)
	if len(v.pods.changes) == 0 {
		return base
	}
	added := &MemoryUse{Blocks: base.Blocks, Groups: base.Groups, held: make(map[string]*NodeBytes, len(base.held))}
	for resource, held := range base.held {
		added.held[resource] = new(*held)
	}
	for uid, p := range v.pods.changes {
		if old := v.pods.base[uid]; old != nil && slices.ContainsFunc(old.Claims, func(c Claim) bool { return len(c.Memory) > 0 }) {
			flat := v.pods.flat()
			return flat.facts().use.of(flat.base)
		}
		if p != nil {
			added.pod(p)
		}
	}
	return added
}

// pod adds the claims of a pod.
func (u *MemoryUse) pod(p *Pod) {
	whole := slices.ContainsFunc(p.Claims, func(c Claim) bool { return c.Owner.Container == "" && len(c.Memory) > 0 })
	var handedOn []memoryKey
	for i := range p.Claims {
		c := &p.Claims[i]
		if len(c.Memory) == 0 || whole && c.Owner.Container != "" {
			continue
		}
		container := p.Pod.Container(c.Owner.Container)
		feeds := container != nil && container.Role.Feeds()
		for _, b := range c.Memory {
			for id := range b.Nodes.All() {
				u.Blocks[id]++
				if u.Groups[id] == 0 || b.Nodes.NarrowerThan(u.Groups[id]) {
					u.Groups[id] = b.Nodes
				}
			}
			key := memoryKey{c.Resource, b.Nodes}
			switch {
			case !feeds:
				b.addTo(u.of(c.Resource))
			case !slices.Contains(handedOn, key):
				handedOn = append(handedOn, key)
			}
		}
	}
	for _, key := range handedOn {
		left := p.ReusableMemory("", key.resource, key.nodes)
		u.of(key.resource).add(&left)
	}
}

func (u *MemoryUse) of(resource string) *NodeBytes {
	held := u.held[resource]
	if held == nil {
		held = new(NodeBytes)
		u.held[resource] = held
	}
	return held
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
