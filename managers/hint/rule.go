package hint

import (
	"fmt"
	"iter"
	"math"
	"math/bits"
	"slices"

	"github.com/berthd/berth/managers/fault"
	"github.com/berthd/berth/managers/numa"
)

// Rule describes a family of node sets without listing it: every M within
// Universe that contains Must and has enough of everything that is needed. The
// sets of exactly PreferredSize nodes are preferred.
type Rule struct {
	Universe numa.Mask
	Must     numa.Mask
	// Weights of a set must sum up to at least Need.
	Weights Weights
	Need    uint64
	// Also are further needs of the same kind, where a set serves several
	// resources at once: memory, and huge pages of each size.
	Also          []Threshold
	PreferredSize int
}

// MaxWeight bounds the weights and needs of a rule, so that sums over all nodes
// cannot wrap.
const MaxWeight = 1 << 57

// Weights are what each node contributes to a need, by node id.
type Weights [numa.MaxNodes]uint64

// Threshold is one need of a rule.
type Threshold struct {
	// Resource that is needed, for people.
	Resource string
	Weights  Weights
	Need     uint64
}

// Sum returns what the nodes of m contribute together; math.MaxUint64 if it is
// more than that.
func (w *Weights) Sum(m numa.Mask) uint64 {
	var sum uint64
	for rest := uint64(m); rest != 0; rest &= rest - 1 {
		next, carry := bits.Add64(sum, w[bits.TrailingZeros64(rest)], 0)
		if carry != 0 {
			return math.MaxUint64
		}
		sum = next
	}
	return sum
}

// Needs goes through the weights and the need of every threshold, the rule's own
// first.
func (r *Rule) Needs() iter.Seq2[*Weights, uint64] {
	return func(yield func(*Weights, uint64) bool) {
		if !yield(&r.Weights, r.Need) {
			return
		}
		for i := range r.Also {
			if !yield(&r.Also[i].Weights, r.Also[i].Need) {
				return
			}
		}
	}
}

// check says what is wrong with a rule on a machine, empty if nothing is.
func (r *Rule) check(machine numa.Mask) string {
	switch {
	case r.Universe.IsEmpty() || !r.Universe.IsSubsetOf(machine):
		return fmt.Sprintf("the rule is about nodes %q, the machine has %s", r.Universe, machine)
	case !r.Must.IsSubsetOf(r.Universe):
		return fmt.Sprintf("the rule insists on nodes %s, outside its own %s", r.Must, r.Universe)
	}
	for weights, need := range r.Needs() {
		if most := max(need, slices.Max(weights[:])); most > MaxWeight {
			return fmt.Sprintf("the rule counts %d, expected at most %d", most, uint64(MaxWeight))
		}
	}
	return ""
}

// Allows tells whether a set of nodes is in the family. The empty set never is.
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

// Expand lists the family in enumeration order; empty if no set will do. It has
// to look at 2^n sets, n being the nodes of the universe that are not in Must,
// and refuses with class Exhausted if those are more than limit.
func (r *Rule) Expand(limit int) ([]Hint, error) {
	free := r.Universe.Minus(r.Must)
	if n := free.Len(); n >= 63 || 1<<n > limit {
		return nil, fault.Exhaustedf("expand a rule: %d free nodes make 2^%d sets, more than the %d allowed", n, n, limit)
	}
	hints := []Hint{}
	if !r.Must.IsSubsetOf(r.Universe) {
		return hints, nil
	}
	consider := func(m numa.Mask) {
		if r.Allows(m) {
			hints = append(hints, Hint{Nodes: m, Preferred: m.Len() == r.PreferredSize})
		}
	}
	consider(r.Must)
	for m := range numa.Subsets(free) {
		consider(m | r.Must)
	}
	if r.Must != 0 {
		SortHints(hints)
	}
	return hints, nil
}

// Expand lists what the answer says about node sets: its hints, and for ByRule
// also those of the rule, each once and in enumeration order. Where the rule has
// to look at more than limit sets it refuses with class Exhausted.
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
