package hint

import (
	"fmt"
	"math"
	"strconv"

	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/workload"
)

const (
	// shownOptions is how many options of an answer a trace keeps.
	shownOptions = 8
	// shownSets is the largest number of node sets of a rule that a trace lists: those of four
	// nodes. For more, the rule itself is clearer.
	shownSets = 1 << 4
)

// answered returns the trace step of one answer.
func answered(req Request, provider string, a ResourceAnswer) ledger.Step {
	if a.Kind == ByRule && triable(a.Rule.optional(), shownSets) {
		if hints, err := a.Expand(shownSets); err == nil && len(hints) > 0 {
			a.Kind, a.Hints = Options, hints
		}
	}
	s := ledger.Step{
		Kind:      ledger.StepAnswered,
		Container: req.Owner().Container,
		Provider:  provider,
		Resource:  a.Resource,
		Answer:    string(a.Kind),
	}
	switch a.Kind {
	case Impossible:
		s.Text = a.Reason
	case ByRule:
		s.Text = a.Rule.text(workload.Resource(a.Resource))
		if len(a.Hints) > 0 {
			s.Text += "; or one of these sets"
		}
	}
	if a.Because != "" {
		s.Text = join(s.Text, a.Because)
	}
	s.Hints = a.Hints
	if extra := len(a.Hints) - shownOptions; extra > 0 {
		s.Hints, s.Omitted = a.Hints[:shownOptions:shownOptions], extra
	}
	return s
}

// join puts two texts together, of which the first may be empty.
func join(a, b string) string {
	if a == "" {
		return b
	}
	return a + "; " + b
}

// text describes a rule for a resource.
func (r *Rule) text(resource workload.Resource) string {
	also := ""
	for i := range r.Also {
		also += fmt.Sprintf(" and %s of %s", needed(workload.Resource(r.Also[i].Resource), r.Also[i].Need), r.Also[i].Resource)
	}
	among := ""
	if !r.Must.IsEmpty() {
		among = ", " + r.Must.String() + " among them"
	}
	preferred := ""
	switch r.PreferredSize {
	case 0:
	case 1:
		preferred = "; one node is preferred"
	default:
		preferred = fmt.Sprintf("; %d nodes are preferred", r.PreferredSize)
	}
	return "any of the nodes " + r.Universe.String() + " that have " + needed(resource, r.Need) + also + " together" + among + preferred
}

// needed writes an amount of a resource.
func needed(resource workload.Resource, amount uint64) string {
	if resource == workload.Memory || resource.IsHugePages() {
		return resource.Text(int64(min(amount, math.MaxInt64)))
	}
	return strconv.FormatUint(amount, 10)
}

// planned is the step of one planned claim.
func planned(c *ledger.Claim) ledger.Step {
	return ledger.Step{
		Kind:      ledger.StepPlanned,
		Container: c.Owner.Container,
		Provider:  c.Provider,
		Resource:  c.Resource,
		Affinity:  c.Affinity,
		Claim:     c,
	}
}
