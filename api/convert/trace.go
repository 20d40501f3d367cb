package convert

import (
	"strings"

	typesv1 "github.com/berthd/berth/api/berth/types/v1"
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
		Reason: t.Reason, Message: t.Message, Tried: int32(t.Tried),
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
	out.Kind, out.Container, out.Provider, out.Resource = string(s.Kind), s.Container, s.Provider, s.Resource
	out.Answer, out.Hints, out.Omitted = s.Answer, Hints(s.Hints), int32(s.Omitted)
	out.Affinity, out.Approximate, out.Claim = Hint(s.Affinity), s.Approximate, stepClaim(s.Claim)
	out.Shortages, out.Text = Shortages(s.Shortages), s.Text
}

// stepClaim returns the message form of a step's claim, without what the step itself has.
func stepClaim(c *ledger.Claim) *typesv1.Claim {
	out := Claim(c)
	if out != nil {
		out.PodUid, out.Container, out.Provider, out.Resource = "", "", "", ""
	}
	return out
}

// Shortages returns the message form of shortages.
func Shortages(list []ledger.Shortage) []*typesv1.Shortage {
	var out []*typesv1.Shortage
	for _, short := range list {
		m := &typesv1.Shortage{
			Resource: short.Resource, Nodes: short.Nodes, Need: short.Need, Free: short.Free, Held: short.Held,
			Withheld: short.Withheld, Why: short.Why, MoreHolders: int32(short.MoreHolders),
		}
		for _, h := range short.Holders {
			m.Holders = append(m.Holders, h.String())
		}
		out = append(out, m)
	}
	return out
}

// ReadShortages reads shortages. What they say is for people, and not checked.
func ReadShortages(list []*typesv1.Shortage) []ledger.Shortage {
	var out []ledger.Shortage
	for _, m := range list {
		s := ledger.Shortage{
			Resource: m.GetResource(), Nodes: m.GetNodes(), Need: m.GetNeed(), Free: m.GetFree(), Held: m.GetHeld(),
			Withheld: m.GetWithheld(), Why: m.GetWhy(), MoreHolders: int(m.GetMoreHolders()),
		}
		for _, h := range m.GetHolders() {
			pod, container, _ := strings.Cut(h, "/")
			s.Holders = append(s.Holders, ledger.Owner{Pod: pod, Container: container})
		}
		out = append(out, s)
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
