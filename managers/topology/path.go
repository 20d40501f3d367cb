package topology

import "github.com/berthd/berth/managers/numa"

// maxPathWork limits the search for a path, counted in hints read.
const maxPathWork = 1 << 16

// path finds a choice whose candidate, restricted to the universe, is the given set. Each
// hint of the choice has all nodes of the candidate, and together the hints exclude all
// other nodes. Hints that exclude most are tried first, and no rest is tried twice. path
// returns nil if it finds no choice within maxPathWork.
func path(lists []list, universe, nodes numa.Mask) []Chosen {
	s := pathSearch{lists: lists, nodes: nodes, failed: map[pathState]bool{}, path: make([]Chosen, len(lists))}
	if !s.from(0, universe&^nodes) {
		return nil
	}
	return s.path
}

// pathState is a position in the search: the lists from index at on have to exclude the
// nodes in rest.
type pathState struct {
	at   int
	rest numa.Mask
}

type pathSearch struct {
	lists  []list
	nodes  numa.Mask
	failed map[pathState]bool
	path   []Chosen
	work   int
}

// from completes the path with the lists from index at on.
func (s *pathSearch) from(at int, rest numa.Mask) bool {
	if at == len(s.lists) {
		return rest == 0
	}
	state := pathState{at, rest}
	if s.failed[state] || s.work > maxPathWork {
		return false
	}
	l := &s.lists[at]
	s.work += len(l.hints)
	best, left := -1, numa.MaxNodes+1
	for i := range l.hints {
		if m := mask(l.hints[i]); s.nodes.IsSubsetOf(m) && (rest&m).Len() < left {
			best, left = i, (rest & m).Len()
		}
	}
	if best >= 0 {
		if s.with(at, best, rest) {
			return true
		}
		for i := range l.hints {
			if i != best && s.nodes.IsSubsetOf(mask(l.hints[i])) && s.with(at, i, rest) {
				return true
			}
		}
	}
	s.failed[state] = true
	return false
}

// with completes the path with hint i of list at, and the following lists.
func (s *pathSearch) with(at, i int, rest numa.Mask) bool {
	l := &s.lists[at]
	s.path[at] = Chosen{l.source, l.hints[i]}
	return s.from(at+1, rest&mask(l.hints[i]))
}
