package topology

import (
	"math/bits"
	"slices"

	"github.com/berthd/berth/managers/hint"
	"github.com/berthd/berth/managers/numa"
)

// payer is a rule as one of those who can spare nodes.
type payer struct {
	// can are the nodes that it can spare at a price, each by itself, and gives
	// those that it spares for nothing. They belong to no other payer.
	can, gives numa.Mask
	budgets    []budget
	// even: it can spare any of its nodes, up to capacity.
	even     bool
	capacity int
}

// budget is what a payer can spend for one need of its rule.
type budget struct {
	prices *hint.Weights
	slack  uint64
}

func newPayer(r *hint.Rule, universe numa.Mask) payer {
	p := payer{can: universe.Minus(r.Must), budgets: make([]budget, 0, 1+len(r.Also))}
	for weights, need := range r.Needs() {
		b := budget{weights, weights.Sum(r.Universe) - need}
		for id := range p.can.All() {
			if weights[id] > b.slack {
				p.can = p.can.Without(id)
			}
		}
		p.budgets = append(p.budgets, b)
	}
	return p
}

// free forgets the budgets that cannot run out, and returns the nodes that cost
// nothing then.
func (p *payer) free() numa.Mask {
	p.budgets = slices.DeleteFunc(p.budgets, func(b budget) bool { return b.prices.Sum(p.can) <= b.slack })
	var priced numa.Mask
	for _, b := range p.budgets {
		priced |= b.priced(p.can)
	}
	return p.can &^ priced
}

// priced are those of some nodes that cost something.
func (b *budget) priced(nodes numa.Mask) numa.Mask {
	var out numa.Mask
	for rest := uint64(nodes); rest != 0; rest &= rest - 1 {
		if id := bits.TrailingZeros64(rest); b.prices[id] != 0 {
			out |= numa.Mask(rest & -rest)
		}
	}
	return out
}

// count finds out whether only the number of nodes counts. If not, a budget that
// by itself counts nodes gets the price 1 for every node that has one, so that
// amounts repeat.
func (p *payer) count() {
	var buffer [4]counted
	all := buffer[:0]
	for i := range p.budgets {
		all = append(all, p.budgets[i].counted(p.can))
	}
	kept := 0
	for i := range p.budgets {
		if !slices.ContainsFunc(all, all[i].implied) && !slices.ContainsFunc(all[:i], all[i].same) {
			p.budgets[kept], all[kept] = p.budgets[i], all[i]
			kept++
		}
	}
	p.budgets, all = p.budgets[:kept], all[:kept]
	if kept == 0 || kept == 1 && all[0].even {
		p.even = true
		if kept == 1 {
			p.capacity = all[0].capacity
		}
		return
	}
	for i, c := range all {
		if c.even {
			p.budgets[i] = budget{new(hint.Weights), uint64(c.capacity)}
			for id := range c.priced.All() {
				p.budgets[i].prices[id] = 1
			}
		}
	}
}

// counted is a budget by the nodes that have a price, and how many of those it
// can pay for if it is even, which means: whichever they are.
type counted struct {
	priced   numa.Mask
	capacity int
	even     bool
}

func (b *budget) counted(nodes numa.Mask) counted {
	c := counted{priced: b.priced(nodes)}
	c.capacity, c.even = b.capacity(c.priced)
	return c
}

// implied tells whether whatever a stricter one lets through, this one does too.
func (c counted) implied(by counted) bool {
	return c.even && by.even && c != by && c.priced.IsSubsetOf(by.priced) && c.capacity >= by.capacity
}

func (c counted) same(as counted) bool { return c.even && c == as }

// capacity is how many of the nodes can be paid for, whichever they are; false if
// it depends on which.
func (b *budget) capacity(nodes numa.Mask) (int, bool) {
	var buffer [numa.MaxNodes]uint64
	prices := b.sorted(&buffer, nodes)
	n := paying(prices, b.slack)
	slices.Reverse(prices)
	return n, n == paying(prices, b.slack)
}

// affordable is how many of the nodes can be paid for, the cheapest first.
func (b *budget) affordable(nodes numa.Mask) int {
	var buffer [numa.MaxNodes]uint64
	return paying(b.sorted(&buffer, nodes), b.slack)
}

// sorted returns the prices of nodes, ascending.
func (b *budget) sorted(buffer *[numa.MaxNodes]uint64, nodes numa.Mask) []uint64 {
	prices := buffer[:0]
	for rest := uint64(nodes); rest != 0; rest &= rest - 1 {
		prices = append(prices, b.prices[bits.TrailingZeros64(rest)])
	}
	slices.Sort(prices)
	return prices
}

// paying is how many of the prices can be paid, one after the other.
func paying(prices []uint64, slack uint64) int {
	for n, price := range prices {
		if price > slack {
			return n
		}
		slack -= price
	}
	return len(prices)
}

// assignment says which payer spares which nodes.
type assignment struct {
	payers []payer
	room   []int
	taken  []numa.Mask
	spared numa.Mask
	// from and queue are those of the search at hand: from which payer a way leads
	// to another, and which are still to be looked at.
	from, queue []int
}

// add finds room for one more node: breadth first over the payers, from one to
// another if a node of the first can go to the second.
func (a *assignment) add(node numa.Mask) bool {
	const unseen, start = -2, -1
	a.queue = a.queue[:0]
	for i := range a.from {
		a.from[i] = unseen
		if a.payers[i].can.Overlaps(node) {
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
			if a.from[j] == unseen && a.taken[i].Overlaps(a.payers[j].can) {
				a.from[j] = i
				a.queue = append(a.queue, j)
			}
		}
	}
	return false
}

// shift moves one node along the way to payer i, from its beginning on.
func (a *assignment) shift(i int, node numa.Mask) {
	for a.from[i] >= 0 {
		before := a.from[i]
		both := a.taken[before] & a.payers[i].can
		moved := both & -both
		a.taken[before] &^= moved
		a.taken[i] |= moved
		i = before
	}
	a.taken[i] |= node
}

// highest is the highest node of a set that is not empty, as a set.
func highest(nodes numa.Mask) numa.Mask {
	return 1 << (bits.Len64(uint64(nodes)) - 1)
}
