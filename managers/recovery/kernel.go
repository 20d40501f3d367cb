package recovery

import (
	"maps"
	"slices"

	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/numa"
	"github.com/berthd/berth/managers/workload"
)

// shown returns claims of the living pods' containers by uid, derived from the kernel's values.
// It is for pods without a ledger record and a claim record.
//
// A cpuset does not show whether its CPUs are exclusive. They count as exclusive, except in these
// cases:
//
//   - The pod's class has no exclusive CPUs.
//   - Reserved CPUs are among them. Those are never exclusive, and the shared pool
//     contains them unless the reservation is strict.
//   - A container of another pod uses some of them.
//   - No CPUs would remain for the shared pool.
func (r *recovery) shown() map[string][]ledger.Claim {
	known := r.knownCPUs()
	out := map[string][]ledger.Claim{}
	left := r.View.Rules().Machine.CPUs().Minus(known)
	for _, uid := range slices.Sorted(maps.Keys(r.pods)) {
		p := r.pods[uid]
		for _, c := range p.seen.Containers {
			if r.ownCPUs(p, c, known, left) {
				out[uid] = append(out[uid], ledger.Claim{
					Owner: ledger.Owner{Pod: uid, Container: c.Name}, Provider: "cpu", Resource: string(workload.CPU),
					CPUs: &ledger.CPUs{Set: c.CPUs, Use: ledger.CPUExclusive},
				})
			}
			if c.Mems.IsEmpty() || c.Mems == r.View.Rules().Machine.NodeMask() {
				continue
			}
			out[uid] = append(out[uid], ledger.Claim{
				Owner: ledger.Owner{Pod: uid, Container: c.Name}, Provider: "memory", Resource: string(workload.Memory),
				Memory: []ledger.Block{{Nodes: c.Mems, Bytes: c.MemoryBytes}},
			})
		}
	}
	return out
}

// knownCPUs are the exclusive CPUs according to the ledger and the claim records.
func (r *recovery) knownCPUs() cpuset.Set {
	var set cpuset.Set
	for _, p := range r.pods {
		claims := []ledger.Claim(nil)
		switch {
		case p.seen.Claims != nil:
			claims = p.seen.Claims.Claims
		case p.ledger != nil:
			claims = p.ledger.Claims
		case p.noted != nil:
			claims = p.noted.Claims
		}
		for i := range claims {
			if c := claims[i].CPUs; c != nil {
				set = set.Union(c.Set)
			}
		}
	}
	return set
}

// ownCPUs reports whether a container's CPUs count as exclusive.
func (r *recovery) ownCPUs(p *pod, c Container, known, left cpuset.Set) bool {
	rules := r.View.Rules()
	switch {
	case c.CPUs.IsEmpty(), p.seen.QoS != "" && p.seen.QoS != workload.Guaranteed:
		return false
	case c.CPUs.Overlaps(rules.ReservedCPUs), sharedOf(rules, left).IsSubsetOf(c.CPUs):
		return false
	case c.CPUs.Overlaps(known) && (p.noted == nil || !overlaps(p.noted.Claims, c.CPUs)):
		return false // its cpuset is of the time before these CPUs were allocated
	}
	for _, o := range r.pods {
		if o != p && slices.ContainsFunc(o.seen.Containers, func(other Container) bool {
			return other.CPUs.Overlaps(c.CPUs) &&
				!r.shares(o, other)
		}) {
			return false
		}
	}
	return true
}

// sharedOf returns the part of a set that the rules allow in the shared pool.
func sharedOf(rules ledger.Rules, set cpuset.Set) cpuset.Set {
	if rules.StrictReservation {
		return set.Minus(rules.ReservedCPUs)
	}
	return set
}

// shares reports whether a container of another pod certainly uses shared CPUs. Its cpuset may be
// outdated and contain CPUs that are exclusive to another container now.
func (r *recovery) shares(p *pod, c Container) bool {
	return p.seen.QoS != "" && p.seen.QoS != workload.Guaranteed || c.CPUs.Overlaps(r.View.Rules().ReservedCPUs)
}

func overlaps(claims []ledger.Claim, set cpuset.Set) bool {
	return slices.ContainsFunc(claims, func(c ledger.Claim) bool { return c.CPUs != nil && c.CPUs.Set.Overlaps(set) })
}

// Union returns the claims of both lists; where both have one of the same owner,
// resource and provider, it is about all that either is about.
func Union(a, b []ledger.Claim) []ledger.Claim {
	out := slices.Clone(a)
	for _, c := range b {
		i := slices.IndexFunc(out, func(have ledger.Claim) bool {
			return have.Key() == c.Key()
		})
		if i < 0 {
			out = append(out, c)
			continue
		}
		out[i] = unite(out[i], c)
	}
	ledger.SortClaims(out)
	return out
}

func unite(a, b ledger.Claim) ledger.Claim {
	switch {
	case a.CPUs != nil && b.CPUs != nil:
		a.CPUs = &ledger.CPUs{Set: a.CPUs.Set.Union(b.CPUs.Set), Use: a.CPUs.Use}
	case a.Devices != nil && b.Devices != nil && !slices.Equal(a.Devices.IDs(), b.Devices.IDs()):
		devices := slices.Clone(a.Devices.Devices)
		for _, d := range b.Devices.Devices {
			if !slices.Contains(a.Devices.IDs(), d.ID) {
				devices = append(devices, d)
			}
		}
		slices.SortFunc(devices, func(x, y ledger.Device) int {
			if x.ID < y.ID {
				return -1
			}
			return 1
		})
		a.Devices = &ledger.Devices{Devices: devices}
	case len(a.Memory) > 0 && len(b.Memory) > 0:
		a.Memory = uniteMemory(a.Memory, b.Memory)
	}
	return a
}

// uniteMemory keeps, for each set of nodes, the blocks of the claim that has more memory there.
// A claim may have several blocks on the same nodes, as one that was taken over from a running
// container.
func uniteMemory(a, b []ledger.Block) (out []ledger.Block) {
	has, would := byNodes(a), byNodes(b)
	for nodes, blocks := range would {
		if sum(has[nodes]) < sum(blocks) {
			has[nodes] = blocks
		}
	}
	for _, nodes := range slices.Sorted(maps.Keys(has)) {
		out = append(out, has[nodes]...)
	}
	return out
}

func byNodes(blocks []ledger.Block) map[numa.Mask][]ledger.Block {
	out := map[numa.Mask][]ledger.Block{}
	for _, b := range blocks {
		out[b.Nodes] = append(out[b.Nodes], b)
	}
	return out
}

func sum(blocks []ledger.Block) (bytes uint64) {
	for _, b := range blocks {
		bytes += b.Bytes
	}
	return bytes
}
