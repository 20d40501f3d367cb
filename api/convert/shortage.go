package convert

import (
	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/numa"
)

// listedNodes returns the message form of a list of NUMA nodes; nil for an empty one.
func listedNodes(list string) *typesv1.NUMANodeSet {
	nodes, err := numa.Parse(list)
	if err != nil {
		return nil
	}
	return SomeNodes(nodes)
}

// Shortages returns the message form of shortages.
func Shortages(list []ledger.Shortage) []*typesv1.Shortage {
	var out []*typesv1.Shortage
	for _, short := range list {
		m := &typesv1.Shortage{
			Resource: short.Resource, NumaNodes: listedNodes(short.Nodes), Need: short.Need, Free: short.Free, Held: short.Held,
			Withheld: short.Withheld, Why: short.Why, MoreHolders: int32(short.MoreHolders),
			Holders: Refs(short.Holders), Structural: short.Structural,
		}
		out = append(out, m)
	}
	return out
}

// ReadShortages reads shortages, without those on nodes that no machine has. Their text
// is for people, and not checked.
func ReadShortages(list []*typesv1.Shortage) []ledger.Shortage {
	var out []ledger.Shortage
	for _, m := range list {
		var vs errdefs.Violations
		nodes := ReadMask("numa_nodes", m.GetNumaNodes(), &vs)
		if len(vs) > 0 {
			continue
		}
		s := ledger.Shortage{
			Resource: m.GetResource(), Nodes: nodes.String(), Need: m.GetNeed(), Free: m.GetFree(), Held: m.GetHeld(),
			Withheld: m.GetWithheld(), Why: m.GetWhy(), MoreHolders: int(m.GetMoreHolders()),
			Structural: m.GetStructural(),
		}
		for _, h := range m.GetHolders() {
			s.Holders = append(s.Holders, OwnerOf(h))
		}
		out = append(out, s)
	}
	return out
}
