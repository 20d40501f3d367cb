package topology

import (
	"github.com/berthd/berth/managers/hint"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/numa"
)

// oracle is the merge by its definition: it enumerates every choice, as the
// package comment describes one, and keeps the smallest by the keys given there.
// It shares no code with the merge.
type oracle struct {
	policy  Policy
	closest bool
	nodes   []int // D
	dist    numa.Distances
}

// few reports whether there are few enough choices for the oracle to look at.
func few(lists [][]hint.Hint) bool {
	product := 1
	for _, list := range lists {
		if product *= max(len(list), 1); product > 1<<10 {
			return false
		}
	}
	return true
}

// written reads the replies as the reference does: every answer as a list.
func written(replies []hint.Reply) [][]hint.Hint {
	var lists [][]hint.Hint
	for _, reply := range replies {
		if len(reply.Answers) == 0 {
			lists = append(lists, []hint.Hint{{Any: true, Preferred: true}})
		}
		for _, a := range reply.Answers {
			var list []hint.Hint
			switch a.Kind {
			case hint.NoPreference:
				list = []hint.Hint{{Any: true, Preferred: true}}
			case hint.Impossible:
				list = []hint.Hint{{Any: true}}
			case hint.Options:
				list = a.Hints
			case hint.ByRule:
				list = append(list, a.Hints...)
				for m := range numa.Subsets(a.Rule.Universe) {
					if a.Rule.Must.IsSubsetOf(m) && enough(a.Rule, m) {
						list = append(list, hint.Hint{Nodes: m, Preferred: m.Len() == a.Rule.PreferredSize})
					}
				}
				if len(list) == 0 {
					list = []hint.Hint{{Any: true}}
				}
			}
			lists = append(lists, list)
		}
	}
	return lists
}

// enough reports whether some nodes satisfy every need of a rule.
func enough(r *hint.Rule, nodes numa.Mask) bool {
	met := weight(&r.Weights, nodes) >= r.Need
	for i := range r.Also {
		met = met && weight(&r.Also[i].Weights, nodes) >= r.Also[i].Need
	}
	return met
}

func weight(weights *numa.Weights, nodes numa.Mask) (sum uint64) {
	for id := range nodes.All() {
		sum += weights[id]
	}
	return sum
}

// counted returns what a policy counts of the lists.
func (o oracle) counted(lists [][]hint.Hint) [][]hint.Hint {
	if o.policy != SingleNUMANode {
		return lists
	}
	var out [][]hint.Hint
	for _, list := range lists {
		kept := []hint.Hint{}
		for _, h := range list {
			if h.Preferred && (h.Any || h.Nodes.Len() == 1) {
				kept = append(kept, h)
			}
		}
		out = append(out, kept)
	}
	return out
}

// verdict is what the oracle and the merge are compared by.
type verdict struct {
	affinity ledger.Affinity
	admit    bool
}

func (o oracle) merge(lists [][]hint.Hint) verdict {
	machine := numa.Of(o.nodes...)
	lists = o.counted(lists)
	b := bound(lists)
	var best []int64
	result := ledger.Affinity{Nodes: machine}
	chosen := make([]hint.Hint, len(lists))
	var walk func(i int)
	walk = func(i int) {
		if i < len(lists) {
			for _, h := range lists[i] {
				chosen[i] = h
				walk(i + 1)
			}
			return
		}
		candidate := o.candidate(machine, chosen)
		if candidate.Nodes.IsEmpty() {
			return
		}
		if key := o.key(candidate, b); best == nil || less(key, best) {
			best, result = key, candidate
		}
	}
	walk(0)
	return o.verdict(result)
}

// bound is B.
func bound(lists [][]hint.Hint) int {
	b := 0
	for _, list := range lists {
		least := -1
		for _, h := range list {
			if !h.Any && (least < 0 || h.Nodes.Len() < least) {
				least = h.Nodes.Len()
			}
		}
		b = max(b, least)
	}
	return b
}

func (o oracle) verdict(result ledger.Affinity) verdict {
	if o.policy == SingleNUMANode && result.Nodes == numa.Of(o.nodes...) {
		result = ledger.Affinity{Any: true, Preferred: result.Preferred}
	}
	return verdict{result, o.policy == BestEffort || result.Preferred}
}

// candidate merges one choice.
func (o oracle) candidate(machine numa.Mask, chosen []hint.Hint) ledger.Affinity {
	c := ledger.Affinity{Nodes: machine, Preferred: true}
	var first *hint.Hint
	for i, h := range chosen {
		c.Preferred = c.Preferred && h.Preferred
		if h.Any {
			continue
		}
		if first == nil {
			first = &chosen[i]
		}
		c.Preferred = c.Preferred && h.Nodes == first.Nodes
		c.Nodes = c.Nodes.Intersect(h.Nodes)
	}
	return c
}

// key makes the order of candidates that of numbers from left to right.
func (o oracle) key(c ledger.Affinity, b int) []int64 {
	size := int64(c.Nodes.Len())
	var dist int64
	if o.closest && o.policy != SingleNUMANode {
		for _, i := range c.Nodes.IDs() {
			for _, j := range c.Nodes.IDs() {
				d, _ := o.dist.Between(i, j)
				dist += int64(d)
			}
		}
	}
	value := int64(c.Nodes)
	switch {
	case c.Preferred:
		return []int64{0, 0, size, dist, value}
	case size <= int64(b):
		return []int64{1, 0, -size, dist, value}
	}
	return []int64{1, 1, size, dist, value}
}

func less(a, b []int64) bool {
	for i := range a {
		if a[i] != b[i] {
			return a[i] < b[i]
		}
	}
	return false
}
