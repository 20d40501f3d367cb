package decisions

import (
	"google.golang.org/protobuf/types/known/timestamppb"

	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/api/convert"
	"github.com/berthd/berth/managers/hint"
	"github.com/berthd/berth/managers/ledger"
)

// Trace returns the message form of an explanation that the ledger of a view has given; nil
// for none.
func Trace(v *ledger.View, t *ledger.Trace) *typesv1.Trace {
	if t == nil {
		return nil
	}
	out := &typesv1.Trace{
		AdmissionId: t.AdmissionID, PodUid: t.Pod, Namespace: t.Namespace, Name: t.Name,
		Admitted: t.Admitted, DryRun: t.DryRun,
		Reason: t.Reason, Message: t.Message, Tried: int32(t.Tried), ResourceClaim: t.ResourceClaim,
		Missing: t.Missing,
	}
	if !t.Time.IsZero() {
		out.DecideTime = timestamppb.New(t.Time)
	}
	if v != nil {
		out.Revision = v.RevisionOf(t.Generation)
	}
	// Every answer to Admit has some of these: one piece of memory for all.
	steps := make([]typesv1.TraceStep, len(t.Steps))
	out.Steps = make([]*typesv1.TraceStep, len(t.Steps))
	for i := range t.Steps {
		out.Steps[i] = &steps[i]
		fillStep(&steps[i], &t.Steps[i])
	}
	for i := range t.Suggestions {
		out.Suggestions = append(out.Suggestions, suggestion(&t.Suggestions[i]))
	}
	return out
}

func fillStep(out *typesv1.TraceStep, s *ledger.Step) {
	out.Kind, out.ContainerName, out.Provider, out.Resource = stepKinds[s.Kind], s.Container, s.Provider, s.Resource
	out.Answer, out.Hints, out.Omitted = answerKinds[s.Answer], convert.Hints(s.Hints), int32(s.Omitted)
	out.Affinity, out.Approximate, out.Claim = convert.Hint(s.Affinity), s.Approximate, stepClaim(s.Claim)
	out.Shortages, out.Text = convert.Shortages(s.Shortages), s.Text
}

var (
	stepKinds       = stepsByWord()
	suggestionKinds = convert.Words[typesv1.SuggestionKind]()
	answerKinds     = map[string]typesv1.TopologyHintsKind{
		string(hint.NoPreference): typesv1.TopologyHintsKind_TOPOLOGY_HINTS_KIND_NO_PREFERENCE,
		string(hint.Impossible):   typesv1.TopologyHintsKind_TOPOLOGY_HINTS_KIND_IMPOSSIBLE,
		string(hint.Options):      typesv1.TopologyHintsKind_TOPOLOGY_HINTS_KIND_OPTIONS,
		string(hint.ByRule):       typesv1.TopologyHintsKind_TOPOLOGY_HINTS_KIND_CAPACITY_CONSTRAINT,
	}
)

func stepsByWord() map[ledger.StepKind]typesv1.TraceStepKind {
	out := make(map[ledger.StepKind]typesv1.TraceStepKind)
	for plain, kind := range convert.Words[typesv1.TraceStepKind]() {
		out[ledger.StepKind(plain)] = kind
	}
	return out
}

// stepClaim returns the message form of a step's claim, without what the step itself has.
func stepClaim(c *ledger.Claim) *typesv1.Claim {
	out := convert.Claim(c)
	if out != nil {
		out.PodUid, out.ContainerName, out.Provider, out.Resource = "", "", "", ""
	}
	return out
}

func suggestion(s *ledger.Suggestion) *typesv1.Suggestion {
	out := &typesv1.Suggestion{
		Kind: suggestionKinds[string(s.Kind)], Text: s.Text, Policy: s.Policy, Scope: s.Scope, RemovePodUids: s.Remove,
		WaitPodUids: s.Wait, How: s.How,
	}
	for _, r := range s.Requests {
		out.Requests = append(out.Requests, &typesv1.RequestChange{
			ContainerName: r.Container, Resource: r.Resource, Current: r.From, Proposed: r.To,
		})
	}
	return out
}
