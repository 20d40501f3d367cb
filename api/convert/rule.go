package convert

import (
	"fmt"
	"maps"
	"slices"

	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/managers/fault"
	"github.com/berthd/berth/managers/hint"
	"github.com/berthd/berth/managers/numa"
)

// Rule returns the message form of a rule.
func Rule(r *hint.Rule) *typesv1.Rule {
	out := &typesv1.Rule{Universe: Mask(r.Universe), Need: r.Need, PreferredSize: uint32(r.PreferredSize)}
	if !r.Must.IsEmpty() {
		out.Must = Mask(r.Must)
	}
	for id := range r.Universe.All() {
		if w := r.Weights[id]; w != 0 {
			if out.Weights == nil {
				out.Weights = make(map[uint32]uint64)
			}
			out.Weights[uint32(id)] = w
		}
	}
	return out
}

// readRule reads a rule; nil where there is none, which is a violation too.
func readRule(path string, m *typesv1.Rule, vs *fault.Violations) *hint.Rule {
	if m == nil {
		vs.Addf(path, "is required with RULE")
		return nil
	}
	r := &hint.Rule{
		Universe: readMask(path+".universe", m.GetUniverse(), vs),
		Must:     readMask(path+".must", m.GetMust(), vs),
		Need:     m.GetNeed(),
	}
	if r.Universe.IsEmpty() {
		vs.Addf(path+".universe", "expected at least one node; where no node will do the answer is IMPOSSIBLE")
	}
	if !r.Must.IsSubsetOf(r.Universe) {
		vs.Addf(path+".must", "nodes %s: expected a part of the universe, which is %s", r.Must, r.Universe)
	}
	for _, id := range slices.Sorted(maps.Keys(m.GetWeights())) {
		if id >= numa.MaxNodes || !r.Universe.Contains(int(id)) {
			vs.Addf(fmt.Sprintf("%s.weights[%d]", path, id), "expected a node of the universe, which is %s", r.Universe)
			continue
		}
		r.Weights[id] = m.GetWeights()[id]
	}
	if size := m.GetPreferredSize(); size > numa.MaxNodes {
		vs.Addf(path+".preferred_size", "%d nodes: expected at most %d", size, numa.MaxNodes)
	} else {
		r.PreferredSize = int(size)
	}
	return r
}

// readMask reads a set of NUMA nodes; none for a missing one.
func readMask(path string, m *typesv1.NUMAMask, vs *fault.Violations) (mask numa.Mask) {
	for _, id := range m.GetNodes() {
		if id >= numa.MaxNodes {
			vs.Addf(path, "node %d: expected 0 to %d", id, numa.MaxNodes-1)
			continue
		}
		mask = mask.With(int(id))
	}
	return mask
}
