package topology

import (
	"slices"

	"github.com/berthd/berth/managers/hint"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/numa"
)

// estimate finds a result that is not preferred on more than maxExact nodes. The result is
// one of the sets of every list, so every request fits on it. It is at least as wide as
// every list's preferred size, and the best of at most n² tried sets, n being the number of
// nodes. If no such set exists, the result is the candidate of some choice. A result is
// marked approximate unless it is known to be the best.
type estimate struct {
	m     *Manager
	lists []wideList
	// nodes are the nodes that every list mentions.
	nodes numa.Mask
	// floor is the minimum size of a result.
	floor int
	// left is the number of sets that may still be tried.
	left int
	rank ranking
	// cut is set if some sets were not tried.
	cut bool
}

// wideList is a list with its sets prepared for lookup.
type wideList struct {
	*list
	// masks are the sets that hints name, sorted and unique.
	masks []numa.Mask
	// open is set if a hint names no nodes, so that every set is allowed.
	open bool
}

func (m *Manager) estimate(lists []list, nodes numa.Mask, r *Result) {
	n := nodes.Len()
	e := estimate{m: m, lists: make([]wideList, len(lists)), nodes: nodes, floor: r.B, left: n * n}
	for i := range lists {
		e.lists[i] = lists[i].widen()
		e.floor = max(e.floor, lists[i].preferredSize())
	}
	e.floor = max(1, min(e.floor, n))
	e.tryNamed()
	e.tryRules()
	r.Work += n*n - e.left
	if e.rank.kept > 0 {
		r.Affinity = ledger.Affinity{Nodes: e.rank.best[0].nodes}
		e.rank.losers(r, 1, false)
		r.Path = e.path(r.Affinity.Nodes)
	} else {
		r.Affinity.Nodes, r.Path = e.leftover()
		e.cut = true // other choices were not tried, and one may be better
	}
	r.Approximate = r.Approximate || !e.certain(r)
}

func (l *list) widen() wideList {
	w := wideList{list: l}
	for _, h := range l.hints {
		if h.Any {
			w.open = true
		} else {
			w.masks = append(w.masks, h.Nodes)
		}
	}
	slices.Sort(w.masks)
	w.masks = slices.Compact(w.masks)
	return w
}

// preferredSize is the number of nodes that the list prefers; 0 if it has no
// preferred set.
func (l *list) preferredSize() int {
	if l.rule != nil && l.rule.PreferredSize <= l.rule.Universe.Len() {
		return l.rule.PreferredSize
	}
	size := 0
	for _, h := range l.favoured {
		if h.Preferred && !h.Any && (size == 0 || h.Nodes.Len() < size) {
			size = h.Nodes.Len()
		}
	}
	return size
}

// serves returns whether a set of nodes is one of the list's.
func (w *wideList) serves(raw numa.Mask) bool {
	if w.open || w.rule != nil && w.rule.Allows(raw) {
		return true
	}
	_, named := slices.BinarySearch(w.masks, raw)
	return named
}

// tryNamed tries the sets that hints name. If a list has no rule, only its named sets can
// be results.
func (e *estimate) tryNamed() {
	var masks []numa.Mask
	closed := false
	for i := range e.lists {
		w := &e.lists[i]
		switch {
		case w.open:
		case w.rule != nil && !closed:
			masks = append(masks, w.masks...)
		case w.rule == nil && (!closed || len(w.masks) < len(masks)):
			masks, closed = slices.Clone(w.masks), true
		}
	}
	masks = slices.DeleteFunc(masks, func(raw numa.Mask) bool {
		return (raw&e.nodes).Len() < e.floor ||
			slices.ContainsFunc(e.lists, func(w wideList) bool { return !w.serves(raw) })
	})
	slices.SortFunc(masks, numa.Mask.CompareEnumeration)
	masks = slices.Compact(masks)
	if e.cut = len(masks) > e.left; e.cut {
		masks = masks[:e.left]
	}
	e.left -= len(masks)
	for _, raw := range masks {
		e.rank.consider(e.m, raw&e.nodes, e.floor)
	}
}

// tryRules tries sets that all rules allow. Every list must have a rule or allow any set.
// It tries the narrowest sets in order, then the sets that remain when nodes are removed
// one by one.
func (e *estimate) tryRules() {
	var rules []*hint.Rule
	for i := range e.lists {
		w := &e.lists[i]
		switch {
		case w.open:
		case w.rule == nil:
			return
		default:
			rules = append(rules, w.rule)
		}
	}
	if len(rules) == 0 {
		return
	}
	n := e.nodes.Len()
	s := search(rules...)
	s.Limit = max(1, min(e.left, n*(n-1)/2))
	if s.Universe &= e.nodes; e.m.closest {
		s.Distances = &e.m.distances
	}
	for size := e.floor; size <= n && !s.Cut(); size++ {
		best := numa.Mask(0)
		for best = range s.OfSize(size) {
			if !e.m.closest {
				break
			}
		}
		if best != 0 {
			e.rank.consider(e.m, best, e.floor)
			break
		}
	}
	e.left -= min(s.Steps, s.Limit)
	if s.Cut() {
		e.cut = true
		e.takeAway(s)
	}
}

// takeAway starts with all nodes. While the rest has enough, it removes the node that
// contributes least; of equal nodes the farthest, then the highest.
func (e *estimate) takeAway(s *numa.Search) {
	nodes := s.Universe
	if !s.Enough(nodes) {
		return
	}
	for nodes.Len() > e.floor {
		var next numa.Mask
		var least candidate
		for id := range nodes.Minus(s.Must).All() {
			rest := nodes.Without(id)
			if e.left == 0 {
				break
			}
			if e.left--; !s.Enough(rest) {
				continue
			}
			c := candidate{tier: share(s, id), distance: e.m.distance(rest), nodes: rest}
			if next == 0 || c.compare(least) < 0 {
				next, least = rest, c
			}
		}
		if next == 0 {
			break
		}
		nodes = next
	}
	e.rank.consider(e.m, nodes, e.floor)
}

// share returns the largest fraction of a need that a node covers, in thousandths.
func share(s *numa.Search, id int) int {
	most := 0
	for _, n := range s.Needs {
		if n.Amount > 0 {
			most = max(most, int(1000*(float64(min(n.Weights[id], n.Amount))/float64(n.Amount))))
		}
	}
	return most
}

// certain returns whether no choice leaves a better set than the result. That is the case
// if only one list names nodes and all its sets before the result were tried, or if the
// result is the first of all sets of its size.
func (e *estimate) certain(r *Result) bool {
	nodes, named := r.Affinity.Nodes, 0
	for i := range e.lists {
		if e.lists[i].names {
			named++
		}
	}
	if named == 0 || nodes.Len() != r.B {
		return named == 0
	}
	for first := range numa.SubsetsOfSize(e.nodes, r.B) {
		return named == 1 && !e.cut || !e.m.closest && nodes == first
	}
	return false
}

// path returns the choice in which every list that names nodes takes the same set.
func (e *estimate) path(nodes numa.Mask) []Chosen {
	path := make([]Chosen, 0, len(e.lists))
	for i := range e.lists {
		path = append(path, Chosen{e.lists[i].source, e.lists[i].chooses(e.m.nodes, nodes)})
	}
	return path
}

// chooses returns a hint of the list that leaves exactly the given nodes of the machine, or
// else a hint that leaves all of them.
func (w *wideList) chooses(machine, nodes numa.Mask) hint.Hint {
	if w.rule != nil && w.rule.Allows(nodes) {
		return hint.Hint{Nodes: nodes, Preferred: nodes.Len() == w.rule.PreferredSize}
	}
	var other hint.Hint
	for _, h := range w.hints {
		if !h.Any && h.Nodes&machine == nodes {
			return h
		}
		if h.Any {
			other = h
		}
	}
	return other
}

// leftover makes a choice for lists that have no set in common. In each step it takes the
// hint that leaves most nodes, from the list that leaves least. Every list leaves at least
// one node, because it mentions all of them.
func (e *estimate) leftover() (numa.Mask, []Chosen) {
	nodes := e.nodes
	path := make([]Chosen, len(e.lists))
	open := make([]int, len(e.lists))
	for i := range open {
		open[i] = i
	}
	for len(open) > 0 {
		var at int
		var chosen hint.Hint
		var least numa.Mask
		for j, i := range open {
			h, left := e.lists[i].most(nodes)
			if j == 0 || left.NarrowerThan(least) {
				at, chosen, least = j, h, left
			}
		}
		path[open[at]] = Chosen{e.lists[open[at]].source, chosen}
		open, nodes = slices.Delete(open, at, at+1), least
	}
	return nodes, path
}

// most returns the hint that leaves most of the given nodes, and the nodes left; of equal
// hints the one with the smallest value.
func (w *wideList) most(nodes numa.Mask) (chosen hint.Hint, left numa.Mask) {
	if w.rule != nil {
		chosen = hint.Hint{Nodes: w.rule.Universe, Preferred: w.rule.Universe.Len() == w.rule.PreferredSize}
		left = nodes & w.rule.Universe
	}
	for _, h := range w.hints {
		kept := nodes & mask(h)
		if n := kept.Len(); n > left.Len() || n == left.Len() && kept < left {
			chosen, left = h, kept
		}
	}
	return chosen, left
}
