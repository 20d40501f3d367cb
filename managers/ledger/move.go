package ledger

import (
	"slices"

	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/numa"
)

// Move is a change of a pod's claims in progress, from some to others. Until it ends, no other pod gets any of
// what the pod had, has or will have. A start continues the move.
type Move struct {
	// From are the claims before the first step, and To those after the last one, in the same
	// order, with the same owners, providers and resources. Claims of the pod that are not among
	// them stay. They are claims on CPUs or memory.
	From []Claim `json:"from"`
	To   []Claim `json:"to"`
	// Held are the claims of From with everything that the pod has at any step. They count like claims of
	// the pod. So every step remains possible, and every step back.
	Held []Claim `json:"held,omitempty"`
	// Migrating are the containers that may use only the memory nodes that they will have, so that
	// the kernel moves their memory there. They still claim the other nodes, too.
	Migrating []string `json:"migrating,omitempty"`
	// BytesPerSecond limits the memory that moves, on average; 0 is no limit.
	BytesPerSecond uint64 `json:"bytes_per_second,omitempty"`
	// SameAmounts is whether the pod's amounts are the same before and after the move, so that it can be
	// reversed. Canceled is whether it was.
	SameAmounts bool `json:"same_amounts,omitempty"`
	Canceled    bool `json:"canceled,omitempty"`
	// Stayed are the containers of a canceled move whose memory had not begun to leave its NUMA nodes. They may use the
	// other nodes no more, and the limit of bytes per second does not count for this.
	Stayed []string `json:"stayed,omitempty"`
	// Before is the digest of the pod before the resize that the move carries out. A resize back to it
	// reverses the move.
	Before string `json:"before,omitempty"`
	// Reason is why berth has begun a move that nobody requested for the pod.
	Reason string `json:"reason,omitempty"`
}

// ReversedMove returns the move back to what a moving pod had.
func (p *Pod) ReversedMove() Move {
	back := *p.Move
	back.From, back.To, back.Migrating, back.Canceled, back.Before = p.Move.To, p.Move.From, nil, true, ""
	for _, c := range p.Move.From {
		name := c.Owner.Container
		if c.Memory != nil && !slices.Contains(p.Move.Migrating, name) && !slices.Contains(back.Stayed, name) &&
			NodesOf(c.Memory).IsSubsetOf(p.MemoryNodes(name)) {
			back.Stayed = append(back.Stayed, name)
		}
	}
	return back
}

// held returns the claims of a pod as they count for others: those of a moving pod have everything that it has at any
// step.
func (p *Pod) held() []Claim {
	if p.Move == nil || len(p.Move.Held) == 0 {
		return p.Claims
	}
	out := slices.Clone(p.Claims)
	for i := range out {
		at := slices.IndexFunc(p.Move.Held, func(h Claim) bool {
			return h.Key() == out[i].Key()
		})
		if at < 0 {
			continue
		}
		have := out[i].CPUs
		if out[i] = p.Move.Held[at]; have != nil && out[i].CPUs != nil && !have.Set.IsSubsetOf(out[i].CPUs.Set) {
			out[i].CPUs = &CPUs{Set: out[i].CPUs.Set.Union(have.Set), Use: out[i].CPUs.Use}
		}
	}
	return out
}

// HeldCPUs returns the CPUs out of the node's shared pool that no other pod may have because of this one.
func (p *Pod) HeldCPUs() cpuset.Set {
	var set cpuset.Set
	claims := p.held()
	for i := range claims {
		if c := claims[i].CPUs; c.OfNode() {
			set = set.Union(c.Set)
		}
	}
	return set
}

// HeldMemory returns what no other pod may have of the memory of each NUMA node because this one moves, in addition to
// its claims.
func (p *Pod) HeldMemory(resource string) (more NodeBytes) {
	if p.Move == nil {
		return more
	}
	var held memoryHeld
	held.change(p, true)
	a, b := p.ClaimedMemory(resource), held.use(everyNode).Held(resource)
	for i := range more {
		more[i] = b[i] - min(a[i], b[i])
	}
	return more
}

// ClaimedMemory returns the memory of each NUMA node that counts for a pod's claims: what an init container passes on counts
// once.
func (p *Pod) ClaimedMemory(resource string) NodeBytes {
	resting := *p
	resting.Move = nil
	var claimed memoryHeld
	claimed.change(&resting, true)
	return claimed.use(everyNode).Held(resource)
}

// MemoryNodes returns the NUMA nodes that a container may use memory of; none means all, for a container
// without claims on memory. While its memory moves, they are those that it will have.
func (p *Pod) MemoryNodes(container string) (nodes numa.Mask) {
	claims := p.Claims
	if p.Move != nil && slices.Contains(p.Move.Migrating, container) {
		claims = p.Move.To
	}
	for i := range claims {
		if c := &claims[i]; c.Owner.Container == container {
			for _, b := range c.Memory {
				nodes = nodes.Union(b.Nodes)
			}
		}
	}
	return nodes
}

// AfterMove returns the pod with the claims that it has when its move has ended. A pod that does not move is
// returned as it is.
func (p *Pod) AfterMove() *Pod {
	if p.Move == nil {
		return p
	}
	out := *p
	out.Claims, out.Move = slices.Clone(p.Claims), nil
	for i := range out.Claims {
		c := &out.Claims[i]
		if at := slices.IndexFunc(p.Move.To, func(to Claim) bool {
			return to.Key() == c.Key()
		}); at >= 0 {
			*c = p.Move.To[at]
		}
	}
	return &out
}
