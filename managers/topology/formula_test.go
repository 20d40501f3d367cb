package topology

import (
	"slices"

	"github.com/berthd/berth/managers/hint"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/numa"
)

// formula is the merge as the package comment writes it down, P and A as sets of
// all their masks, which takes no time on a few nodes. It shares no code with the
// merge, and has to agree with the oracle.
type formula struct {
	machine numa.Mask
	// lists as they were given, and those of them that name one node or none.
	lists, narrow [][]hint.Hint
	// reached are the masks of A.
	reached []numa.Mask
}

func newFormula(nodes []int, lists [][]hint.Hint) *formula {
	f := &formula{machine: numa.Of(nodes...), lists: lists}
	f.narrow = oracle{policy: SingleNUMANode}.counted(lists)
	f.reached = f.reach()
	return f
}

// reach computes A list by list. Masks are numbered by the places of their nodes.
func (f *formula) reach() []numa.Mask {
	ids := f.machine.IDs()
	full := 1<<len(ids) - 1
	reached := distinct{}
	reached.add(full)
	for _, list := range f.lists {
		masks := distinct{}
		for _, h := range list {
			x := full
			for i, id := range ids {
				if !h.Any && !h.Nodes.Contains(id) {
					x &^= 1 << i
				}
			}
			masks.add(x)
		}
		next := distinct{}
		for _, a := range reached.masks {
			for _, b := range masks.masks {
				next.add(a & b)
			}
		}
		reached = next
	}
	var out []numa.Mask
	for _, x := range reached.masks {
		var m numa.Mask
		for i, id := range ids {
			if x>>i&1 != 0 {
				m = m.With(id)
			}
		}
		out = append(out, m)
	}
	return out
}

// distinct are numbers of masks of at most maxExact nodes, each once, without the
// empty one.
type distinct struct {
	masks []int
	seen  [1 << maxExact]bool
}

func (d *distinct) add(x int) {
	if x != 0 && !d.seen[x] {
		d.seen[x] = true
		d.masks = append(d.masks, x)
	}
}

// served are the masks of at least floor nodes that every list names, or, where a
// list has a hint without nodes, could have named.
func (f *formula) served(floor int) []numa.Mask {
	named := map[numa.Mask]int{}
	open := 0
	for _, list := range f.lists {
		if slices.ContainsFunc(list, func(h hint.Hint) bool { return h.Any }) {
			open++
			continue
		}
		once := map[numa.Mask]bool{}
		for _, h := range list {
			if !once[h.Nodes] {
				once[h.Nodes] = true
				named[h.Nodes]++
			}
		}
	}
	var out []numa.Mask
	for raw, n := range named {
		if nodes := raw & f.machine; n+open == len(f.lists) && nodes.Len() >= floor {
			out = append(out, nodes)
		}
	}
	return out
}

// preferred computes P.
func (f *formula) preferred(lists [][]hint.Hint) []numa.Mask {
	var common map[numa.Mask]bool  // what all lists prefer that do not abstain
	some := []numa.Mask{f.machine} // what some list prefers
	for _, list := range lists {
		abstains, masks := false, map[numa.Mask]bool{}
		for _, h := range list {
			switch {
			case !h.Preferred:
			case h.Any:
				abstains = true
			default:
				masks[h.Nodes] = common == nil || common[h.Nodes]
				some = append(some, h.Nodes&f.machine)
			}
		}
		if abstains {
			continue
		}
		common = map[numa.Mask]bool{}
		for m, kept := range masks {
			if kept {
				common[m] = true
			}
		}
	}
	if common == nil {
		return some
	}
	var out []numa.Mask
	for m := range common {
		out = append(out, m&f.machine)
	}
	return out
}

func (f *formula) merge(o oracle) verdict {
	lists := f.lists
	if o.policy == SingleNUMANode {
		lists = f.narrow
	}
	b := bound(lists)
	best, found := [3]int64{}, false
	result := ledger.Affinity{Nodes: f.machine}
	consider := func(m numa.Mask, preferred bool) {
		order := m.Len()
		if !preferred && order <= b {
			order = b - order // B, B-1, … 1, and then B+1, B+2, …
		}
		key := [3]int64{int64(order), 0, int64(m)}
		if m == 0 || found && key[0] > best[0] {
			return
		}
		if o.closest && o.policy != SingleNUMANode {
			key[1] = o.dist.Sum(m)
		}
		if !found || less(key[:], best[:]) {
			best, found = key, true
			result = ledger.Affinity{Nodes: m, Preferred: preferred}
		}
	}
	for _, m := range f.preferred(lists) {
		consider(m, true)
	}
	if !found && o.policy != SingleNUMANode {
		for _, m := range f.reached {
			consider(m, false)
		}
	}
	return o.verdict(result)
}
