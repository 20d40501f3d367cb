package topology

import (
	"slices"

	"github.com/berthd/berth/managers/hint"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/numa"
)

// usualMasks is how many masks fit into a buffer on the stack: all preferred
// sets of one size on eight nodes.
const usualMasks = 80

// preferred looks for preferred candidates and reports whether there are any. A
// choice is preferred if all lists that do not abstain give the same mask; the
// others may abstain. If all may, everybody abstaining is a choice too, and so
// is any mask that one of them prefers.
func (m *Manager) preferred(lists []list, r *Result) bool {
	var buffer [usualMasks]numa.Mask
	masks, all := common(buffer[:0], lists)
	if all {
		masks = append(masks, everything)
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

// common returns the masks that every list prefers or abstains from, without
// repetition, appended to masks. If all lists abstain it returns every mask
// that any of them prefers, and true.
func common(masks []numa.Mask, lists []list) (_ []numa.Mask, all bool) {
	smallest := -1
	for i := range lists {
		if !lists[i].abstains && (smallest < 0 || lists[i].preferred < lists[smallest].preferred) {
			smallest = i
		}
	}
	if smallest < 0 {
		for i := range lists {
			masks = lists[i].appendPreferred(masks)
		}
		slices.Sort(masks)
		return slices.Compact(masks), true
	}
	masks = lists[smallest].appendPreferred(masks)
	slices.Sort(masks)
	masks = slices.Compact(masks)
	for i := range lists {
		if i != smallest && !lists[i].abstains && len(masks) > 0 {
			masks = lists[i].retain(masks)
		}
	}
	return masks, false
}

// appendPreferred appends the masks of the preferred hints that name nodes.
func (l *list) appendPreferred(masks []numa.Mask) []numa.Mask {
	for i := range l.hints {
		if h := &l.hints[i]; h.Preferred && !h.Any {
			masks = append(masks, h.Nodes)
		}
	}
	return masks
}

// retain keeps, in place, those of the sorted masks that the list prefers.
func (l *list) retain(masks []numa.Mask) []numa.Mask {
	var buffer [usualMasks]bool
	found := buffer[:]
	if len(masks) > len(found) {
		found = make([]bool, len(masks))
	}
	for i := range l.hints {
		if h := &l.hints[i]; h.Preferred && !h.Any {
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

// agreed returns the preferred choice that gives a raw mask: of each list the
// preferred hint that names it, or else the abstention.
func agreed(lists []list, raw numa.Mask) []Chosen {
	path := make([]Chosen, 0, len(lists))
	for i := range lists {
		l := &lists[i]
		chosen := Chosen{l.source, hint.Hint{Any: true, Preferred: true}}
		if slices.Contains(l.hints, hint.Hint{Nodes: raw, Preferred: true}) {
			chosen.Hint = hint.Hint{Nodes: raw, Preferred: true}
		}
		path = append(path, chosen)
	}
	return path
}

// conflict names the first list that prefers nothing, or else the first two
// that apart tells to have nothing preferred in common.
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

// disjoint tells whether two lists prefer no mask in common; of a list and
// itself, whether it prefers none at all.
func disjoint(a, b *list) bool {
	if a == b || min(a.preferred, b.preferred) == 0 {
		return a.preferred == 0 || b.preferred == 0
	}
	var buffer [usualMasks]numa.Mask
	masks := a.appendPreferred(buffer[:0])
	slices.Sort(masks)
	for i := range b.hints {
		if h := &b.hints[i]; h.Preferred && !h.Any {
			if _, ok := slices.BinarySearch(masks, h.Nodes); ok {
				return false
			}
		}
	}
	return true
}
