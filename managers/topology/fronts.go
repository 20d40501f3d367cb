package topology

import (
	"slices"

	"github.com/berthd/berth/managers/numa"
)

// front is a set of amounts spent, one number for each budget, none of which is
// at least as large as another in every number. Amounts lie one after the other.
type front []uint64

// fronts are the amounts that sparing some number of nodes of the universe can
// cost: at[x][q] for q of its x lowest nodes, as far as that number can still be
// reached from there. They are incomplete if the sparing runs out of steps.
type fronts struct {
	s *sparing
	// number is how many nodes can be spared, at most so many as are wanted.
	number int
	k      int   // budgets
	first  []int // of them by payer
	slacks []uint64
	ids    []int
	at     [][]front
}

func newFronts(s *sparing, number int) *fronts {
	f := &fronts{s: s, ids: s.universe.IDs(), first: make([]int, len(s.payers))}
	for i := range s.payers {
		f.first[i] = f.k
		f.k += len(s.payers[i].budgets)
		for _, b := range s.payers[i].budgets {
			f.slacks = append(f.slacks, b.slack)
		}
	}
	f.at = append(f.at, []front{make(front, f.k)})
	if number > 0 {
		f.fill(number)
	}
	return f
}

// fill computes the rows for up to so many nodes.
func (f *fronts) fill(number int) {
	for x, id := range f.ids {
		row := make([]front, min(x+1, number)+1)
		for q := range row {
			if q < len(f.at[x]) {
				row[q] = slices.Clone(f.at[x][q])
			}
			if q > 0 {
				row[q] = f.spend(row[q], f.at[x][q-1], id)
			}
			if f.s.steps > maxSteps {
				return
			}
		}
		f.at = append(f.at, row)
	}
	last := f.at[len(f.ids)]
	for f.number = len(last) - 1; f.number > 0 && len(last[f.number]) == 0; f.number-- {
		continue
	}
}

// spend adds to a front what it costs to spare one more node after each of the
// given amounts.
func (f *fronts) spend(into, before front, id int) front {
	amount := make([]uint64, f.k)
	free, node := f.s.free.Contains(id), numa.Of(id)
	for at := 0; at < len(before); at += f.k {
		if free {
			into = f.add(into, before[at:at+f.k])
			continue
		}
		for i := range f.s.payers {
			if copy(amount, before[at:]); f.pay(amount, i, node, id) {
				into = f.add(into, amount)
			}
		}
		if f.s.steps > maxSteps {
			break
		}
	}
	return into
}

// pay adds to an amount what it costs a payer to spare a node; false if it cannot.
func (f *fronts) pay(amount []uint64, payer int, node numa.Mask, id int) bool {
	p := &f.s.payers[payer]
	if !p.can.Overlaps(node) {
		return false
	}
	for i := range p.budgets {
		at := f.first[payer] + i
		if amount[at] += p.budgets[i].prices[id]; amount[at] > f.slacks[at] {
			return false
		}
	}
	return true
}

// add puts an amount into a front unless another makes it useless, and takes out
// those that it makes useless.
func (f *fronts) add(into front, amount []uint64) front {
	f.s.steps += len(into)/f.k + 1
	kept := 0
	for at := 0; at < len(into); at += f.k {
		have := into[at : at+f.k]
		if within(have, amount) {
			return into // nothing was taken out: fronts have no two such amounts
		}
		if !within(amount, have) {
			copy(into[kept:], have)
			kept += f.k
		}
	}
	return append(into[:kept], amount...)
}

// within tells whether no number of a is larger than that of b.
func within(a, b []uint64) bool {
	for i := range a {
		if a[i] > b[i] {
			return false
		}
	}
	return true
}

// keep returns the numerically smallest set that is left when so many nodes are
// spared: from the highest id down every node is spared after which the rest
// still can be.
func (f *fronts) keep() numa.Mask {
	kept, q := f.s.universe, f.number
	spent := make(front, f.k)
	for x := len(f.ids) - 1; x >= 0 && q > 0; x-- {
		var next front
		reached := f.spend(nil, spent, f.ids[x])
		for at := 0; at < len(reached); at += f.k {
			if amount := reached[at : at+f.k]; f.completes(amount, f.at[x], q-1) {
				next = append(next, amount...)
			}
		}
		if len(next) > 0 {
			spent = next
			kept = kept.Without(f.ids[x])
			q--
		}
	}
	return kept
}

// completes tells whether q of the nodes of a row can be spared besides what is
// spent.
func (f *fronts) completes(spent []uint64, row []front, q int) bool {
	if q >= len(row) {
		return false
	}
next:
	for at := 0; at < len(row[q]); at += f.k {
		f.s.steps++
		for i, amount := range row[q][at : at+f.k] {
			if amount > f.slacks[i]-spent[i] {
				continue next
			}
		}
		return true
	}
	return false
}

// deals tells whether the given nodes can be spared.
func (f *fronts) deals(nodes numa.Mask) bool {
	spent := make(front, f.k)
	for id := range nodes.All() {
		if spent = f.spend(nil, spent, id); len(spent) == 0 {
			return false
		}
	}
	return true
}

// deal says which of the given nodes each payer spares; nil if they cannot be
// spared, or not in time.
func (f *fronts) deal(nodes numa.Mask) []numa.Mask {
	f.s.steps = 0
	ids := nodes.IDs()
	layers := []front{make(front, f.k)}
	for _, id := range ids {
		layers = append(layers, f.spend(nil, layers[len(layers)-1], id))
	}
	last := layers[len(ids)]
	if len(last) == 0 || f.s.steps > maxSteps {
		return nil
	}
	taken := make([]numa.Mask, len(f.s.payers))
	amount := last[:f.k]
	for x, id := range slices.Backward(ids) {
		payer, before := f.undo(layers[x], amount, id)
		taken[payer] = taken[payer].With(id)
		amount = before
	}
	return taken
}

// undo finds who spared a node last, and what was spent before.
func (f *fronts) undo(before front, amount []uint64, id int) (payer int, spent []uint64) {
	trial := make([]uint64, f.k)
	for at := 0; at < len(before); at += f.k {
		for i := range f.s.payers {
			if copy(trial, before[at:]); f.pay(trial, i, numa.Of(id), id) && slices.Equal(trial, amount) {
				return i, before[at : at+f.k]
			}
		}
	}
	return 0, before[:f.k]
}
