package transition

import (
	"slices"

	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/numa"
)

// find returns the index of the pod's claim with the owner, provider and resource of another one, or -1.
func find(pod *ledger.Pod, c *ledger.Claim) int {
	return slices.IndexFunc(pod.Claims, func(o ledger.Claim) bool {
		return o.Key() == c.Key()
	})
}

// same compares the payloads of two claims.
func same(a, b *ledger.Claim) bool {
	if a.CPUs != nil {
		return *a.CPUs == *b.CPUs
	}
	return slices.EqualFunc(a.Memory, b.Memory, ledger.Block.Equal)
}

func equal(a, b []ledger.Claim) bool {
	return slices.EqualFunc(a, b, func(a, b ledger.Claim) bool { return same(&a, &b) })
}

// wholeMemory returns whether a pod has memory as a whole.
func wholeMemory(pod *ledger.Pod) bool {
	return slices.ContainsFunc(pod.Claims, func(c ledger.Claim) bool { return c.Owner.Container == "" && c.Memory != nil })
}

// Place tells where claims are.
type Place struct {
	CPUs cpuset.Set
	// Nodes are the NUMA nodes of memory.
	Nodes numa.Mask
}

// Placed returns the CPUs and memory nodes of claims.
func Placed(claims []ledger.Claim) Place { return Place{cpusOf(claims), nodesOf(claims)} }

func cpusOf(claims []ledger.Claim) (set cpuset.Set) {
	for i := range claims {
		if claims[i].CPUs != nil {
			set = set.Union(claims[i].CPUs.Set)
		}
	}
	return set
}

func nodesOf(claims []ledger.Claim) (mask numa.Mask) {
	for i := range claims {
		mask = mask.Union(ledger.NodesOf(claims[i].Memory))
	}
	return mask
}

// bytesOf returns the bytes that blocks count on each node.
func bytesOf(blocks []ledger.Block) (out ledger.NodeBytes) {
	for i := range blocks {
		for id := range blocks[i].Nodes.All() {
			out[id] += blocks[i].On(numa.Of(id))
		}
	}
	return out
}

// leaving returns the most bytes that claims may have on nodes that they will not have. from are the claims before the first
// step. Memory of several nodes may be on any of them: the amounts of the ledger by node only count it.
func leaving(from, have, want []ledger.Claim) (sum uint64) {
	for i := range have {
		if ledger.NodesOf(have[i].Memory).IsSubsetOf(ledger.NodesOf(want[i].Memory)) {
			continue
		}
		for _, b := range from[i].Memory {
			sum += b.Bytes
		}
	}
	return sum
}

func withCPUs(c ledger.Claim, set cpuset.Set) ledger.Claim {
	c.CPUs = &ledger.CPUs{Set: set, Use: c.CPUs.Use}
	return c
}

// widened returns claims with their present and their future resources. Claims without further
// resources are returned unchanged.
func widened(have, want []ledger.Claim, part bool) []ledger.Claim {
	out := slices.Clone(have)
	for i := range out {
		switch {
		case same(&have[i], &want[i]):
		case have[i].CPUs != nil:
			if !want[i].CPUs.Set.IsSubsetOf(have[i].CPUs.Set) {
				out[i] = withCPUs(have[i], have[i].CPUs.Set.Union(want[i].CPUs.Set))
			}
		default:
			out[i].Memory = widenedMemory(have[i].Memory, want[i].Memory, part)
		}
	}
	return out
}

// widenedMemory adds blocks for future memory that is not claimed yet, by node. Parts of a pod's memory are not
// counted by node, so only their sum grows.
func widenedMemory(have, want []ledger.Block, part bool) []ledger.Block {
	counted := bytesOf(have)
	there := ledger.NodesOf(have)
	var held uint64
	for _, b := range have {
		held += b.Bytes
	}
	out := have
	for _, b := range want {
		var more ledger.Block
		if part {
			more = ledger.Block{Nodes: b.Nodes, Bytes: b.Bytes - min(b.Bytes, held)}
			held -= min(b.Bytes, held)
		} else {
			more = missing(b, &counted)
		}
		if more.Bytes > 0 || !b.Nodes.IsSubsetOf(there) {
			out = append(slices.Clone(out), more)
			there = there.Union(b.Nodes)
		}
	}
	return out
}

// missing returns the part of a block that is not counted on its nodes yet.
func missing(b ledger.Block, counted *ledger.NodeBytes) ledger.Block {
	out := ledger.Block{Nodes: b.Nodes}
	for id := range b.Nodes.All() {
		bytes := b.On(numa.Of(id))
		have := min(bytes, counted[id])
		counted[id] -= have
		if bytes > have {
			out.Parts = append(out.Parts, ledger.Part{Node: id, Bytes: bytes - have})
			out.Bytes += bytes - have
		}
	}
	if lowest, _ := out.Nodes.Lowest(); len(out.Parts) == 1 && out.Parts[0].Node == lowest {
		out.Parts = nil
	}
	return out
}
