package convert

import (
	"fmt"
	"slices"

	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/hint"
)

// AnswersOf returns the message form of what one provider answered; nothing
// where the request does not concern it.
func AnswersOf(provider string, replies []hint.Reply) []*typesv1.TopologyHints {
	for _, r := range replies {
		if r.Provider == provider {
			return Answers(r.Answers)
		}
	}
	return nil
}

// Answers returns the message form of a provider's answers for people. A rule is
// listed, unless the list would be too long to be read.
func Answers(answers []hint.ResourceAnswer) []*typesv1.TopologyHints {
	out := GivenAnswers(answers)
	for i, a := range answers {
		if a.Kind != hint.ByRule {
			continue
		}
		if list, err := a.Expand(maxListed); err == nil {
			out[i] = listed(a.Resource, list)
		}
	}
	return out
}

// listed is the answer that a rule stands for; a rule without a set is impossible.
func listed(resource string, list []hint.Hint) *typesv1.TopologyHints {
	if len(list) == 0 {
		return &typesv1.TopologyHints{Resource: resource, Kind: typesv1.TopologyHintsKind_TOPOLOGY_HINTS_KIND_IMPOSSIBLE,
			Reason: "no set of nodes is allowed by the rule"}
	}
	return &typesv1.TopologyHints{Resource: resource, Kind: typesv1.TopologyHintsKind_TOPOLOGY_HINTS_KIND_OPTIONS, Hints: Hints(list)}
}

// GivenAnswers returns the message form of a provider's answers as they were
// given: a rule stays a rule.
func GivenAnswers(answers []hint.ResourceAnswer) []*typesv1.TopologyHints {
	out := make([]*typesv1.TopologyHints, len(answers))
	for i, a := range answers {
		m := &typesv1.TopologyHints{Resource: a.Resource}
		switch a.Kind {
		case hint.NoPreference:
			m.Kind = typesv1.TopologyHintsKind_TOPOLOGY_HINTS_KIND_NO_PREFERENCE
		case hint.Impossible:
			m.Kind, m.Reason = typesv1.TopologyHintsKind_TOPOLOGY_HINTS_KIND_IMPOSSIBLE, a.Reason
		case hint.Options:
			m.Kind, m.Hints = typesv1.TopologyHintsKind_TOPOLOGY_HINTS_KIND_OPTIONS, Hints(a.Hints)
		case hint.ByRule:
			m.Kind, m.CapacityConstraint, m.Hints = typesv1.TopologyHintsKind_TOPOLOGY_HINTS_KIND_CAPACITY_CONSTRAINT, Rule(a.Rule),
				Hints(a.Hints)
		}
		out[i] = m
	}
	return out
}

// maxListed bounds how many hints a rule is listed as.
const maxListed = 1 << 16

// ReadAnswers reads a provider's answers; path names them in errors.
func ReadAnswers(path string, answers []*typesv1.TopologyHints) ([]hint.ResourceAnswer, error) {
	var vs errdefs.Violations
	out := make([]hint.ResourceAnswer, len(answers))
	for i, m := range answers {
		at := fmt.Sprintf("%s[%d]", path, i)
		a := hint.ResourceAnswer{Resource: m.GetResource()}
		if a.Resource == "" {
			vs.Addf(at+".resource", "is required")
		}
		switch m.GetKind() {
		case typesv1.TopologyHintsKind_TOPOLOGY_HINTS_KIND_NO_PREFERENCE:
			a.Kind = hint.NoPreference
		case typesv1.TopologyHintsKind_TOPOLOGY_HINTS_KIND_IMPOSSIBLE:
			a.Kind, a.Reason = hint.Impossible, m.GetReason()
		case typesv1.TopologyHintsKind_TOPOLOGY_HINTS_KIND_OPTIONS:
			a.Kind, a.Hints = hint.Options, readHints(at+".hints", m.GetHints(), &vs)
			if len(a.Hints) == 0 {
				vs.Addf(at+".hints", "expected at least one hint; an answer without any is IMPOSSIBLE")
			}
		case typesv1.TopologyHintsKind_TOPOLOGY_HINTS_KIND_CAPACITY_CONSTRAINT:
			a.Kind, a.Rule = hint.ByRule, readRule(at+".capacity_constraint", m.GetCapacityConstraint(), &vs)
			a.Hints = readHints(at+".hints", m.GetHints(), &vs)
			if slices.ContainsFunc(a.Hints, func(h hint.Hint) bool { return h.Any }) {
				vs.Addf(at+".hints", "expected nodes in every hint that comes with a rule")
			}
		default:
			vs.Addf(at+".kind", "expected NO_PREFERENCE, IMPOSSIBLE, OPTIONS or CAPACITY_CONSTRAINT")
		}
		out[i] = a
	}
	return out, vs.Err("request")
}

func readHints(path string, hints []*typesv1.TopologyHint, vs *errdefs.Violations) []hint.Hint {
	if len(hints) == 0 {
		return nil
	}
	out := make([]hint.Hint, len(hints))
	for i, m := range hints {
		out[i] = readHint(fmt.Sprintf("%s[%d]", path, i), m, vs)
	}
	hint.SortHints(out)
	return out
}

// ReadHint reads the hint that a plan is to follow; path names it in errors.
func ReadHint(path string, m *typesv1.TopologyHint) (hint.Hint, error) {
	var vs errdefs.Violations
	h := readHint(path, m, &vs)
	return h, vs.Err("request")
}

func readHint(path string, m *typesv1.TopologyHint, vs *errdefs.Violations) hint.Hint {
	h := hint.Hint{
		Any: m.GetNumaNodes() == nil, Preferred: m.GetPreferred(),
		Nodes: ReadMask(path+".numa_nodes", m.GetNumaNodes(), vs),
	}
	if !h.Any && len(m.GetNumaNodes().GetIds()) == 0 {
		vs.Addf(path+".numa_nodes", "expected a node; a hint without an opinion has no numa_nodes")
	}
	return h
}
