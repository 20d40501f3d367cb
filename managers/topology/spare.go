package topology

import (
	"slices"

	"github.com/berthd/berth/managers/numa"
)

const (
	// maxSets is how many sets of one size are tried one by one where distance
	// decides between them.
	maxSets = 1 << 16
	// maxNext is how many of the sets that come after the best are tried to find
	// those that lost to it.
	maxNext = 8
)

// sparing looks for the best set of nodes that rules leave together of a
// universe that is part of all of theirs.
//
// Every rule can do without nodes as long as their weights stay within its
// slack (what its universe weighs beyond its need), for each of its needs, and
// they are not among its musts. As rules are closed upwards, a node has to be
// spared by one rule only: a set is left by some choice exactly if the other
// nodes can be dealt out to the rules, each within its slacks. Three ways to find
// the best, first to last:
//
//   - If the number of the nodes that a rule can spare decides, not which they
//     are, the sets that it can spare form a matroid, and so do the sets that all
//     rules can spare together. Then sparing greedily from the highest id down is
//     exact, and dealing is an assignment with capacities. This is the normal
//     machine: about the same amount free on every node that has any.
//   - Otherwise nodes are spared from the highest id down, each if enough others
//     still can be. Mostly a quick try or a quick bound tells. If not, the amounts
//     that q of the lowest x nodes can cost are kept for all x and q that matter,
//     without those that are no better than others. Exact, but the number of such
//     amounts may explode: to decide whether a set can be spared is PARTITION.
//   - When that exceeds the limit of steps, what no quick try finds counts as not possible.
//     Marked as cut.
type sparing struct {
	m        *Manager
	universe numa.Mask
	b        int
	rules    []*list
	// payers are the rules, unless nothing is to be spared.
	payers []payer
	// free are the nodes that some rule can spare for nothing.
	free numa.Mask
	// steps are counted up to limit.
	steps, limit int
	cut          bool
	// decided is the best set, once it is known.
	decided numa.Mask
	// dealer is set where it counts which nodes are spared.
	dealer *dealer
	// next are sets that lost to the best.
	next []numa.Mask
}

func newSparing(m *Manager, rules []*list, universe numa.Mask, b int) *sparing {
	s := &sparing{m: m, universe: universe, b: b, rules: rules, limit: maxSteps}
	if s.most() > 0 {
		s.payers = make([]payer, len(rules))
		for i, l := range rules {
			s.payers[i] = newPayer(l.rule, universe)
		}
		s.settle()
	}
	return s
}

// most is how many nodes may be spared, so that B are left.
func (s *sparing) most() int { return s.universe.Len() - max(s.b, 1) }

// settle finds what can be spared for nothing. A node that one rule spares costs
// the others nothing, so that they may be able to spare all that is left.
func (s *sparing) settle() {
	for changed := true; changed; {
		changed = false
		for i := range s.payers {
			p := &s.payers[i]
			p.can &^= s.free
			if given := p.free(); given != 0 {
				s.free |= given
				p.can &^= given
				p.gives |= given
				changed = true
			}
		}
	}
	for i := range s.payers {
		s.payers[i].count()
	}
}

// even tells whether for every rule only the number of nodes counts.
func (s *sparing) even() bool {
	return !slices.ContainsFunc(s.payers, func(p payer) bool { return !p.even })
}

// best returns the best set. As whoever can spare q nodes can spare fewer, it
// has B nodes or the next larger number that is possible; the whole universe, if
// that has no more than B.
func (s *sparing) best() numa.Mask {
	switch {
	case s.decided != 0:
	case s.most() <= 0:
		s.decided = s.universe
	case s.even():
		spared := s.assign(s.universe, s.most()).spared
		s.decided = s.nearest(s.universe.Minus(spared), func(nodes numa.Mask) bool {
			return s.assign(nodes, numa.MaxNodes).spared == nodes
		})
	default:
		s.dealer = newDealer(s)
		s.decided = s.nearest(s.universe.Minus(s.dealer.spare(s.most())), s.dealer.deals)
	}
	return s.decided
}

// nearest returns the set with the smallest sum of distances among those of the
// size of the given one, which is the numerically smallest; that one itself where
// distances do not count, or where there are too many sets to try. dealt tells
// whether nodes can be spared. Sets that come after the best are noted as next.
func (s *sparing) nearest(best numa.Mask, dealt func(numa.Mask) bool) numa.Mask {
	size := best.Len()
	switch {
	case size == s.universe.Len():
		return best
	case !s.m.closest:
		s.after(best, dealt)
		return best
	case !fewSets(s.universe.Len(), size):
		s.cut = true
		return best
	}
	distance := s.m.distance(best)
	for nodes := range numa.SubsetsOfSize(s.universe, size) {
		s.steps++
		c := candidate{distance: s.m.distance(nodes), nodes: nodes}
		if c.compare(candidate{distance: distance, nodes: best}) < 0 && dealt(s.universe.Minus(nodes)) {
			s.next = append(s.next, best)
			best, distance = nodes, c.distance
		}
	}
	return best
}

// after notes some of the sets of the same size that come next as integers.
func (s *sparing) after(best numa.Mask, dealt func(numa.Mask) bool) {
	n := uint(s.universe.Len())
	x := pack(best, s.universe)
	for range maxNext {
		// The next larger number with as many bits set.
		low := x & -x
		high := x + low
		if high < x || high>>n != 0 {
			return
		}
		x = high | (x^high)/low>>2
		if nodes := unpack(x, s.universe); dealt(s.universe.Minus(nodes)) {
			if s.next = append(s.next, nodes); len(s.next) == keptLosers {
				return
			}
		}
	}
}

// fewSets tells whether n nodes have at most maxSets subsets of a size.
func fewSets(n, size int) bool {
	sets := 1
	for i := range min(size, n-size) {
		if sets = sets * (n - i) / (i + 1); sets > maxSets {
			return false
		}
	}
	return true
}

// deal says which nodes each rule spares, so that together they spare exactly the
// given ones; nil if that is not found in time.
func (s *sparing) deal(nodes numa.Mask) []numa.Mask {
	var taken []numa.Mask
	switch {
	case nodes == 0:
		return make([]numa.Mask, len(s.rules))
	case s.dealer == nil:
		taken = s.assign(nodes&^s.free, numa.MaxNodes).taken
	default:
		s.steps, s.limit = 0, maxSteps
		taken = s.dealer.deal(nodes)
	}
	for i := range taken {
		taken[i] |= s.payers[i].gives & nodes
	}
	return taken
}

// assign spares nodes greedily from the highest id down, most of them at most,
// each with a rule of its own capacity; to make room for one, others may change
// their rule. As the sets that can be spared form a matroid, it is the
// numerically largest such set of so many nodes.
func (s *sparing) assign(nodes numa.Mask, most int) *assignment {
	a := &assignment{payers: s.payers}
	k := len(s.payers)
	numbers := make([]int, 3*k)
	a.room, a.from, a.queue = numbers[:k], numbers[k:2*k], numbers[2*k:2*k]
	a.taken = make([]numa.Mask, k)
	for i := range s.payers {
		a.room[i] = s.payers[i].capacity
	}
	for rest := nodes; rest != 0 && most > 0; {
		node := highest(rest)
		rest &^= node
		s.steps += k
		if s.free.Overlaps(node) || a.add(node) {
			a.spared |= node
			most--
		}
	}
	return a
}
