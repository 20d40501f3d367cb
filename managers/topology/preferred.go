package topology

import (
	"slices"

	"github.com/berthd/berth/managers/hint"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/numa"
)

// usualMasks is the size of a buffer on the stack. It is enough for all preferred sets of
// one size on eight nodes.
const usualMasks = 80

// preferred finds preferred candidates and returns whether there are any. A choice is
// preferred if all lists that do not abstain have the same mask; the other lists must
// abstain. If all lists can abstain, two more kinds of choices are preferred: all lists
// abstain, or any one list's preferred mask is used.
func (m *Manager) preferred(lists []list, r *Result) bool {
	var buffer [usualMasks]numa.Mask
	masks := buffer[:0]
	switch smallest, voters := smallestVoter(lists); {
	case voters == 0:
		masks = append(anyPreferred(masks, lists), everything)
	case smallest == nil:
		masks = m.preferredByRules(masks, lists, r)
	default:
		masks = common(masks, lists, smallest)
	}
	var rank ranking
	for _, raw := range masks {
		if nodes := raw & m.nodes; nodes != 0 {
			if size := nodes.Len(); !rank.late(size) {
				rank.add(candidate{tier: size, distance: m.distance(nodes), nodes: nodes})
			} else {
				rank.seen++
			}
		}
	}
	r.Work += len(masks)
	if rank.kept == 0 {
		return false
	}
	best := rank.best[0].nodes
	r.Affinity = ledger.Affinity{Nodes: best, Preferred: true}
	rank.losers(r, 1, true)
	at := slices.IndexFunc(masks, func(raw numa.Mask) bool { return raw&m.nodes == best })
	r.Path = agreed(lists, masks[at])
	return true
}

// preferredByRules appends the masks that all non-abstaining lists prefer, if all of these
// lists have rules. These are the masks that all rules prefer, and the masks that one list
// names in addition to its rule and all others prefer.
func (m *Manager) preferredByRules(masks []numa.Mask, lists []list, r *Result) []numa.Mask {
	var voters []*list
	var rules []*hint.Rule
	for i := range lists {
		if l := &lists[i]; !l.abstains {
			voters, rules = append(voters, l), append(rules, l.rule)
			masks = l.appendPreferred(masks)
		}
	}
	masks = slices.DeleteFunc(masks, func(raw numa.Mask) bool {
		return slices.ContainsFunc(voters, func(l *list) bool { return !l.prefers(raw) })
	})
	masks = append(masks, m.preferredByAll(rules, r)...)
	slices.Sort(masks)
	return slices.Compact(masks)
}

// smallestVoter counts the lists that do not abstain. It returns the one with the fewest
// preferred hints, or nil if all of them have rules.
func smallestVoter(lists []list) (smallest *list, voters int) {
	for i := range lists {
		l := &lists[i]
		if l.abstains {
			continue
		}
		voters++
		if l.rule == nil && (smallest == nil || l.preferred < smallest.preferred) {
			smallest = l
		}
	}
	return smallest, voters
}

// anyPreferred appends every mask that any list prefers, without repetition.
func anyPreferred(masks []numa.Mask, lists []list) []numa.Mask {
	for i := range lists {
		masks = lists[i].appendPreferred(masks)
	}
	slices.Sort(masks)
	return slices.Compact(masks)
}

// common appends the masks that every list prefers or abstains from, without repetition.
// smallest must not abstain.
func common(masks []numa.Mask, lists []list, smallest *list) []numa.Mask {
	masks = smallest.appendPreferred(masks)
	slices.Sort(masks)
	masks = slices.Compact(masks)
	for i := range lists {
		if l := &lists[i]; l != smallest && !l.abstains && len(masks) > 0 {
			masks = l.retain(masks)
		}
	}
	return masks
}

// appendPreferred appends the masks of the preferred hints that name nodes.
func (l *list) appendPreferred(masks []numa.Mask) []numa.Mask {
	for i := range l.favoured {
		if h := &l.favoured[i]; h.Preferred && !h.Any {
			masks = append(masks, h.Nodes)
		}
	}
	return masks
}

// retain keeps, in place, the sorted masks that the list prefers.
func (l *list) retain(masks []numa.Mask) []numa.Mask {
	if l.rule != nil {
		return slices.DeleteFunc(masks, func(raw numa.Mask) bool { return !l.prefers(raw) })
	}
	var buffer [usualMasks]bool
	found := buffer[:]
	if len(masks) > len(found) {
		found = make([]bool, len(masks))
	}
	for i := range l.favoured {
		if h := &l.favoured[i]; h.Preferred && !h.Any {
			if at, ok := slices.BinarySearch(masks, h.Nodes); ok {
				found[at] = true
			}
		}
	}
	kept := 0
	for i, mask := range masks {
		if found[i] {
			masks[kept] = mask
			kept++
		}
	}
	return masks[:kept]
}

func (l *list) prefers(raw numa.Mask) bool {
	if l.rule != nil && raw.Len() == l.rule.PreferredSize && l.rule.Allows(raw) {
		return true
	}
	return slices.Contains(l.favoured, hint.Hint{Nodes: raw, Preferred: true})
}

// agreed returns the preferred choice for a mask: from each list the preferred hint that
// names the mask, or else the abstention.
func agreed(lists []list, raw numa.Mask) []Chosen {
	path := make([]Chosen, 0, len(lists))
	for i := range lists {
		l := &lists[i]
		chosen := Chosen{l.source, hint.Hint{Any: true, Preferred: true}}
		if l.prefers(raw) {
			chosen.Hint = hint.Hint{Nodes: raw, Preferred: true}
		}
		path = append(path, chosen)
	}
	return path
}

// conflict returns the first list without preferred hints, or else the first two lists for
// which apart returns true.
func conflict(lists []list, apart func(a, b *list) bool) []Source {
	for i := range lists {
		if l := &lists[i]; !l.abstains && apart(l, l) {
			return []Source{l.source}
		}
	}
	for i := range lists {
		for j := range lists[:i] {
			if a, b := &lists[j], &lists[i]; !a.abstains && !b.abstains && apart(a, b) {
				return []Source{a.source, b.source}
			}
		}
	}
	return nil
}

// disjoint returns whether two lists prefer no mask in common. For twice the same list, it
// returns whether the list prefers no mask.
func disjoint(a, b *list) bool {
	if a.rule == nil && b.rule == nil && a != b {
		var buffer [usualMasks]numa.Mask
		masks := a.appendPreferred(buffer[:0])
		slices.Sort(masks)
		return len(b.retain(masks)) == 0
	}
	if a.rule != nil && b.rule != nil && bothPrefer(a.rule, b.rule) {
		return false
	}
	return !a.sharesNamed(b) && !b.sharesNamed(a)
}

// sharesNamed returns whether another list prefers a mask that a preferred hint of this
// list names.
func (l *list) sharesNamed(other *list) bool {
	return slices.ContainsFunc(l.favoured, func(h hint.Hint) bool {
		return h.Preferred && !h.Any && other.prefers(h.Nodes)
	})
}
