package topology

import (
	"fmt"
	"slices"
	"strings"

	"github.com/berthd/berth/managers/hint"
	"github.com/berthd/berth/managers/ledger"
)

// Stage is the outcome of a merge.
type Stage string

const (
	// Unasked: policy none merges nothing.
	Unasked Stage = "unasked"
	// Preferred: there is a preferred candidate.
	Preferred Stage = "preferred"
	// NotPreferred: there are candidates, none of them preferred.
	NotPreferred Stage = "not-preferred"
	// NoCandidate: no choice leaves a node. The result is the whole machine.
	NoCandidate Stage = "no-candidate"
)

// keptLosers is the number of losing candidates in a Result.
const keptLosers = 4

// Result is the outcome of a merge with its explanation.
type Result struct {
	// Affinity is the set of nodes to plan with.
	Affinity ledger.Affinity
	// Admit is whether the policy admits the request.
	Admit bool
	Stage Stage
	// B is defined in the package comment.
	B int
	// Losers are the next best candidates of the same stage, best first. Omitted is the
	// number of further ones. For rules only the next few are computed.
	Losers  []ledger.Affinity
	Omitted int
	// Path is one choice that leads to the result: a hint of every list, in the order of
	// the replies, and one allowed set of each rule. Lists without a preference are
	// omitted. Path is empty if no candidate is left, or if the search would cost more than
	// the merge.
	Path []Chosen
	// Conflict names lists that no preferred result can serve together: one list without
	// preferred hints, or the first two without a common one. It is empty at stage
	// Preferred, and if only three or more lists conflict.
	Conflict []Source
	// Approximate marks a result whose search reached its limit. It is a candidate, but
	// maybe not the best.
	Approximate bool
	// Work counts the hints read and the pairs of node sets examined.
	Work int

	policy Policy
	// impossible names the lists that no set of nodes serves.
	impossible []Source
}

// Source names a list.
type Source struct {
	Provider string
	Resource string
}

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
	var text string
	switch r.Stage {
	case Unasked:
		text = "policy none: no provider is called"
	case Preferred:
		text = nodes(r.Affinity) + " preferred by all"
	default:
		text = r.why() + "; " + r.judgement()
	}
	if r.Approximate {
		text += "; the search was cut short, a better placement may exist"
	}
	return text
}

// nodes returns the beginning of a sentence about the nodes of a result.
func nodes(a ledger.Affinity) string {
	switch {
	case a.Any:
		return "any nodes are"
	case a.Nodes.Len() == 1:
		return "node " + a.Nodes.String() + " is"
	}
	return "nodes " + a.Nodes.String() + " are"
}

// why returns the reason for the lack of a preferred result.
func (r *Result) why() string {
	single := r.policy == SingleNUMANode
	switch {
	case len(r.impossible) > 0:
		return names(r.impossible) + " cannot be given"
	case len(r.Conflict) == 1 && single:
		return "no single node can give " + names(r.Conflict)
	case len(r.Conflict) == 1:
		return "no nodes are preferred for " + names(r.Conflict)
	case len(r.Conflict) == 2 && single:
		return "no single node can give both " + names(r.Conflict)
	case len(r.Conflict) == 2:
		return "no nodes are preferred for both " + names(r.Conflict)
	case single:
		return "no single node can give everything"
	}
	return "no nodes are preferred by all"
}

// judgement returns the policy's decision on a result that is not preferred.
func (r *Result) judgement() string {
	switch {
	case !r.Admit:
		return "policy " + string(r.policy) + " refuses"
	case r.Stage == NoCandidate:
		return "policy " + string(r.policy) + " continues with all nodes"
	}
	return "policy " + string(r.policy) + " continues with " +
		strings.TrimSuffix(strings.TrimSuffix(nodes(r.Affinity), " is"), " are") + r.common()
}

// shownChosen is the number of hints of a path that a sentence lists.
const shownChosen = 6

// common names the sets of nodes whose intersection is the result, if there is more than
// one.
func (r *Result) common() string {
	var list []string
	apart := false
	for _, c := range r.Path {
		if !c.Hint.Any {
			list = append(list, c.Resource+" on "+c.Hint.Nodes.String())
			apart = apart || c.Hint.Nodes != r.Affinity.Nodes
		}
	}
	if !apart || len(list) < 2 {
		return ""
	}
	if more := len(list) - shownChosen; more > 0 {
		list = append(list[:shownChosen], fmt.Sprintf("%d more", more))
	}
	last := len(list) - 1
	return ", which " + strings.Join(list[:last], ", ") + " and " + list[last] + " have in common"
}

// names lists sources by their resources. If the resources are ambiguous, the providers are
// added.
func names(sources []Source) string {
	var list []string
	for _, s := range sources {
		list = append(list, s.Resource)
	}
	slices.Sort(list)
	if len(slices.Compact(list)) < len(sources) {
		list = list[:0]
		for _, s := range sources {
			list = append(list, s.Resource+" of "+s.Provider)
		}
	}
	last := len(list) - 1
	if last == 0 {
		return list[0]
	}
	return strings.Join(list[:last], ", ") + " and " + list[last]
}
