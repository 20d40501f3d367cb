package topology

import (
	"slices"

	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/numa"
)

// maxExact is the number of nodes up to which a merge without a preferred result
// is exact. Rules are expanded, and reachable sets are looked up in tables of all
// subsets.
const maxExact = 12

// reachable looks for the best candidate where none is preferred, and reports
// whether there is one. Only nodes that every list mentions can be left by a
// choice, so all masks are cut to those.
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

// expanded lists what rules leave of the universe beside the hints of their lists.
// It returns the lists that name nodes, short ones first so that the set of
// reachable masks stays small for long; the other lists change nothing.
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
