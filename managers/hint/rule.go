package hint

import (
	"fmt"
	"iter"
	"slices"

	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/numa"
)

// Rule describes a family of node sets without listing it: every M within
// Universe that contains Must and has enough of everything that is needed. The
// sets of exactly PreferredSize nodes are preferred.
type Rule struct {
	Universe numa.Mask
	Must     numa.Mask
	// Weights of a set must sum up to at least Need.
	Weights numa.Weights
	Need    uint64
	// Also are further needs of the same kind, where a set serves several
	// resources at once: memory, and huge pages of each size.
	Also          []Threshold
	PreferredSize int
}

// MaxWeight bounds the weights and needs of a rule, so that sums over all nodes
// cannot wrap.
const MaxWeight = 1 << 57

// Threshold is one need of a rule.
type Threshold struct {
	// Resource that is needed, for people.
	Resource string
	Weights  numa.Weights
	Need     uint64
}

// Needs yields what a set must have enough of, the rule's own need first.
func (r *Rule) Needs() iter.Seq[numa.Need] {
	return func(yield func(numa.Need) bool) {
		if !yield(numa.Need{Weights: &r.Weights, Amount: r.Need}) {
			return
		}
		for i := range r.Also {
			if !yield(numa.Need{Weights: &r.Also[i].Weights, Amount: r.Also[i].Need}) {
				return
			}
		}
	}
}

// check describes an error of a rule on a machine; empty if there is none.
func (r *Rule) check(machine numa.Mask) string {
	switch {
	case r.Universe.IsEmpty() || !r.Universe.IsSubsetOf(machine):
		return fmt.Sprintf("the rule is about nodes %q, the machine has %s", r.Universe, machine)
	case !r.Must.IsSubsetOf(r.Universe):
		return fmt.Sprintf("the rule insists on nodes %s, outside its own %s", r.Must, r.Universe)
	}
	for n := range r.Needs() {
		if most := max(n.Amount, slices.Max(n.Weights[:])); most > MaxWeight {
			return fmt.Sprintf("the rule counts %d, expected at most %d", most, uint64(MaxWeight))
		}
	}
	return ""
}

// Allows reports whether a set of nodes is in the family. The empty set never is.
func (r *Rule) Allows(m numa.Mask) bool {
	if m == 0 || !m.IsSubsetOf(r.Universe) || !r.Must.IsSubsetOf(m) || r.Weights.Sum(m) < r.Need {
		return false
	}
	for i := range r.Also {
		if r.Also[i].Weights.Sum(m) < r.Also[i].Need {
			return false
		}
	}
	return true
}

// Within lists the sets of the family that contain every node of the universe outside of nodes,
// in ascending order as integers. It tries 2^n sets, where n is the number of nodes that may be
// missing.
func (r *Rule) Within(nodes numa.Mask) []Hint {
	free := nodes & r.Universe &^ r.Must
	fixed := r.Universe &^ free
	if !r.Must.IsSubsetOf(r.Universe) {
		return nil
	}
	sets := append(make([]numa.Mask, 0, 1<<free.Len()), fixed)
	for id := range free.All() {
		for _, set := range sets {
			sets = append(sets, set.With(id))
		}
	}
	short := make([]bool, len(sets))
	short[0] = fixed == 0
	sums := make([]uint64, 0, len(sets))
	for n := range r.Needs() {
		sums = append(sums[:0], n.Weights.Sum(fixed))
		for id := range free.All() {
			for _, sum := range sums {
				sums = append(sums, sum+n.Weights[id])
			}
		}
		for i, sum := range sums {
			short[i] = short[i] || sum < n.Amount
		}
	}
	hints := make([]Hint, 0, len(sets))
	for i, set := range sets {
		if !short[i] {
			hints = append(hints, Hint{Nodes: set, Preferred: set.Len() == r.PreferredSize})
		}
	}
	return hints
}

// optional returns the number of nodes that a set may have or not.
func (r *Rule) optional() int { return r.Universe.Minus(r.Must).Len() }

// triable returns whether 2^n sets are at most limit.
func triable(n, limit int) bool { return n < 63 && 1<<n <= limit }

// Expand lists the family in enumeration order; empty if no set satisfies the rule. It tries 2^n
// sets, where n is the number of optional nodes. More than limit is an error of class Exhausted.
func (r *Rule) Expand(limit int) ([]Hint, error) {
	if n := r.optional(); !triable(n, limit) {
		return nil, errdefs.Exhaustedf("expand a rule: %d free nodes make 2^%d sets, more than the %d allowed", n, n, limit)
	}
	hints := r.Within(r.Universe)
	SortHints(hints)
	return hints, nil
}

// Expand lists the node sets of the answer: its hints, and for ByRule also those of the rule,
// each once and in enumeration order. A rule with more than limit sets to try is an error of
// class Exhausted.
func (a *Answer) Expand(limit int) ([]Hint, error) {
	if a.Kind != ByRule {
		return a.Hints, nil
	}
	hints, err := a.Rule.Expand(limit)
	if err != nil || len(a.Hints) == 0 {
		return hints, err
	}
	hints = append(hints, a.Hints...)
	SortHints(hints)
	return slices.Compact(hints), nil
}
