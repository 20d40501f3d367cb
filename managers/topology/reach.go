package topology

import (
	"slices"

	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/numa"
)

// maxExact is the number of nodes up to which a merge without a preferred result is exact.
// Up to this number, rules are expanded and tables have an entry for every subset.
const maxExact = 12

// reachable finds the best candidate if none is preferred, and returns whether there is
// one. A choice leaves only nodes that every list mentions, so all masks are restricted to
// these.
func (m *Manager) reachable(lists []list, r *Result) bool {
	universe := m.nodes
	for i := range lists {
		universe &= lists[i].mentioned
	}
	switch {
	case universe == 0:
		return false
	case universe.Len() > m.exact:
		m.estimate(lists, universe, r)
		return true
	}
	d := newDense(universe)
	d.reach(expanded(lists, universe))
	r.Work += d.work
	var rank ranking
	for nodes := range d.sets() {
		rank.consider(m, nodes, r.B)
	}
	if rank.kept == 0 {
		return false
	}
	nodes := rank.best[0].nodes
	r.Affinity = ledger.Affinity{Nodes: nodes}
	rank.losers(r, 1, false)
	r.Path = path(lists, universe, nodes)
	return true
}

// expanded returns the lists that name nodes, with rules expanded on the universe. Short
// lists come first, so that the set of reachable masks stays small for long. The other
// lists do not affect the result.
func expanded(lists []list, universe numa.Mask) []*list {
	named := make([]*list, 0, usualLists)
	for i := range lists {
		l := &lists[i]
		if l.rule != nil {
			l.hints = append(l.rule.Within(universe), l.hints...)
		}
		if l.names {
			named = append(named, l)
		}
	}
	slices.SortStableFunc(named, func(a, b *list) int { return len(a.hints) - len(b.hints) })
	return named
}
