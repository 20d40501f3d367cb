package topology

import (
	"cmp"
	"slices"
	"strings"

	"github.com/berthd/berth/managers/hint"
	"github.com/berthd/berth/managers/numa"
)

// branch is what is left of the nodes when some mixed lists have chosen.
type branch struct {
	nodes numa.Mask
	// ruled has a rune for each mixed list that chose its rule: its place among
	// them.
	ruled string
}

// branches considers what is left where the mixed lists choose either their rule
// or one of the hints beside it. Those hints mostly have nothing in common with
// the rule or with each other, so that lists of one provider have to choose alike
// and there are few branches.
func (c *ranked) branches(sets []numa.Mask) {
	all := make([]branch, len(sets))
	for i, nodes := range sets {
		all[i] = branch{nodes: nodes}
	}
	for at, l := range c.mixed {
		all = c.fork(all, l, string(rune(at)))
	}
	for _, b := range all {
		rules := slices.Clone(c.ruled)
		for _, at := range b.ruled {
			rules = append(rules, c.mixed[at])
		}
		if !c.spare(rules, b.nodes) {
			return
		}
	}
}

// fork lets one list choose. Any branch that has nodes leads to a candidate, as
// every list mentions all of them: so if there are too many, the largest are as
// good as any.
func (c *ranked) fork(all []branch, l *list, chosen string) []branch {
	next := make([]branch, 0, len(all)+len(l.hints))
	keep := func(limit int) {
		slices.SortFunc(next, func(a, b branch) int {
			return cmp.Or(cmp.Compare(b.nodes.Len(), a.nodes.Len()), cmp.Compare(a.nodes, b.nodes), strings.Compare(a.ruled, b.ruled))
		})
		if next = slices.Compact(next); len(next) > limit {
			next, c.cut = next[:limit], true
		}
	}
	for _, b := range all {
		if nodes := b.nodes & l.rule.Universe; nodes != 0 {
			next = append(next, branch{nodes, b.ruled + chosen})
		}
		for i := range l.hints {
			if nodes := b.nodes & mask(l.hints[i]); nodes != 0 {
				next = append(next, branch{nodes, b.ruled})
			}
		}
		c.steps += 1 + len(l.hints)
		if len(next) > 4*maxSparse {
			keep(maxSparse)
		}
	}
	keep(maxSparse)
	return next
}

// chosen returns the lists with what the best candidate took of each rule in place
// of the rule; nil if that cannot be said in time.
func (c *ranked) chosen(lists []list, nodes numa.Mask) []list {
	if c.winner == nil {
		return lists
	}
	out := slices.Clone(lists)
	taken := c.winner.deal(c.winner.universe &^ nodes)
	if taken == nil {
		return nil
	}
	for i := range out {
		if out[i].rule == nil {
			continue
		}
		at := slices.Index(c.winner.rules, &lists[i])
		if at < 0 {
			continue // it chose a hint beside its rule
		}
		r := lists[i].rule
		left := r.Universe &^ taken[at]
		out[i].hints = []hint.Hint{{Nodes: left, Preferred: left.Len() == r.PreferredSize}}
	}
	return out
}
