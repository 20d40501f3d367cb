package topology

import (
	"fmt"
	"strings"

	"github.com/berthd/berth/managers/hint"
	"github.com/berthd/berth/managers/ledger"
)

// Stage says how far a merge came.
type Stage string

const (
	// Unasked: policy none merges nothing.
	Unasked Stage = "unasked"
	// Preferred: there is a preferred candidate.
	Preferred Stage = "preferred"
	// NotPreferred: there are candidates, none of them preferred.
	NotPreferred Stage = "not-preferred"
	// NoCandidate: no choice leaves any node; the result is the whole machine.
	NoCandidate Stage = "no-candidate"
)

// keptLosers is how many of the candidates that lost a Result names.
const keptLosers = 4

// Result is the outcome of a merge with its explanation.
type Result struct {
	// Affinity to plan with.
	Affinity ledger.Affinity
	// Admit tells whether the policy lets the request in.
	Admit bool
	Stage Stage
	// B is the smallest number of nodes that serves the list that needs most.
	B int
	// Losers are the candidates that came after the result in the same stage,
	// best first; Omitted counts those beyond the first few.
	Losers  []ledger.Affinity
	Omitted int
	// Path has one choice that leads to the result, a hint of every list, in the
	// order of the replies. Lists without a preference are left out. It is empty
	// where no candidate was left, where rules were merged without being listed,
	// and where finding it would cost more than the merge.
	Path []Chosen
	// Conflict names lists that no preferred result can serve together: one that
	// has no preferred hint at all, or the first two that have none in common.
	// Empty at stage Preferred, and if only three or more lists together fail.
	Conflict []Source
	// Approximate marks a result that ran out of its work budget: it is a
	// candidate, but maybe not the best.
	Approximate bool
	// Work counts the hints read and the pairs of node sets looked at.
	Work int
}

// Source names a list.
type Source struct {
	Provider string
	Resource string
}

// String names the source as "provider for resource".
func (s Source) String() string { return s.Provider + " for " + s.Resource }

// Chosen is the hint of one list in a choice.
type Chosen struct {
	Source
	Hint hint.Hint
}

// Step returns the result as a step of a trace.
func (r *Result) Step() ledger.Step {
	affinity := r.Affinity
	return ledger.Step{
		Kind:        ledger.StepMerged,
		Affinity:    &affinity,
		Hints:       r.Losers,
		Omitted:     r.Omitted,
		Approximate: r.Approximate,
		Text:        r.Text(),
	}
}

// Text explains the result in a sentence or two.
func (r *Result) Text() string {
	var b strings.Builder
	switch r.Stage {
	case Unasked:
		b.WriteString("policy none: nobody is asked")
	case Preferred:
		b.WriteString("preferred by all")
		if r.Affinity.Any {
			b.WriteString(": any nodes will do")
		} else {
			fmt.Fprintf(&b, ": nodes %s", r.Affinity.Nodes)
		}
	case NotPreferred:
		fmt.Fprintf(&b, "no placement is preferred by all; nodes %s come nearest to the %d that are needed at least",
			r.Affinity.Nodes, r.B)
	case NoCandidate:
		b.WriteString("no nodes are left that serve all")
	}
	switch len(r.Conflict) {
	case 1:
		fmt.Fprintf(&b, "; %s prefers nothing", r.Conflict[0])
	case 2:
		fmt.Fprintf(&b, "; %s and %s prefer no nodes in common", r.Conflict[0], r.Conflict[1])
	}
	if r.Approximate {
		b.WriteString("; the search was cut short, a better placement may exist")
	}
	return b.String()
}
