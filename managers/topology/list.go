package topology

import (
	"github.com/berthd/berth/managers/hint"
	"github.com/berthd/berth/managers/numa"
)

// list is one provider's answer for one resource, with the properties found by one scan of
// its hints. An answer without a preference creates no list. Its only mask is "everything",
// so it would not change P, A or B.
type list struct {
	source Source
	// hints are the answer's hints; of a rule the hints in addition to it.
	hints []hint.Hint
	// rule is set if the answer is a rule that allows at least one set.
	rule *hint.Rule
	// impossible: no set of nodes serves the request.
	impossible bool
	// abstains: the list has a preferred hint without nodes.
	abstains bool
	// names: the list has a hint that names nodes.
	names bool
	// preferred is the number of preferred hints that name nodes. favoured are the hints
	// from the first of them to the last.
	preferred int
	favoured  []hint.Hint
	// mentioned are the nodes of all hints; every node if one hint names none.
	mentioned numa.Mask
	// least is the smallest number of nodes that a hint names; 0 if no hint names nodes, or
	// if one names the empty set.
	least int
	// cut: the search for least reached its limit, so least may be too large.
	cut bool
	// singles are the nodes that form a preferred hint of one node; set only under
	// single-numa-node.
	singles numa.Mask
}

// impossible is the kubelet's form of an answer for a request that cannot be served.
var impossible = []hint.Hint{{Any: true}}

// everything is the mask of a hint that names no nodes.
const everything = ^numa.Mask(0)

// mask returns the nodes that remain with a hint.
func mask(h hint.Hint) numa.Mask {
	if h.Any {
		return everything
	}
	return h.Nodes
}

// read appends the lists of the replies to lists, and counts their hints.
func read(lists []list, replies []hint.Reply) (_ []list, hints int) {
	for i := range replies {
		reply := &replies[i]
		for j := range reply.Answers {
			a := &reply.Answers[j]
			l := list{source: Source{reply.Provider, a.Resource}}
			switch a.Kind {
			case hint.NoPreference:
				continue
			case hint.Options:
				l.hints = a.Hints
			case hint.ByRule:
				l.hints = a.Hints
				if a.Rule != nil && a.Rule.Allows(a.Rule.Universe) {
					l.rule = a.Rule
				}
			}
			if len(l.hints) == 0 && l.rule == nil {
				l.hints, l.impossible = impossible, true
			}
			l.scan()
			hints += len(l.hints)
			lists = append(lists, l)
		}
	}
	return lists, hints
}

// scan computes the list's properties from its hints. It reads every hint, which is most of
// the cost of a merge with a preferred result.
func (l *list) scan() {
	var mentioned numa.Mask
	preferred, unnamed, least := 0, 0, numa.MaxNodes
	first, last := 0, -1
	for i := range l.hints {
		h := &l.hints[i]
		if h.Any {
			unnamed++
			l.abstains = l.abstains || h.Preferred
			continue
		}
		if h.Preferred {
			if preferred == 0 {
				first = i
			}
			preferred, last = preferred+1, i
		}
		mentioned |= h.Nodes
		least = min(least, h.Nodes.Len())
	}
	l.preferred, l.favoured, l.mentioned = preferred, l.hints[first:last+1], mentioned
	if unnamed > 0 {
		l.mentioned = everything
	}
	if unnamed < len(l.hints) {
		l.names, l.least = true, least
	}
	if l.rule != nil {
		s := search(l.rule)
		l.least = min(s.Fewest(), least)
		l.cut = s.Cut()
		l.names, l.mentioned = true, l.mentioned|l.rule.Universe
	}
}

// keepSingles reduces the list to the hints that count under single-numa-node.
func (l *list) keepSingles() {
	if l.rule != nil && l.rule.PreferredSize == 1 {
		for id := range l.rule.Universe.All() {
			if node := numa.Of(id); l.rule.Allows(node) {
				l.singles |= node
			}
		}
	}
	for i := range l.hints {
		if h := &l.hints[i]; h.Preferred && !h.Any && h.Nodes.Len() == 1 {
			l.singles |= h.Nodes
		}
	}
	l.least = min(l.singles.Len(), 1)
}
