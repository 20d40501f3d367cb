package topology

import (
	"slices"

	"github.com/berthd/berth/managers/hint"
	"github.com/berthd/berth/managers/numa"
)

const (
	// moreSteps limits the search for runners-up after the best set was found.
	moreSteps = 1 << 7
	// conflictSteps limits the search for a set that two rules prefer. The search only
	// explains a refusal. If it is cut, it reports no conflict.
	conflictSteps = 1 << 12
)

// search returns a search for the sets of nodes that every rule allows. Rules of one
// provider often share their needs; each need is checked once.
func search(rules ...*hint.Rule) *numa.Search {
	needs := 0
	for _, r := range rules {
		needs += 1 + len(r.Also)
	}
	s := &numa.Search{Universe: everything, Needs: make([]numa.Need, 0, needs)}
	for _, r := range rules {
		s.Universe &= r.Universe
		s.Must |= r.Must
		for n := range r.Needs() {
			same := func(have numa.Need) bool {
				return have.Amount == n.Amount && (have.Weights == n.Weights || *have.Weights == *n.Weights)
			}
			if !slices.ContainsFunc(s.Needs, same) {
				s.Needs = append(s.Needs, n)
			}
		}
	}
	return s
}

// preferredByAll searches the sets that every rule prefers. The results contain the best
// one; the others are runners-up.
func (m *Manager) preferredByAll(rules []*hint.Rule, r *Result) []numa.Mask {
	size := rules[0].PreferredSize
	if slices.ContainsFunc(rules, func(r *hint.Rule) bool { return r.PreferredSize != size }) {
		return nil
	}
	s := search(rules...)
	if m.closest {
		s.Distances = &m.distances
	}
	masks := m.best(s, size)
	r.Work += s.Steps
	r.Approximate = r.Approximate || s.Cut() && (m.closest || len(masks) == 0)
	return masks
}

// best returns the best set of a size and some runners-up. Without distances the
// first set that the search finds is the best, with distances the last.
func (m *Manager) best(s *numa.Search, size int) []numa.Mask {
	var masks []numa.Mask
	for nodes := range s.OfSize(size) {
		masks = append(masks, nodes)
		switch {
		case m.closest:
		case len(masks) == 1:
			s.Limit = s.Steps + moreSteps
		case len(masks) == 1+keptLosers:
			return masks
		}
	}
	return masks
}

// bothPrefer returns whether two rules prefer a common set of nodes.
func bothPrefer(a, b *hint.Rule) bool {
	if a.PreferredSize != b.PreferredSize {
		return false
	}
	s := search(a, b)
	s.Limit = conflictSteps
	for range s.OfSize(a.PreferredSize) {
		return true
	}
	return s.Cut()
}
