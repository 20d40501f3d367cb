package topology

import (
	"slices"

	"github.com/berthd/berth/managers/hint"
	"github.com/berthd/berth/managers/numa"
)

// maxSets is how many sets of one size are tried one by one where distance
// decides between them.
const maxSets = 1 << 16

// sparing looks for the best set of nodes that rules leave together of a
// universe that is part of all of theirs.
//
// Every rule can do without nodes as long as their weights stay within its
// slack (what its universe weighs beyond its need) and they are not among its
// musts. As rules are closed upwards, a node has to be spared by one rule only:
// a set is left by some choice exactly if the other nodes can be dealt out to
// the rules, each within its slack. Three ways to find the best, first to last:
//
//   - If all nodes that a rule can spare at a price cost it the same, the sets
//     that it can spare form a matroid, and so do the sets that all rules can
//     spare together. Then sparing greedily from the highest id down is exact,
//     and dealing is an assignment with capacities. This is the normal machine:
//     the same amount free on every node that has any.
//   - Otherwise the amounts that q of the lowest x nodes can cost are kept for
//     all x and q that matter, without those that are no better than others.
//     Exact, but the number of such amounts may explode: to decide whether a set
//     can be spared is PARTITION.
//   - When that exceeds maxSteps: greedily from the highest id down, each node
//     charged to the rule that has most of its slack left. Marked as cut.
type sparing struct {
	m        *Manager
	universe numa.Mask
	b        int
	rules    []*hint.Rule
	slacks   []uint64
	// can are the nodes that a rule can spare at a price, free those that some
	// rule can spare for nothing.
	can   []numa.Mask
	free  numa.Mask
	steps int
	cut   bool
}

func newSparing(m *Manager, rules []*list, universe numa.Mask, b int) *sparing {
	s := &sparing{m: m, universe: universe, b: b}
	for _, l := range rules {
		r := l.rule
		left := slack(r)
		var can numa.Mask
		for id := range universe.Minus(r.Must).All() {
			switch w := r.Weights[id]; {
			case w == 0:
				s.free = s.free.With(id)
			case w <= left:
				can = can.With(id)
			}
		}
		s.rules, s.slacks, s.can = append(s.rules, r), append(s.slacks, left), append(s.can, can)
	}
	for i := range s.can {
		s.can[i] &^= s.free
	}
	return s
}

// best returns the best set. As whoever can spare q nodes can spare fewer, it
// has B nodes or the next larger number that is possible; the whole universe, if
// that has no more than B.
func (s *sparing) best() numa.Mask {
	most := s.universe.Len() - max(s.b, 1)
	if most <= 0 {
		return s.universe
	}
	if capacities, even := s.capacities(); even {
		spared := s.assign(s.universe, capacities)
		spared = spared[:min(len(spared), most)]
		return s.nearest(s.universe.Minus(numa.Of(spared...)), func(nodes numa.Mask) bool {
			return len(s.assign(nodes, capacities)) == nodes.Len()
		})
	}
	for q := min(most, s.bound()); q > 0; q-- {
		f := newFronts(s, q)
		if s.steps > maxSteps {
			s.cut = true
			return s.greedy()
		}
		if f.any() {
			nodes := s.nearest(f.keep(), f.deals)
			s.cut = s.cut || s.steps > maxSteps
			return nodes
		}
	}
	return s.universe
}

// nearest returns the set with the smallest sum of distances among those of the
// size of the given one, which is the numerically smallest; that one itself where
// distances do not count, or where there are too many sets to try. dealt tells
// whether nodes can be spared.
func (s *sparing) nearest(best numa.Mask, dealt func(numa.Mask) bool) numa.Mask {
	size := best.Len()
	if !s.m.closest || size == s.universe.Len() {
		return best
	}
	if !fewSets(s.universe.Len(), size) {
		s.cut = true
		return best
	}
	distance := s.m.distance(best)
	for nodes := range numa.SubsetsOfSize(s.universe, size) {
		s.steps++
		c := candidate{distance: s.m.distance(nodes), nodes: nodes}
		if c.compare(candidate{distance: distance, nodes: best}) < 0 && dealt(s.universe.Minus(nodes)) {
			best, distance = nodes, c.distance
		}
	}
	return best
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

// capacities returns how many nodes each rule can spare at a price, and whether
// that is all there is to it because each of them costs the same.
func (s *sparing) capacities() ([]int, bool) {
	out := make([]int, len(s.rules))
	for i, r := range s.rules {
		var price uint64
		for id := range s.can[i].All() {
			if price != 0 && price != r.Weights[id] {
				return nil, false
			}
			price = r.Weights[id]
		}
		if price != 0 {
			out[i] = int(min(s.slacks[i]/price, numa.MaxNodes))
		}
	}
	return out, true
}

// bound is a number of nodes beyond which the rules certainly cannot go: what
// each could spare of its lightest nodes if all were its own.
func (s *sparing) bound() int {
	total := s.free.Len()
	for i, r := range s.rules {
		var weights [numa.MaxNodes]uint64
		n := 0
		for id := range s.can[i].All() {
			weights[n] = r.Weights[id]
			n++
		}
		slices.Sort(weights[:n])
		left := s.slacks[i]
		for _, w := range weights[:n] {
			if w > left {
				break
			}
			left -= w
			total++
		}
	}
	return total
}

// assign spares nodes greedily from the highest id down, each with a rule of
// its own capacity; to make room for one, others may change their rule. It
// returns the spared nodes in the order in which they were. As the sets that
// can be spared form a matroid, the first q of them are the numerically largest
// such set of q nodes.
func (s *sparing) assign(nodes numa.Mask, capacities []int) []int {
	a := assignment{
		s: s, room: slices.Clone(capacities), taken: make([]numa.Mask, len(s.rules)),
		from: make([]int, len(s.rules)), queue: make([]int, 0, len(s.rules)),
	}
	spared := make([]int, 0, nodes.Len())
	ids := nodes.IDs()
	for _, id := range slices.Backward(ids) {
		s.steps += len(s.rules)
		if s.free.Contains(id) || a.add(numa.Of(id)) {
			spared = append(spared, id)
		}
	}
	return spared
}

// assignment says which rule spares which nodes.
type assignment struct {
	s     *sparing
	room  []int
	taken []numa.Mask
	// from and queue are those of the search at hand: from which rule a way
	// leads to another, and which are still to be looked at.
	from, queue []int
}

// add finds room for one more node: breadth first over the rules, from one to
// another if a node of the first can go to the second.
func (a *assignment) add(node numa.Mask) bool {
	const unseen, start = -2, -1
	a.queue = a.queue[:0]
	for i := range a.from {
		a.from[i] = unseen
		if a.s.can[i].Overlaps(node) {
			a.from[i] = start
			a.queue = append(a.queue, i)
		}
	}
	for at := 0; at < len(a.queue); at++ {
		i := a.queue[at]
		if a.room[i] > 0 {
			a.room[i]--
			a.shift(i, node)
			return true
		}
		for j := range a.from {
			if a.from[j] == unseen && a.taken[i].Overlaps(a.s.can[j]) {
				a.from[j] = i
				a.queue = append(a.queue, j)
			}
		}
	}
	return false
}

// shift moves one node along the way to rule i, from its beginning on.
func (a *assignment) shift(i int, node numa.Mask) {
	for a.from[i] >= 0 {
		before := a.from[i]
		lowest, _ := (a.taken[before] & a.s.can[i]).Lowest()
		moved := numa.Of(lowest)
		a.taken[before] &^= moved
		a.taken[i] |= moved
		i = before
	}
	a.taken[i] |= node
}

// greedy spares nodes from the highest id down until B are left, each charged
// to the rule with most of its slack left. It is always a set that some choice
// leaves.
func (s *sparing) greedy() numa.Mask {
	kept := s.universe
	left := slices.Clone(s.slacks)
	for _, id := range slices.Backward(s.universe.IDs()) {
		if kept.Len() <= max(s.b, 1) {
			break
		}
		if s.free.Contains(id) {
			kept = kept.Without(id)
			continue
		}
		payer, most := -1, 0.0
		for i, r := range s.rules {
			if s.can[i].Contains(id) && r.Weights[id] <= left[i] {
				if share := float64(left[i]) / float64(s.slacks[i]); share > most {
					payer, most = i, share
				}
			}
		}
		if payer >= 0 {
			left[payer] -= s.rules[payer].Weights[id]
			kept = kept.Without(id)
		}
	}
	return kept
}
