package check

import (
	"cmp"
	"maps"
	"slices"

	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/numa"
	"github.com/berthd/berth/managers/workload"
)

// memorySums collects, for each resource and group of nodes, the minimum memory of all pods
// together.
type memorySums struct {
	pods map[memoryKey]uint64
	own  []ownMemory // of the current pod; kept for its capacity
}

type memoryKey struct {
	resource string
	nodes    numa.Mask
}

// ownMemory is the memory of one pod on one group of nodes. An init container passes its
// memory on. So the pod has at least the larger of the sum of its other containers and the
// largest init container, whether or not the planner has shrunk the blocks that were passed
// on.
type ownMemory struct {
	memoryKey
	running uint64
	init    uint64
}

// podMemory checks the memory claims of a pod and adds them to the sums. If the pod has
// pod-level memory, its containers' blocks are parts of it and do not count.
func (c *checker) podMemory(p *ledger.Pod) {
	own := c.memory.own[:0]
	for i := range p.Claims {
		claim := &p.Claims[i]
		if len(claim.Memory) == 0 || !c.checks(i) {
			continue
		}
		container, ok := c.find(p, claim.Owner)
		if !ok {
			continue // reported already
		}
		// Claims of the pod as a whole come first.
		if p.Claims[0].Owner.Container == "" && container != nil {
			if whole, ok := p.Claim("", claim.Resource); ok && len(whole.Memory) > 0 {
				c.partOfPod(claim, whole.Memory)
				continue
			}
		}
		for _, b := range claim.Memory {
			// What is on nodes that are gone must be on the other nodes. Without other nodes, RuleVanished says it.
			if key := (memoryKey{claim.Resource, b.Nodes.Intersect(c.rules.Machine.NodeMask())}); !key.nodes.IsEmpty() ||
				b.Nodes.IsEmpty() {
				at := slices.IndexFunc(own, func(o ownMemory) bool { return o.memoryKey == key })
				if at < 0 {
					at = len(own)
					own = append(own, ownMemory{memoryKey: key})
				}
				if container != nil && container.Role.Feeds() {
					own[at].init = max(own[at].init, b.Bytes)
				} else {
					own[at].running = ledger.AddBytes(own[at].running, b.Bytes)
				}
			}
			if b.Nodes.IsEmpty() {
				c.add(Structural, RulePayload, claim.Owner, ledger.Owner{}, claim.Resource,
					"memory of %s on %s is on no NUMA node", claim.Owner, claim.Resource)
			}
			if !b.Whole() {
				c.add(Structural, RulePayload, claim.Owner, ledger.Owner{}, claim.Resource,
					"%d bytes of %s on NUMA nodes %s are divided among other nodes, or are not the sum of their parts: %v",
					b.Bytes, claim.Owner, b.Nodes, b.Parts)
			}
			if gone := b.Nodes.Minus(c.rules.Machine.NodeMask()); !gone.IsEmpty() {
				c.add(Policy, RuleVanished, claim.Owner, ledger.Owner{}, claim.Resource,
					"NUMA nodes %s of %s are not there", gone, claim.Owner)
			}
		}
	}
	if len(own) > 0 && c.memory.pods == nil {
		c.memory.pods = make(map[memoryKey]uint64)
	}
	for _, o := range own {
		c.memory.pods[o.memoryKey] = ledger.AddBytes(c.memory.pods[o.memoryKey], max(o.running, o.init))
	}
	c.memory.own = own
}

// partOfPod checks that a container's blocks are within its pod's blocks. Containers
// without their own memory all record the same shared rest. So the sum of the parts may
// exceed the whole, but no single part does.
func (c *checker) partOfPod(claim *ledger.Claim, whole []ledger.Block) {
	var nodes numa.Mask
	var total, part uint64
	for _, b := range whole {
		nodes, total = nodes.Union(b.Nodes), ledger.AddBytes(total, b.Bytes)
	}
	for _, b := range claim.Memory {
		part = ledger.AddBytes(part, b.Bytes)
		if !b.Nodes.IsSubsetOf(nodes) {
			c.add(Structural, RuleContained, claim.Owner, ledger.Owner{Pod: claim.Owner.Pod}, claim.Resource,
				"memory of %s is on NUMA nodes %s, its pod's is on %s", claim.Owner, b.Nodes, nodes)
		}
	}
	if part > total {
		c.add(Structural, RuleContained, claim.Owner, ledger.Owner{Pod: claim.Owner.Pod}, claim.Resource,
			"%s holds %d bytes of %s, its pod only %d", claim.Owner, part, claim.Resource, total)
	}
}

// memorySums compares the memory of nodes with the blocks confined to them, for every group
// of nodes of a block and for all nodes together. Blocks that also have nodes outside the
// group do not count, because their memory may be there. The test is necessary for any set
// of blocks. It is sufficient if groups are equal or disjoint, as the planner makes them.
func (c *checker) memorySums() {
	keys := slices.SortedFunc(maps.Keys(c.memory.pods), func(a, b memoryKey) int {
		return cmp.Or(cmp.Compare(a.resource, b.resource), cmp.Compare(a.nodes, b.nodes))
	})
	if len(keys) == 0 {
		return
	}
	machine := c.rules.Machine
	for first := 0; first < len(keys); {
		resource := keys[first].resource
		end := first
		groups := []numa.Mask{machine.NodeMask()}
		for ; end < len(keys) && keys[end].resource == resource; end++ {
			groups = append(groups, keys[end].nodes)
		}
		if memory, ok := ledger.PresentMemory(machine, workload.Resource(resource)); ok {
			slices.SortFunc(groups, func(a, b numa.Mask) int { return cmp.Or(cmp.Compare(a.Len(), b.Len()), cmp.Compare(a, b)) })
			var short []shortGroup
			for _, group := range slices.Compact(groups) {
				short = c.memorySum(group, memory, keys[first:end], short)
			}
		}
		first = end
	}
}

// shortGroup is a group of nodes of which more is held than it has.
type shortGroup struct {
	nodes  numa.Mask
	excess uint64
}

// memorySum makes the comparison for one group of nodes, after all smaller ones; all keys have the same
// resource. Of a shortage that groups within this one have together, there is no other finding. It returns
// the groups of findings.
func (c *checker) memorySum(group numa.Mask, memory [numa.MaxNodes]uint64, keys []memoryKey, short []shortGroup) []shortGroup {
	var have, held, known uint64
	for id := range group.All() {
		have = ledger.AddBytes(have, memory[id])
	}
	for _, key := range keys {
		if key.nodes.IsSubsetOf(group) {
			held = ledger.AddBytes(held, c.memory.pods[key])
		}
	}
	var within numa.Mask
	for _, s := range slices.Backward(short) { // the largest first
		if s.nodes.IsSubsetOf(group) && !s.nodes.Overlaps(within) {
			within, known = within.Union(s.nodes), ledger.AddBytes(known, s.excess)
		}
	}
	if held <= have || held-have <= known {
		return short
	}
	c.add(Policy, RuleMemory, ledger.Owner{}, ledger.Owner{}, keys[0].resource,
		"%d bytes of %s are held on NUMA nodes %s, which have %d", held, keys[0].resource, group, have)
	return append(short, shortGroup{group, held - have})
}

// Overcommitment returns by how many bytes all pods together exceed what pods may have, on the
// NUMA nodes where a pod has memory. Unlike those of View, its cost does not grow with the
// number of pods.
func Overcommitment(v *ledger.View, uid string) (excess uint64) {
	p, ok := v.Pod(uid)
	if !ok {
		return 0
	}
	rules := v.Rules()
	var use *ledger.MemoryUse
	for i := range p.Claims {
		for _, b := range p.Claims[i].Memory {
			have, known := memoryOf(rules, p, p.Claims[i].Resource)
			if !known {
				continue
			}
			if use == nil && p.Pod.ResourceClaim != nil && !rules.OnePool {
				use = v.ResourceClaimMemory()
			} else if use == nil {
				use = v.MemoryUse()
			}
			held := use.Held(p.Claims[i].Resource)
			var holds, has uint64
			for id := range b.Nodes.All() {
				holds, has = ledger.AddBytes(holds, held[id]), ledger.AddBytes(has, have[id])
			}
			if holds > has {
				excess = ledger.AddBytes(excess, holds-has)
			}
		}
	}
	return excess
}

// memoryOf returns what pods, or resource claims if p is one, may have of a memory resource, by node
// id; the machine's whole memory if it is not allocated by node.
func memoryOf(r ledger.Rules, p *ledger.Pod, resource string) (bytes ledger.NodeBytes, ok bool) {
	list := r.Memory
	if p.Pod.ResourceClaim != nil {
		list = r.ClaimMemory
	}
	for _, m := range list {
		if m.Resource == resource && m.Node >= 0 && m.Node < len(bytes) {
			bytes[m.Node], ok = m.Allocatable, true
		}
	}
	if ok {
		return bytes, true
	}
	whole, ok := ledger.PresentMemory(r.Machine, workload.Resource(resource))
	return whole, ok
}
