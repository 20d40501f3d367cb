package memory

import (
	"slices"

	"github.com/berthd/berth/managers/hint"
	"github.com/berthd/berth/managers/numa"
)

// described answers without listing the family. It has two parts that do not
// overlap: sets of unused nodes, which are all those that have enough free
// together, so that a rule describes them; and sets of nodes that are used already, which
// are few, because a request has to take such nodes as they are used now: a single
// node by itself, a group as a whole.
func (f *family) described() []hint.ResourceAnswer {
	unused := f.m.nodes.Minus(f.used)
	fitting := unused != 0 && f.fits(unused)
	sets := f.beside(unused, fitting)
	if !fitting && len(sets) == 0 {
		return nil
	}
	least := f.least()
	hints := make([]hint.Hint, len(sets))
	for i, nodes := range sets {
		hints[i] = hint.Hint{Nodes: nodes, Preferred: nodes.Len() == least}
	}
	if !fitting {
		return same(f.wants, hint.Answer{Kind: hint.Options, Hints: hints})
	}
	needs := f.thresholds(unused)
	out := make([]hint.ResourceAnswer, len(f.wants))
	for i, w := range f.wants {
		rule := &hint.Rule{Universe: unused, Weights: needs[i].Weights, Need: needs[i].Need, PreferredSize: least}
		for j := range needs {
			// What every node has enough of by itself is no further need.
			if j != i && !f.everywhere(unused, j) {
				rule.Also = append(rule.Also, needs[j])
			}
		}
		out[i] = hint.ResourceAnswer{Resource: w.resource, Answer: hint.Answer{Kind: hint.ByRule, Rule: rule, Hints: hints}}
	}
	return out
}

// beside returns the sets of the family that the rule leaves out, in enumeration
// order.
func (f *family) beside(unused numa.Mask, fitting bool) []numa.Mask {
	sets := f.few()
	for _, r := range f.left {
		if !slices.Contains(sets, r.nodes) && f.allows(r.nodes) {
			sets = append(sets, r.nodes)
		}
	}
	sets = slices.DeleteFunc(sets, func(nodes numa.Mask) bool {
		return fitting && nodes.IsSubsetOf(unused) && f.fits(nodes)
	})
	slices.SortFunc(sets, numa.Mask.CompareEnumeration)
	return sets
}

// thresholds are the amounts that sets of unused nodes must have, one for each want.
func (f *family) thresholds(unused numa.Mask) []hint.Threshold {
	out := make([]hint.Threshold, len(f.wants))
	for i, w := range f.wants {
		out[i].Resource, out[i].Need = w.resource, uint64(w.bytes)
		for id := range unused.All() {
			out[i].Weights[id] = uint64(max(f.free[i][id], 0))
		}
	}
	return out
}
