package convert

import (
	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/managers/ledger"
)

// Trace returns the message form of an explanation; nil for none.
func Trace(t *ledger.Trace) *typesv1.Trace {
	if t == nil {
		return nil
	}
	out := &typesv1.Trace{
		AdmissionId: t.AdmissionID, PodUid: t.Pod, Namespace: t.Namespace, Name: t.Name,
		Generation: t.Generation, Admitted: t.Admitted, DryRun: t.DryRun,
		Reason: t.Reason, Message: t.Message, Tried: int32(t.Tried),
	}
	for i := range t.Steps {
		out.Steps = append(out.Steps, step(&t.Steps[i]))
	}
	for i := range t.Suggestions {
		out.Suggestions = append(out.Suggestions, suggestion(&t.Suggestions[i]))
	}
	return out
}

func step(s *ledger.Step) *typesv1.TraceStep {
	out := &typesv1.TraceStep{
		Kind: string(s.Kind), Container: s.Container, Provider: s.Provider, Resource: s.Resource,
		Answer: s.Answer, Hints: Hints(s.Hints), Omitted: int32(s.Omitted),
		Affinity: Hint(s.Affinity), Approximate: s.Approximate, Claim: Claim(s.Claim), Text: s.Text,
	}
	for _, short := range s.Shortages {
		m := &typesv1.Shortage{
			Resource: short.Resource, Nodes: short.Nodes, Need: short.Need, Free: short.Free, Held: short.Held,
			Withheld: short.Withheld, Why: short.Why, MoreHolders: int32(short.MoreHolders),
		}
		for _, h := range short.Holders {
			m.Holders = append(m.Holders, h.String())
		}
		out.Shortages = append(out.Shortages, m)
	}
	return out
}

func suggestion(s *ledger.Suggestion) *typesv1.Suggestion {
	out := &typesv1.Suggestion{
		Kind: string(s.Kind), Text: s.Text, Policy: s.Policy, Scope: s.Scope, RemovePodUids: s.Remove,
	}
	for _, r := range s.Requests {
		out.Requests = append(out.Requests, &typesv1.RequestChange{
			Container: r.Container, Resource: r.Resource, From: r.From, To: r.To,
		})
	}
	return out
}
