package convert

import (
	"fmt"
	"maps"
	"slices"

	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/hint"
	"github.com/berthd/berth/managers/numa"
)

// Rule returns the message form of a rule.
func Rule(r *hint.Rule) *typesv1.CapacityConstraint {
	out := &typesv1.CapacityConstraint{Universe: Mask(r.Universe), Need: r.Need, PreferredSize: uint32(r.PreferredSize)}
	if !r.Must.IsEmpty() {
		out.Must = Mask(r.Must)
	}
	out.Weights = weights(&r.Weights, r.Universe)
	for i := range r.Also {
		a := &r.Also[i]
		out.Also = append(out.Also, &typesv1.CapacityThreshold{Resource: a.Resource, Weights: weights(&a.Weights, r.Universe),
			Need: a.Need})
	}
	return out
}

// weights writes what is not zero.
func weights(w *numa.Weights, universe numa.Mask) map[uint32]uint64 {
	var out map[uint32]uint64
	for id := range universe.All() {
		if w[id] != 0 {
			if out == nil {
				out = make(map[uint32]uint64)
			}
			out[uint32(id)] = w[id]
		}
	}
	return out
}

// maxAlso bounds how many further thresholds a rule may have.
const maxAlso = 16

// readRule reads a rule; nil where there is none, which is a violation too.
func readRule(path string, m *typesv1.CapacityConstraint, vs *errdefs.Violations) *hint.Rule {
	if m == nil {
		vs.Addf(path, "is required with CAPACITY_CONSTRAINT")
		return nil
	}
	r := &hint.Rule{
		Universe: ReadMask(path+".universe", m.GetUniverse(), vs),
		Must:     ReadMask(path+".must", m.GetMust(), vs),
		Need:     m.GetNeed(),
	}
	if r.Universe.IsEmpty() {
		vs.Addf(path+".universe", "expected at least one node; where no node will do the answer is IMPOSSIBLE")
	}
	if !r.Must.IsSubsetOf(r.Universe) {
		vs.Addf(path+".must", "nodes %s: expected a part of the universe, which is %s", r.Must, r.Universe)
	}
	readWeights(path, m.GetWeights(), r.Universe, &r.Weights, vs)
	checkWeight(path+".need", r.Need, vs)
	if n := len(m.GetAlso()); n > maxAlso {
		vs.Addf(path+".also", "%d thresholds: expected at most %d", n, maxAlso)
		return r
	}
	for i, also := range m.GetAlso() {
		r.Also = append(r.Also, hint.Threshold{Resource: also.GetResource(), Need: also.GetNeed()})
		at := fmt.Sprintf("%s.also[%d]", path, i)
		readWeights(at, also.GetWeights(), r.Universe, &r.Also[i].Weights, vs)
		checkWeight(at+".need", also.GetNeed(), vs)
	}
	if size := m.GetPreferredSize(); size > numa.MaxNodes {
		vs.Addf(path+".preferred_size", "%d nodes: expected at most %d", size, numa.MaxNodes)
	} else {
		r.PreferredSize = int(size)
	}
	return r
}

// readWeights reads the weights of nodes of a universe.
func readWeights(path string, m map[uint32]uint64, universe numa.Mask, into *numa.Weights, vs *errdefs.Violations) {
	for _, id := range slices.Sorted(maps.Keys(m)) {
		if id >= numa.MaxNodes || !universe.Contains(int(id)) {
			vs.Addf(fmt.Sprintf("%s.weights[%d]", path, id), "expected a node of the universe, which is %s", universe)
			continue
		}
		into[id] = m[id]
		checkWeight(fmt.Sprintf("%s.weights[%d]", path, id), m[id], vs)
	}
}

func checkWeight(path string, weight uint64, vs *errdefs.Violations) {
	if weight > hint.MaxWeight {
		vs.Addf(path, "%d: expected at most %d", weight, uint64(hint.MaxWeight))
	}
}
