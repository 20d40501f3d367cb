package topology

import (
	"iter"
	"slices"

	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/numa"
)

// The numbers of nodes up to which sets of nodes are looked up in tables of all
// subsets.
const (
	maxDense = 20
	// maxExpanded is the same where rules have to be listed first.
	maxExpanded = 12
)

// reachable looks for the best candidate where none is preferred, and reports
// whether there is one. Only nodes that every list mentions can be left by a
// choice, so all masks are cut to those.
func (m *Manager) reachable(lists []list, r *Result) bool {
	universe := m.nodes
	for i := range lists {
		universe &= lists[i].mentioned
	}
	if universe == 0 {
		return false
	}
	explicit, rules := split(lists, universe)
	best := ranked{m: m, b: r.B}
	switch {
	case universe.Len() <= maxDense && len(explicit) > 0:
		d := newDense(universe)
		d.reach(explicit)
		r.Work += d.work
		best.each(d.sets(), rules)
	case len(explicit) > 0:
		s := sparse{universe: universe}
		s.reach(explicit)
		r.Work += s.work
		r.Approximate = r.Approximate || s.cut
		best.each(slices.Values(s.masks), rules)
	default:
		best.each(slices.Values([]numa.Mask{universe}), rules)
	}
	r.Work += best.steps
	r.Approximate = r.Approximate || best.cut
	if best.rank.kept == 0 {
		return false
	}
	nodes := best.rank.best[0].nodes
	r.Affinity = ledger.Affinity{Nodes: nodes}
	best.rank.losers(r, 1, false)
	if len(rules) == 0 {
		r.Path = path(lists, universe, nodes)
	}
	return true
}

// split separates the lists that can change something: those with hints, short
// ones first so that the set of reachable masks stays small for long, and those
// that are rules. Rules are listed, and so among the former, if there are others
// to go with and few nodes. A list whose hints name no nodes changes nothing.
func split(lists []list, universe numa.Mask) (explicit, rules []*list) {
	explicit = make([]*list, 0, usualLists)
	for i := range lists {
		switch l := &lists[i]; {
		case l.rule != nil:
			rules = append(rules, l)
		case l.names:
			explicit = append(explicit, l)
		}
	}
	if len(rules) > 0 && len(explicit) > 0 && universe.Len() <= maxExpanded {
		for _, l := range rules {
			l.hints = trace(l.rule, universe)
		}
		explicit, rules = append(explicit, rules...), nil
	}
	slices.SortStableFunc(explicit, func(a, b *list) int { return len(a.hints) - len(b.hints) })
	return explicit, rules
}

// ranked collects the best candidates.
type ranked struct {
	m     *Manager
	b     int
	rank  ranking
	steps int
	cut   bool
}

// each considers sets of nodes that the explicit lists leave, or, where there
// are rules, the best set that rules leave of each.
func (c *ranked) each(sets iter.Seq[numa.Mask], rules []*list) {
	for nodes := range sets {
		if len(rules) > 0 {
			if c.steps > maxSteps {
				c.cut = true
				return
			}
			s := newSparing(c.m, rules, nodes, c.b)
			nodes = s.best()
			c.steps += s.steps
			c.cut = c.cut || s.cut
		}
		t := tier(nodes.Len(), c.b)
		if c.rank.late(t) {
			c.rank.seen++
			continue
		}
		c.rank.add(candidate{tier: t, distance: c.m.distance(nodes), nodes: nodes})
	}
}
