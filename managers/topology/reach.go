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
	// maxListed is the same where rules have to be listed first.
	maxListed = 12
	// listedSteps is how long rules are merged without being listed, where they
	// can be.
	listedSteps = 1 << 10
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
	best := ranked{parts: split(lists), m: m, b: r.B}
	best.list(universe)
	switch {
	case universe.Len() <= maxDense && len(best.explicit) > 0:
		d := newDense(universe)
		d.reach(best.explicit)
		r.Work += d.work
		best.each(d.sets())
	case len(best.explicit) > 0:
		s := sparse{universe: universe}
		s.reach(best.explicit)
		r.Work += s.work
		r.Approximate = r.Approximate || s.cut
		best.each(slices.Values(s.masks))
	default:
		best.each(slices.Values([]numa.Mask{universe}))
	}
	r.Work += best.steps
	r.Approximate = r.Approximate || best.cut
	if best.rank.kept == 0 {
		return false
	}
	nodes := best.rank.best[0].nodes
	r.Affinity = ledger.Affinity{Nodes: nodes}
	best.rank.losers(r, 1, false)
	if lists = best.chosen(lists, nodes); lists != nil {
		r.Path = path(lists, universe, nodes)
	}
	return true
}

// parts are the lists that can change something. A list whose hints name no nodes
// changes nothing.
type parts struct {
	// explicit are those with hints, short ones first so that the set of reachable
	// masks stays small for long.
	explicit []*list
	// ruled have a rule, and nothing beside it.
	ruled []*list
	// mixed have hints beside their rule.
	mixed []*list
}

func split(lists []list) parts {
	p := parts{explicit: make([]*list, 0, usualLists)}
	for i := range lists {
		switch l := &lists[i]; {
		case l.rule != nil && len(l.hints) > 0:
			p.mixed = append(p.mixed, l)
		case l.rule != nil:
			p.ruled = append(p.ruled, l)
		case l.names:
			p.explicit = append(p.explicit, l)
		}
	}
	slices.SortStableFunc(p.explicit, func(a, b *list) int { return len(a.hints) - len(b.hints) })
	return p
}

// list makes explicit lists of rules where there are few nodes, unless rules are
// all there is and soon merged without.
func (c *ranked) list(universe numa.Mask) {
	if len(c.ruled)+len(c.mixed) == 0 || universe.Len() > c.m.listed {
		return
	}
	if len(c.explicit)+len(c.mixed) == 0 {
		s := newSparing(c.m, c.ruled, universe, c.b)
		s.limit = listedSteps
		s.best()
		if s.even() || !s.cut && s.steps <= s.limit {
			c.ready = s
			return
		}
	}
	for _, l := range slices.Concat(c.ruled, c.mixed) {
		l.hints = append(trace(l.rule, universe), l.hints...)
		l.rule = nil
		c.explicit = append(c.explicit, l)
	}
	c.ruled, c.mixed = nil, nil
	slices.SortStableFunc(c.explicit, func(a, b *list) int { return len(a.hints) - len(b.hints) })
}

// ranked collects the best candidates.
type ranked struct {
	parts
	m     *Manager
	b     int
	rank  ranking
	steps int
	cut   bool
	// winner is how rules left the best candidate; nil where there are none.
	winner *sparing
	// ready is the only one that is needed, if it is known already.
	ready *sparing
}

// each considers sets of nodes that the explicit lists leave, or, where there
// are rules, the best set that rules leave of each.
func (c *ranked) each(sets iter.Seq[numa.Mask]) {
	if len(c.mixed) > 0 {
		c.branches(slices.Collect(sets))
		return
	}
	for nodes := range sets {
		if len(c.ruled) == 0 {
			c.add(nodes)
			continue
		}
		if !c.spare(c.ruled, nodes) {
			return
		}
	}
}

// add ranks a candidate.
func (c *ranked) add(nodes numa.Mask) {
	t := tier(nodes.Len(), c.b)
	if c.rank.late(t) {
		c.rank.seen++
		return
	}
	c.rank.add(candidate{tier: t, distance: c.m.distance(nodes), nodes: nodes})
}

// spare ranks the best that rules leave of some nodes, and what comes next. It
// returns false when there is no time for more.
func (c *ranked) spare(rules []*list, nodes numa.Mask) bool {
	if c.steps > maxSteps {
		c.cut = true
		return false
	}
	s := c.ready
	if s == nil {
		s = newSparing(c.m, rules, nodes, c.b)
	}
	best := s.best()
	c.steps += s.steps + 8*len(rules) // to weigh a rule takes as long as some steps
	c.cut = c.cut || s.cut
	c.add(best)
	if c.rank.best[0].nodes == best {
		c.winner = s
	}
	for _, next := range s.next {
		c.add(next)
	}
	return true
}
