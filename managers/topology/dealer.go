package topology

import (
	"cmp"
	"slices"

	"github.com/berthd/berth/managers/numa"
)

// dealer deals nodes out to payers where it counts which nodes they are. It
// answers from a quick try or a quick refutation where one of them will do, and
// from fronts, which are exact, only where neither does.
type dealer struct {
	s *sparing
	// first is the place of each payer's first budget among all, slacks what can
	// be spent of each.
	first  []int
	slacks []uint64
	// paid are the nodes that cost something and can be paid: cheap ones first, by
	// the smallest part of its budgets that any payer has to spend for it, which
	// least has by node.
	paid  []int
	least [numa.MaxNodes]float64
	// parts has that part by payer and node.
	parts [][numa.MaxNodes]float64
	// lanes is how many nodes the payers could spare if each had only its own
	// cheapest to deal with.
	lanes int
	// taken and left are those of the last try.
	taken []numa.Mask
	left  []uint64
	exact *fronts
}

func newDealer(s *sparing) *dealer {
	d := &dealer{s: s, first: make([]int, len(s.payers)), parts: make([][numa.MaxNodes]float64, len(s.payers))}
	for i := range s.payers {
		p := &s.payers[i]
		d.first[i] = len(d.slacks)
		for _, b := range p.budgets {
			d.slacks = append(d.slacks, b.slack)
			for id := range p.can.All() {
				d.parts[i][id] += float64(b.prices[id]) / float64(b.slack) / float64(len(p.budgets))
			}
		}
		d.lanes += p.lane()
	}
	for id := range s.universe.Minus(s.free).All() {
		d.least[id] = -1
		for i := range s.payers {
			if s.payers[i].can.Contains(id) && (d.least[id] < 0 || d.parts[i][id] < d.least[id]) {
				d.least[id] = d.parts[i][id]
			}
		}
		if d.least[id] >= 0 {
			d.paid = append(d.paid, id)
		}
	}
	d.taken = make([]numa.Mask, len(s.payers))
	slices.SortStableFunc(d.paid, func(a, b int) int { return cmp.Compare(d.least[a], d.least[b]) })
	return d
}

// lane is an upper bound of how many nodes a payer can spare.
func (p *payer) lane() int {
	most := p.can.Len()
	for i := range p.budgets {
		most = min(most, p.budgets[i].affordable(p.can))
	}
	return most
}

// spare returns the numerically largest set of as many nodes as can be spared, but
// at most so many: from the highest id down every node is spared after which
// enough others still can be.
func (d *dealer) spare(most int) numa.Mask {
	spared := d.most(most)
	number := spared.Len()
	if highest := d.tries(highestOf(d.s.universe, number), 0, 0); highest != 0 {
		return highest
	}
	var sure numa.Mask
	for rest := d.s.universe; sure.Len() < number; {
		node := highest(rest)
		rest &^= node
		if !spared.Overlaps(node) {
			other := d.completed(sure|node, rest, number-sure.Len()-1)
			if other == 0 {
				continue
			}
			spared = other
		}
		sure |= node
	}
	return sure
}

// most returns some set of as many nodes as can be spared, but at most so many.
func (d *dealer) most(wanted int) numa.Mask {
	all := d.s.universe
	for wanted > 0 && d.refutes(0, all, wanted) {
		wanted--
	}
	for q := wanted; q > 0; q-- {
		spared := d.tries(0, all, q)
		switch {
		case spared != 0 && q == wanted:
			return spared
		case spared != 0 || q == 1:
			if better := d.fronts(wanted, q).most(); better.Len() > q {
				return better
			}
			return spared
		}
	}
	return 0
}

// completed returns a set of nodes that can be spared: the given ones and q of the
// rest, which are the lowest of the universe; none if there is no such set.
func (d *dealer) completed(sure, rest numa.Mask, q int) numa.Mask {
	if spared := d.tries(sure, rest, q); spared != 0 || d.refutes(sure, rest, q) {
		return spared
	}
	number := sure.Len() + q
	return d.fronts(number, number).completed(sure, rest.Len(), q)
}

// deals tells whether exactly the given nodes can be spared.
func (d *dealer) deals(nodes numa.Mask) bool {
	if d.tries(nodes, 0, 0) != 0 {
		return true
	}
	return !d.refutes(nodes, 0, 0) && d.fronts(0, 0).deal(nodes) != nil
}

// deal says which of the given nodes each payer spares; nil if they cannot be
// spared, or not in time.
func (d *dealer) deal(nodes numa.Mask) []numa.Mask {
	if d.tries(nodes, 0, 0) != 0 {
		return slices.Clone(d.taken)
	}
	return d.fronts(0, 0).deal(nodes)
}

// fronts returns those for sparing up to so many nodes, where that many or at
// least low of them can be.
func (d *dealer) fronts(number, low int) *fronts {
	if d.exact == nil || d.exact.number < number {
		d.exact = newFronts(d, number, low)
	}
	return d.exact
}

// tries deals out the given nodes and the q cheapest of others, dear ones first,
// each to who has most of its budgets left after it; and if that fails, to who
// has to spend the smallest part of them. It returns the nodes, or none if it
// finds no way: there may be one.
func (d *dealer) tries(sure, rest numa.Mask, q int) numa.Mask {
	nodes := sure | rest&d.s.free
	for q -= (rest & d.s.free).Len(); q < 0; q++ {
		nodes &^= highest(nodes & rest)
	}
	for _, id := range d.paid {
		if node := numa.Of(id); q > 0 && rest.Overlaps(node) {
			nodes |= node
			q--
		}
	}
	if q > 0 {
		return 0
	}
	for _, byLoad := range []bool{true, false} {
		if d.out(nodes&^d.s.free, byLoad) {
			return nodes
		}
	}
	return 0
}

// out deals nodes out by one of two rules; it returns false where that fails.
func (d *dealer) out(nodes numa.Mask, byLoad bool) bool {
	clear(d.taken)
	d.left = append(d.left[:0], d.slacks...)
	for _, id := range slices.Backward(d.paid) {
		node := numa.Of(id)
		if !nodes.Overlaps(node) {
			continue
		}
		d.s.steps++
		payer, best := -1, 0.0
		for i := range d.s.payers {
			if part, ok := d.affords(i, id, byLoad); ok && (payer < 0 || part < best) {
				payer, best = i, part
			}
		}
		if payer < 0 {
			return false
		}
		for i, b := range d.s.payers[payer].budgets {
			d.left[d.first[payer]+i] -= b.prices[id]
		}
		d.taken[payer] |= node
		nodes &^= node
	}
	return nodes == 0
}

// affords tells whether a payer has enough left for a node, and what part it takes
// of its budgets; by load, what part of them will be spent then.
func (d *dealer) affords(payer, id int, byLoad bool) (part float64, ok bool) {
	p := &d.s.payers[payer]
	if !p.can.Contains(id) {
		return 0, false
	}
	part = d.parts[payer][id]
	for i := range p.budgets {
		left, price := d.left[d.first[payer]+i], p.budgets[i].prices[id]
		if price > left {
			return 0, false
		}
		if byLoad {
			part = max(part, 1-float64(left-price)/float64(p.budgets[i].slack))
		}
	}
	return part, true
}

// refutes tells that the given nodes and q others certainly cannot be spared: some
// node cannot be at all, there are more than the payers could take if each had
// only its cheapest, or even the smallest parts of budgets add up to more than
// there is.
func (d *dealer) refutes(sure, rest numa.Mask, q int) bool {
	q -= (rest & d.s.free).Len()
	sure &^= d.s.free
	count, parts := 0, 0.0
	for _, id := range d.paid {
		node := numa.Of(id)
		switch {
		case sure.Overlaps(node):
			sure &^= node
		case q > 0 && rest.Overlaps(node):
			q--
		default:
			continue
		}
		count++
		parts += d.least[id]
	}
	return sure != 0 || q > 0 || count > d.lanes || parts > float64(len(d.s.payers))*(1+1e-9)
}

// highestOf returns the n highest nodes of a set.
func highestOf(nodes numa.Mask, n int) numa.Mask {
	var out numa.Mask
	for range n {
		node := highest(nodes &^ out)
		out |= node
	}
	return out
}
