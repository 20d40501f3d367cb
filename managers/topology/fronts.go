package topology

import (
	"slices"

	"github.com/berthd/berth/managers/numa"
)

// front is a set of amounts spent, one number for each budget, none of which is
// at least as large as another in every number. Amounts lie one after the other.
type front []uint64

// fronts are the amounts that sparing some number of nodes of the universe can
// cost: at[x][q] for q of its x lowest nodes. They cover all q that lead to
// numbers between low and number. When the sparing runs out of steps they know
// nothing, and it is marked as cut.
type fronts struct {
	*dealer
	number, low int
	k           int // budgets
	ids         []int
	at          [][]front
	amount      []uint64 // scratch
}

func newFronts(d *dealer, number, low int) *fronts {
	f := &fronts{dealer: d, number: number, low: low, k: len(d.slacks), ids: d.s.universe.IDs()}
	f.amount = make([]uint64, f.k)
	f.at = append(f.at, []front{make(front, f.k)})
	for x := 0; number > 0 && x < len(f.ids) && !f.exhausted(); x++ {
		f.extend(x)
	}
	return f
}

// exhausted tells whether there is no time for more, and marks that.
func (f *fronts) exhausted() bool {
	f.s.cut = f.s.cut || f.s.steps > f.s.limit
	return f.s.steps > f.s.limit
}

// extend adds the row of the x+1 lowest nodes.
func (f *fronts) extend(x int) {
	row := make([]front, min(x+1, f.number)+1)
	for q := max(0, f.low-(len(f.ids)-x-1)); q < len(row); q++ {
		if q < len(f.at[x]) {
			row[q] = slices.Clone(f.at[x][q])
		}
		if q > 0 {
			row[q] = f.spend(row[q], f.at[x][q-1], f.ids[x])
		}
	}
	f.at = append(f.at, row)
}

// spend adds to a front what it costs to spare one more node after each of the
// given amounts.
func (f *fronts) spend(into, before front, id int) front {
	free, node := f.s.free.Contains(id), numa.Of(id)
	for at := 0; at < len(before) && f.s.steps <= f.s.limit; at += f.k {
		if free {
			into = f.add(into, before[at:at+f.k])
			continue
		}
		for i := range f.s.payers {
			if copy(f.amount, before[at:]); f.pay(f.amount, i, node, id) {
				into = f.add(into, f.amount)
			}
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

// most returns a largest set of nodes that can be spared, among those of at most
// number.
func (f *fronts) most() numa.Mask {
	if f.exhausted() {
		return 0
	}
	last := f.at[len(f.ids)]
	for q := len(last) - 1; q > 0; q-- {
		if len(last[q]) > 0 {
			return f.spared(len(f.ids), q, last[q][:f.k])
		}
	}
	return 0
}

// completed returns a set of nodes that can be spared: the given ones and q of the
// x lowest; none if there is none.
func (f *fronts) completed(sure numa.Mask, x, q int) numa.Mask {
	spent := make(front, f.k)
	for id := range sure.All() {
		spent = f.spend(nil, spent, id)
	}
	if f.exhausted() || q >= len(f.at[x]) {
		return 0
	}
	row := f.at[x][q]
	for at := 0; at < len(spent); at += f.k {
		for rest := 0; rest < len(row); rest += f.k {
			if f.s.steps++; f.together(spent[at:at+f.k], row[rest:rest+f.k]) {
				return sure | f.spared(x, q, row[rest:rest+f.k])
			}
		}
	}
	return 0
}

// together tells whether two amounts are within the slacks.
func (f *fronts) together(a, b []uint64) bool {
	for i := range a {
		if a[i] > f.slacks[i]-b[i] {
			return false
		}
	}
	return true
}

// spared returns the q of the x lowest nodes that cost an amount.
func (f *fronts) spared(x, q int, amount []uint64) numa.Mask {
	var out numa.Mask
	for ; q > 0; x-- {
		if q < len(f.at[x-1]) && f.has(f.at[x-1][q], amount) {
			continue
		}
		q--
		out = out.With(f.ids[x-1])
		_, amount = f.undo(f.at[x-1][q], amount, f.ids[x-1])
	}
	return out
}

func (f *fronts) has(row front, amount []uint64) bool {
	for at := 0; at < len(row); at += f.k {
		if slices.Equal(row[at:at+f.k], amount) {
			return true
		}
	}
	return false
}

// deal says which of the given nodes each payer spares; nil if they cannot be
// spared, or not in time.
func (f *fronts) deal(nodes numa.Mask) []numa.Mask {
	ids := nodes.Minus(f.s.free).IDs()
	layers := []front{make(front, f.k)}
	for _, id := range ids {
		layers = append(layers, f.spend(nil, layers[len(layers)-1], id))
	}
	last := layers[len(ids)]
	if len(last) == 0 || f.exhausted() {
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
	for at := 0; at < len(before); at += f.k {
		if spent = before[at : at+f.k]; f.s.free.Contains(id) && slices.Equal(spent, amount) {
			return 0, spent
		}
		for i := range f.s.payers {
			if copy(f.amount, spent); f.pay(f.amount, i, numa.Of(id), id) && slices.Equal(f.amount, amount) {
				return i, spent
			}
		}
	}
	return 0, before[:f.k]
}
