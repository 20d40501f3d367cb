package sentences

import (
	"fmt"
	"strings"

	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/api/convert"
)

// Star marks preferred placements, and StarNote explains the mark.
const (
	Star     = "*"
	StarNote = Star + " preferred: no smaller set of nodes could do"
)

// Part is consecutive steps about the same owner.
type Part struct {
	// Owner is "pod", or "container NAME".
	Owner string   `json:"owner"`
	Steps []string `json:"steps"`
}

// Outcome is the verdict of a decision in a few words.
func Outcome(t *typesv1.Trace) string {
	switch {
	case t.GetAdmitted():
		return "admitted"
	case t.GetReason() != "":
		return fmt.Sprintf("rejected: %s: %s", t.GetReason(), t.GetMessage())
	}
	return "deferred: " + t.GetMessage()
}

// Steps returns the steps of a decision in order, by owner. Starred is true if a step has a Star. Only wide has the steps in which nothing
// is decided, and the combinations that lost.
func Steps(t *typesv1.Trace, steps []*typesv1.TraceStep, wide bool) (parts []Part, starred bool) {
	for _, s := range steps {
		line := step(s, t, wide)
		if line == "" {
			continue
		}
		if owner := Owner(s.GetContainerName()); len(parts) == 0 || parts[len(parts)-1].Owner != owner {
			parts = append(parts, Part{Owner: owner})
		}
		last := &parts[len(parts)-1]
		last.Steps = append(last.Steps, line)
		starred = starred || s.GetKind() == typesv1.TraceStepKind_TRACE_STEP_KIND_ANSWERED && strings.Contains(line, Star)
	}
	return parts, starred
}

// Owner names what a step is about.
func Owner(container string) string {
	if container == "" {
		return "pod"
	}
	return "container " + container
}

// step is a step in a line; empty if it is not shown.
func step(s *typesv1.TraceStep, t *typesv1.Trace, wide bool) string {
	switch s.GetKind() {
	case typesv1.TraceStepKind_TRACE_STEP_KIND_NOTED, typesv1.TraceStepKind_TRACE_STEP_KIND_REPLANNED:
		return "note: " + s.GetText()
	case typesv1.TraceStepKind_TRACE_STEP_KIND_ANSWERED:
		return Answer(s)
	case typesv1.TraceStepKind_TRACE_STEP_KIND_MERGED:
		return "merge: " + s.GetText() + losers(s, wide)
	case typesv1.TraceStepKind_TRACE_STEP_KIND_PLANNED:
		return s.GetProvider() + " gives " + Claim(s.GetClaim())
	case typesv1.TraceStepKind_TRACE_STEP_KIND_REFUSED:
		return refused(s, t)
	}
	if !wide {
		return ""
	}
	line := convert.Word(s.GetKind())
	if s.GetProvider() != "" {
		line += " by " + s.GetProvider()
	}
	if s.GetResource() != "" && s.GetResource() != s.GetProvider() {
		line += ", " + s.GetResource()
	}
	if s.GetText() != "" {
		line += ": " + s.GetText()
	}
	return line
}

// refused names the refusing provider. The provider's message is added only if the outcome does
// not have it.
func refused(s *typesv1.TraceStep, t *typesv1.Trace) string {
	if s.GetProvider() == "" {
		return ""
	}
	text := s.GetProvider() + " refuses"
	if s.GetResource() != "" && s.GetResource() != s.GetProvider() {
		text += " over " + s.GetResource()
	}
	if s.GetText() != t.GetMessage() {
		text += ": " + s.GetText()
	}
	return text
}

// Answer describes a provider's answer.
func Answer(s *typesv1.TraceStep) string {
	who := s.GetProvider() + " offers"
	if s.GetResource() != s.GetProvider() {
		who += " " + s.GetResource()
	}
	switch s.GetAnswer() {
	case typesv1.TopologyHintsKind_TOPOLOGY_HINTS_KIND_NO_PREFERENCE:
		return who + " on any node"
	case typesv1.TopologyHintsKind_TOPOLOGY_HINTS_KIND_IMPOSSIBLE:
		return strings.Replace(who, "offers", "cannot serve", 1) + ": " + s.GetText()
	case typesv1.TopologyHintsKind_TOPOLOGY_HINTS_KIND_CAPACITY_CONSTRAINT:
		if len(s.GetHints()) == 0 {
			return who + " on " + s.GetText()
		}
		return who + " on " + s.GetText() + ": " + offers(s.GetHints(), int(s.GetOmitted()))
	}
	return who + " on " + offers(s.GetHints(), int(s.GetOmitted()))
}

// offers returns a list of placements.
func offers(hints []*typesv1.TopologyHint, omitted int) string {
	var list []string
	for _, h := range hints {
		text := "{" + Hint(h) + "}"
		if h.GetPreferred() {
			text += Star
		}
		list = append(list, text)
	}
	text := "nodes " + strings.Join(list, ", ")
	if omitted > 0 {
		text += fmt.Sprintf(" and %d more", omitted)
	}
	return text
}

// losers describes the rejected combinations of a merge.
func losers(s *typesv1.TraceStep, wide bool) string {
	if !wide || len(s.GetHints()) == 0 {
		return ""
	}
	return "; lost: " + offers(s.GetHints(), int(s.GetOmitted()))
}
