package ledger

import (
	"math"
	"math/bits"
	"slices"

	"github.com/berthd/berth/managers/internal/ordered"
	"github.com/berthd/berth/managers/machine"
	"github.com/berthd/berth/managers/numa"
	"github.com/berthd/berth/managers/workload"
)

// NodeBytes are amounts by NUMA node id.
type NodeBytes [numa.MaxNodes]uint64

// MemoryUse is the total of all memory claims. It does not depend on the order of claims,
// so it is the same after a restart.
//
// An init container's claim keeps its size when later containers take over its memory, so
// both claims cover the same bytes. For each resource and group of nodes, a pod counts with
// the claims of its sidecars and app containers, plus the part of its init containers that
// is not taken over yet. If a pod has pod-level memory, its containers' claims are parts of
// it and do not count.
//
// A block on NUMA nodes of which some are gone is on its other nodes: the container may use only these. If there are none, the
// block is nowhere.
type MemoryUse struct {
	// Blocks is the number of blocks on each node, including empty ones.
	Blocks [numa.MaxNodes]int
	// Groups has, for each node, the nodes of the narrowest block on it; empty without a
	// block.
	Groups [numa.MaxNodes]numa.Mask
	held   ordered.Map[string, *NodeBytes]
	// gone are nodes with blocks that the machine does not have, and instead has for each of them a node that takes what they
	// have; -1 for none.
	gone    numa.Mask
	instead [numa.MaxNodes]int
}

// Held returns the claimed amount of a resource, by node.
func (u *MemoryUse) Held(resource string) (bytes NodeBytes) {
	if held, ok := u.held.Get(resource); ok {
		bytes = *held
	}
	for id := range u.gone.All() {
		if on := u.instead[id]; on >= 0 {
			bytes[on] = AddBytes(bytes[on], bytes[id])
		}
		bytes[id] = 0
	}
	return bytes
}

// MemoryUse returns the total of the pods' memory claims, with those of resource claims if both have one pool (Rules.OnePool).
// Its cost is that of Requests.
func (v *View) MemoryUse() *MemoryUse {
	known := v.facts.sums.knownMemory()
	total := known.pods
	if v.rules.OnePool {
		total = total.and(known.claimed)
	}
	return total.use(v.Machine().NodeMask())
}

// ResourceClaimMemory returns the total of the memory that resource claims hold; its cost is that of
// Requests.
func (v *View) ResourceClaimMemory() *MemoryUse {
	total := v.facts.sums.knownMemory().claimed
	return total.use(v.Machine().NodeMask())
}

// everyNode are the nodes of a machine of which no node is gone.
const everyNode = ^numa.Mask(0)

// use returns the total on a machine that has some nodes.
func (u *memoryHeld) use(machine numa.Mask) *MemoryUse {
	use := &MemoryUse{held: u.held}
	for nodes, blocks := range u.groups.All() {
		gone := nodes.Minus(machine)
		nodes = nodes.Intersect(machine)
		for id := range gone.All() {
			first, ok := nodes.Lowest()
			switch {
			case use.gone.Contains(id) && use.instead[id] >= 0:
			case ok:
				use.instead[id] = first
			default:
				use.instead[id] = -1
			}
			use.gone = use.gone.With(id)
		}
		for id := range nodes.All() {
			use.Blocks[id] += blocks
			if use.Groups[id] == 0 || nodes.NarrowerThan(use.Groups[id]) {
				use.Groups[id] = nodes
			}
		}
	}
	return use
}

// memoryHeld is the total of the memory claims in a form that can be updated.
type memoryHeld struct {
	groups ordered.Map[numa.Mask, int]     // number of blocks on exactly these nodes
	held   ordered.Map[string, *NodeBytes] // by resource; the amounts are immutable
}

// and returns the total of two totals.
func (u memoryHeld) and(o memoryHeld) memoryHeld {
	for nodes, blocks := range o.groups.All() {
		has, _ := u.groups.Get(nodes)
		u.groups = u.groups.Set(nodes, has+blocks)
	}
	for resource, held := range o.held.All() {
		u.amount(resource, held, true)
	}
	return u
}

// memoryKey names the memory of a resource on a group of nodes.
type memoryKey struct {
	resource string
	nodes    numa.Mask
}

// change adds or removes the claims of a pod; see sums.change.
func (u *memoryHeld) change(p *Pod, add bool) (exact bool) {
	if p.Move != nil {
		held := *p
		held.Claims, held.Move = p.held(), nil
		p = &held
	}
	whole := slices.ContainsFunc(p.Claims, func(c Claim) bool { return c.Owner.Container == "" && len(c.Memory) > 0 })
	exact = true
	names := p.Pod.Names()
	var few [4]blockCount
	counts := few[:0]
	var two [2]memoryOf
	lasting := two[:0]
	var handedOn []memoryKey
	for i := range p.Claims {
		c := &p.Claims[i]
		if len(c.Memory) == 0 || whole && c.Owner.Container != "" {
			continue
		}
		at := names.At(c.Owner.Container)
		feeds := at >= 0 && p.Pod.Containers[at].Role.Feeds()
		for _, b := range c.Memory {
			counts = counted(counts, b.Nodes)
			key := memoryKey{c.Resource, b.Nodes}
			switch {
			case !feeds:
				k := 0
				for k < len(lasting) && lasting[k].resource != c.Resource {
					k++
				}
				if k == len(lasting) {
					lasting = append(lasting, memoryOf{resource: c.Resource})
				}
				b.addTo(&lasting[k].bytes)
			case !slices.Contains(handedOn, key):
				handedOn = append(handedOn, key)
			}
		}
	}
	for _, c := range counts {
		u.count(c, add)
	}
	for i := range lasting {
		exact = u.amount(lasting[i].resource, &lasting[i].bytes, add) && exact
	}
	for _, key := range handedOn {
		left := p.memoryClaims(names, key.resource).reusable(p, "", key.nodes)
		exact = u.amount(key.resource, &left, add) && exact
	}
	return exact
}

// memoryOf is what containers have of a resource that run for their pod's life.
type memoryOf struct {
	resource string
	bytes    NodeBytes
}

// blockCount is a number of blocks on exactly some nodes.
type blockCount struct {
	nodes  numa.Mask
	blocks int
}

// counted counts one more block.
func counted(counts []blockCount, nodes numa.Mask) []blockCount {
	for i := range counts {
		if counts[i].nodes == nodes {
			counts[i].blocks++
			return counts
		}
	}
	return append(counts, blockCount{nodes, 1})
}

// count adds or removes blocks.
func (u *memoryHeld) count(c blockCount, add bool) {
	blocks, _ := u.groups.Get(c.nodes)
	if add {
		u.groups = u.groups.Set(c.nodes, blocks+c.blocks)
	} else if blocks > c.blocks {
		u.groups = u.groups.Set(c.nodes, blocks-c.blocks)
	} else {
		u.groups = u.groups.Delete(c.nodes)
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

// ReusableMemory returns the memory of a resource on exactly the given nodes that the init
// containers before a container pass on to it; with an empty name, the rest after all
// containers.
func (p *Pod) ReusableMemory(container, resource string, nodes numa.Mask) NodeBytes {
	if !p.Pod.HasInit() {
		return NodeBytes{}
	}
	return p.memoryClaims(p.Pod.Names(), resource).reusable(p, container, nodes)
}

func (m memoryClaims) reusable(p *Pod, container string, nodes numa.Mask) (bytes NodeBytes) {
	for id := range nodes.All() {
		bytes[id] = workload.Reusable(&p.Pod, container, m.on(nodes, id), larger, without)
	}
	return bytes
}

// BorrowableMemory returns the memory of a resource on exactly the given nodes that an init container may use of its pod's,
// if the containers that run for the pod's life are planned already.
func (p *Pod) BorrowableMemory(container, resource string, nodes numa.Mask) (bytes NodeBytes) {
	claims := p.memoryClaims(p.Pod.Names(), resource)
	for id := range nodes.All() {
		bytes[id] = workload.Borrowable(&p.Pod, container, claims.on(nodes, id), larger, AddBytes, without)
	}
	return bytes
}

// memoryClaims are the claims of a pod's containers on one resource, by the index of the container; nil where it has none.
type memoryClaims []*Claim

func (p *Pod) memoryClaims(names workload.Names, resource string) memoryClaims {
	out := make(memoryClaims, len(p.Pod.Containers))
	for i := range p.Claims {
		c := &p.Claims[i]
		if c.Resource != resource {
			continue
		}
		if at := names.At(c.Owner.Container); at >= 0 && out[at] == nil {
			out[at] = c
		}
	}
	return out
}

// on gives what a container has on one node, in blocks on exactly some nodes.
func (m memoryClaims) on(nodes numa.Mask, id int) func(at int) uint64 {
	return func(at int) (bytes uint64) {
		if m[at] == nil {
			return 0
		}
		for i := range m[at].Memory {
			if b := &m[at].Memory[i]; b.Nodes == nodes {
				bytes = AddBytes(bytes, b.on(id))
			}
		}
		return bytes
	}
}

// larger is the union of the memory that two init containers pass on. They run one after
// another, so the second uses the memory of the first.
func larger(a, b uint64) uint64 { return max(a, b) }

// without is the rest of a after a container has taken b.
func without(a, b uint64) uint64 { return a - min(a, b) }

// Total returns the sum over all nodes.
func (n *NodeBytes) Total() (sum uint64) {
	for _, bytes := range n {
		sum = AddBytes(sum, bytes)
	}
	return sum
}

func (n *NodeBytes) add(o *NodeBytes) {
	for i := range n {
		n[i] = AddBytes(n[i], o[i])
	}
}

// subtract subtracts an added amount, and returns whether the result is exact. A sum that
// was limited by its maximum cannot be reduced.
func (n *NodeBytes) subtract(o *NodeBytes) (exact bool) {
	exact = true
	for i := range n {
		exact = exact && (o[i] == 0 || n[i] < math.MaxUint64)
		n[i] -= o[i]
	}
	return exact
}

// addTo adds a block's bytes to their nodes.
func (b *Block) addTo(n *NodeBytes) {
	if len(b.Parts) == 0 {
		if id, ok := b.Nodes.Lowest(); ok {
			n[id] = AddBytes(n[id], b.Bytes)
		}
		return
	}
	for _, part := range b.Parts {
		if part.Node >= 0 && part.Node < len(n) {
			n[part.Node] = AddBytes(n[part.Node], part.Bytes)
		}
	}
}

// on is the part of the block assigned to one node.
func (b *Block) on(id int) (sum uint64) {
	if len(b.Parts) == 0 {
		if lowest, _ := b.Nodes.Lowest(); lowest == id {
			return b.Bytes
		}
		return 0
	}
	for _, part := range b.Parts {
		if part.Node == id {
			sum = AddBytes(sum, part.Bytes)
		}
	}
	return sum
}

// On returns the part of the block assigned to some nodes.
func (b *Block) On(nodes numa.Mask) (sum uint64) {
	var bytes NodeBytes
	b.addTo(&bytes)
	for id := range nodes.All() {
		sum = AddBytes(sum, bytes[id])
	}
	return sum
}

// Whole returns whether a block's parts are on its nodes, in order, and have its size as
// their sum.
func (b *Block) Whole() bool {
	if len(b.Parts) == 0 {
		return true
	}
	last, sum := -1, uint64(0)
	for _, part := range b.Parts {
		if part.Node <= last || !b.Nodes.Contains(part.Node) {
			return false
		}
		last, sum = part.Node, AddBytes(sum, part.Bytes)
	}
	return sum == b.Bytes
}

// PresentMemory returns the bytes of a memory resource that NUMA nodes have, by node id. Regular memory is without the
// huge pages. ok is false if the resource is not memory or the machine's amount is unknown.
func PresentMemory(m *machine.Topology, resource workload.Resource) (bytes NodeBytes, ok bool) {
	size, err := workload.HugePageSize(resource)
	for _, node := range m.Nodes() {
		var all uint64
		for _, pages := range node.HugePages {
			hi, lo := bits.Mul64(pages.Count, pages.SizeKiB<<10)
			if hi != 0 {
				lo = math.MaxUint64
			}
			all = AddBytes(all, lo)
			if err == nil && pages.SizeKiB == uint64(size)/1024 {
				bytes[node.ID] = lo
			}
		}
		if resource == workload.Memory {
			bytes[node.ID] = node.MemoryBytes - min(node.MemoryBytes, all)
			ok = ok || node.MemoryBytes > 0
		} else {
			ok = err == nil
		}
	}
	return bytes, ok
}

// AddBytes adds amounts up to the largest value, so that damaged amounts cannot overflow to
// plausible ones.
func AddBytes(a, b uint64) uint64 {
	sum, carry := bits.Add64(a, b, 0)
	if carry != 0 {
		return math.MaxUint64
	}
	return sum
}
