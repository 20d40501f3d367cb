package hint

import (
	"fmt"

	"github.com/berthd/berth/managers/ledger"
)

// shownOptions is how many options of an answer a trace keeps.
const shownOptions = 8

// asked is the step of one answer.
func asked(req Request, provider string, a *ResourceAnswer) ledger.Step {
	s := ledger.Step{
		Kind:      ledger.StepAsked,
		Container: req.Owner().Container,
		Provider:  provider,
		Resource:  a.Resource,
		Answer:    string(a.Kind),
	}
	switch a.Kind {
	case Impossible:
		s.Text = a.Reason
	case Options:
		s.Hints = a.Hints
		if extra := len(a.Hints) - shownOptions; extra > 0 {
			s.Hints, s.Omitted = a.Hints[:shownOptions:shownOptions], extra
		}
	case ByRule:
		s.Text = a.Rule.text()
	}
	return s
}

// text describes a rule in a few words.
func (r *Rule) text() string {
	s := fmt.Sprintf("node sets within %s that add up to %d", r.Universe, r.Need)
	if !r.Must.IsEmpty() {
		s += fmt.Sprintf(" and contain %s", r.Must)
	}
	return fmt.Sprintf("%s; preferred are those of %d", s, r.PreferredSize)
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
