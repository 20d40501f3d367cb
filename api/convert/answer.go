package convert

import (
	"fmt"

	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/managers/fault"
	"github.com/berthd/berth/managers/hint"
	"github.com/berthd/berth/managers/numa"
)

// AnswersOf returns the message form of what one provider answered; nothing
// where the request does not concern it.
func AnswersOf(provider string, replies []hint.Reply) ([]*typesv1.Answer, error) {
	for _, r := range replies {
		if r.Provider == provider {
			return Answers(r.Answers)
		}
	}
	return nil, nil
}

// Answers returns the message form of a provider's answers. A rule is listed.
func Answers(answers []hint.ResourceAnswer) ([]*typesv1.Answer, error) {
	out := make([]*typesv1.Answer, len(answers))
	for i, a := range answers {
		m := &typesv1.Answer{Resource: a.Resource}
		switch a.Kind {
		case hint.NoPreference:
			m.Kind = typesv1.AnswerKind_ANSWER_KIND_NO_PREFERENCE
		case hint.Impossible:
			m.Kind, m.Reason = typesv1.AnswerKind_ANSWER_KIND_IMPOSSIBLE, a.Reason
		case hint.Options:
			m.Kind, m.Hints = typesv1.AnswerKind_ANSWER_KIND_OPTIONS, Hints(a.Hints)
		case hint.ByRule:
			list, err := a.Rule.Expand(maxListed)
			if err != nil {
				return nil, fmt.Errorf("list the hints for %s: %w", a.Resource, err)
			}
			m.Kind, m.Hints = typesv1.AnswerKind_ANSWER_KIND_OPTIONS, Hints(list)
		}
		out[i] = m
	}
	return out, nil
}

// maxListed bounds how many hints a rule is listed as.
const maxListed = 1 << 16

// ReadAnswers reads a provider's answers; path names them in errors.
func ReadAnswers(path string, answers []*typesv1.Answer) ([]hint.ResourceAnswer, error) {
	var vs fault.Violations
	out := make([]hint.ResourceAnswer, len(answers))
	for i, m := range answers {
		at := fmt.Sprintf("%s[%d]", path, i)
		a := hint.ResourceAnswer{Resource: m.GetResource()}
		if a.Resource == "" {
			vs.Addf(at+".resource", "is required")
		}
		switch m.GetKind() {
		case typesv1.AnswerKind_ANSWER_KIND_NO_PREFERENCE:
			a.Kind = hint.NoPreference
		case typesv1.AnswerKind_ANSWER_KIND_IMPOSSIBLE:
			a.Kind, a.Reason = hint.Impossible, m.GetReason()
		case typesv1.AnswerKind_ANSWER_KIND_OPTIONS:
			a.Kind, a.Hints = hint.Options, readHints(at+".hints", m.GetHints(), &vs)
		default:
			vs.Addf(at+".kind", "expected NO_PREFERENCE, IMPOSSIBLE or OPTIONS")
		}
		out[i] = a
	}
	return out, vs.Err("request")
}

func readHints(path string, hints []*typesv1.Hint, vs *fault.Violations) []hint.Hint {
	out := make([]hint.Hint, len(hints))
	for i, m := range hints {
		h := hint.Hint{Any: m.GetNodes() == nil, Preferred: m.GetPreferred()}
		for _, id := range m.GetNodes().GetNodes() {
			if id >= numa.MaxNodes {
				vs.Addf(fmt.Sprintf("%s[%d].nodes", path, i), "node %d: expected 0 to %d", id, numa.MaxNodes-1)
				continue
			}
			h.Nodes = h.Nodes.With(int(id))
		}
		if !h.Any && len(m.GetNodes().GetNodes()) == 0 {
			vs.Addf(fmt.Sprintf("%s[%d].nodes", path, i), "expected a node; a hint without an opinion has no nodes field")
		}
		out[i] = h
	}
	hint.SortHints(out)
	if len(out) == 0 {
		vs.Addf(path, "expected at least one hint; an answer without any is IMPOSSIBLE")
	}
	return out
}
