package topology

import (
	"slices"

	"github.com/berthd/berth/managers/numa"
)

// front is a set of amounts spent, one number for each rule, none of which is
// at least as large as another in every number. Amounts lie one after the other.
type front []uint64

// fronts are the amounts that sparing some number of nodes of the universe can
// cost: at[x][q] for q of its x lowest nodes, as far as that number can still be
// reached from there. They are incomplete if the sparing runs out of steps.
type fronts struct {
	s      *sparing
	number int
	k      int // rules
	ids    []int
	at     [][]front
}

func newFronts(s *sparing, number int) *fronts {
	f := &fronts{s: s, number: number, k: len(s.rules), ids: s.universe.IDs()}
	n := len(f.ids)
	f.at = append(f.at, []front{make(front, f.k)})
	for x, id := range f.ids {
		row := make([]front, min(x+1, number)+1)
		for q := max(0, number-(n-x-1)); q < len(row); q++ {
			if q < len(f.at[x]) {
				row[q] = slices.Clone(f.at[x][q])
			}
			if q > 0 {
				row[q] = f.spend(row[q], f.at[x][q-1], id)
			}
			if s.steps > maxSteps {
				return f
			}
		}
		f.at = append(f.at, row)
	}
	return f
}

// spend adds to a front what it costs to spare one more node after each of the
// given amounts.
func (f *fronts) spend(into, before front, id int) front {
	amount := make([]uint64, f.k)
	for at := 0; at < len(before); at += f.k {
		if f.s.free.Contains(id) {
			into = f.add(into, before[at:at+f.k])
			continue
		}
		for i, r := range f.s.rules {
			if !f.s.can[i].Contains(id) || r.Weights[id] > f.s.slacks[i]-before[at+i] {
				continue
			}
			copy(amount, before[at:])
			amount[i] += r.Weights[id]
			into = f.add(into, amount)
		}
		if f.s.steps > maxSteps {
			break
		}
	}
	return into
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

// any tells whether so many nodes can be spared.
func (f *fronts) any() bool { return len(f.at[len(f.ids)][f.number]) > 0 }

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
			if amount > f.s.slacks[i]-spent[i] {
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
