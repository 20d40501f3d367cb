package hinttest

import (
	"context"
	"fmt"
	"reflect"
	"testing"

	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/hint"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/ledger/check"
	"github.com/berthd/berth/managers/ledger/journal"
	"github.com/berthd/berth/managers/workload"
)

// Setup is a provider with its test data.
type Setup struct {
	Provider hint.Provider
	// View on a machine, with or without pods of its own.
	View *ledger.View
	// Pods to try; the view contains none of them. Together they should cause answers, plans and
	// refusals.
	Pods []*workload.Pod
}

// Run tries the provider that factory makes and reports every promise it
// breaks.
func Run(t *testing.T, factory func() Setup) {
	t.Helper()
	for _, finding := range Check(t.Context(), factory) {
		t.Error(finding)
	}
}

// Check is Run with the findings as its result. A setup without work for the provider is a
// finding.
func Check(ctx context.Context, factory func() Setup) []string {
	s := &suite{ctx: ctx, factory: factory}
	first, second := factory(), factory()
	s.name = first.Provider.Name()
	if s.name == "" {
		s.addf("the provider has no name")
	}
	if again := first.Provider.Name(); again != s.name {
		s.addf("the name was %q and then %q", s.name, again)
	}
	if other := second.Provider.Name(); other != s.name {
		s.addf("the name was %q, of a fresh provider %q", s.name, other)
	}
	for _, pod := range first.Pods {
		s.pod(first, second, pod)
	}
	if s.plans == 0 {
		s.addf("no pod of the setup made the provider plan anything")
	}
	return s.findings
}

type suite struct {
	ctx      context.Context
	factory  func() Setup
	name     string
	findings []string
	plans    int
}

func (s *suite) addf(format string, args ...any) {
	s.findings = append(s.findings, fmt.Sprintf(format, args...))
}

// pod processes a pod as an admission does: as a whole, and container by container with each plan
// added to the draft for the next one.
func (s *suite) pod(first, second Setup, pod *workload.Pod) {
	record := &ledger.Pod{Pod: *pod, QoS: pod.QoSClass(workload.Features{PodLevelResources: true})}
	before, given := dump(first.View), fmt.Sprintf("%+v", *pod)
	draft := ledger.NewDraft(first.View)
	draft.PutPod(record)
	s.request(first, second, draft, hint.Request{Pod: &record.Pod, Container: -1}, false)
	for i := range pod.Containers {
		s.request(first, second, draft, hint.Request{Pod: &record.Pod, Container: i}, true)
	}
	for i := -1; i < len(pod.Containers); i++ {
		s.prepare(first, draft, hint.Request{Pod: &record.Pod, Container: i})
	}
	if dump(first.View) != before {
		s.addf("pod %s: the view changed", pod.UID)
	}
	if fmt.Sprintf("%+v", *pod) != given {
		s.addf("pod %s: the pod changed", pod.UID)
	}
}

// request gets hints and plans for one request; keep adds the last plan to the draft.
func (s *suite) request(first, second Setup, draft *ledger.Draft, req hint.Request, keep bool) {
	view := draft.View()
	before := dump(view)
	answers := s.hints(first.Provider, view, req)
	if other := s.hints(second.Provider, view, req); !reflect.DeepEqual(answers, other) {
		s.addf("%s: a fresh provider answers otherwise: %+v, not %+v", req.Owner(), other, answers)
	}
	var claims []ledger.Claim
	for _, affinity := range affinities(answers) {
		if planned := s.plan(first.Provider, second.Provider, view, req, affinity); len(planned) > 0 {
			claims = planned
			s.plans++
		}
	}
	if again := s.hints(first.Provider, view, req); !reflect.DeepEqual(answers, again) {
		s.addf("%s: after planning, the hints are %+v, not %+v", req.Owner(), again, answers)
	}
	if dump(view) != before {
		s.addf("%s: the view changed", req.Owner())
	}
	if keep {
		draft.AddClaims(req.Pod.UID, claims...)
	}
}

// affinities are what a merge might decide: any nodes, all nodes that some
// answer mentions, and some of the options themselves.
func affinities(answers []hint.ResourceAnswer) []hint.Hint {
	out := []hint.Hint{{Any: true, Preferred: true}}
	for i := range answers {
		options := answers[i].Hints
		if r := answers[i].Rule; r != nil {
			out = append(out, hint.Hint{Nodes: r.Universe})
		}
		for j, o := range options {
			if j < 8 || j == len(options)-1 {
				out = append(out, o)
			}
		}
	}
	return out
}

// hints gets the hints twice and checks their form.
func (s *suite) hints(p hint.Provider, view *ledger.View, req hint.Request) []hint.ResourceAnswer {
	answers, err := p.Hints(s.ctx, view, req)
	if err != nil {
		s.addf("hints for %s: %v", req.Owner(), err)
		return nil
	}
	if err := hint.CheckReply(hint.Reply{Provider: s.name, Answers: answers}, view.Machine().NodeMask()); err != nil {
		s.addf("hints for %s: %v", req.Owner(), err)
	}
	if again, err := p.Hints(s.ctx, view, req); err != nil || !reflect.DeepEqual(answers, again) {
		s.addf("hints for %s were %+v and then %+v, %v", req.Owner(), answers, again, err)
	}
	return answers
}

// plan plans twice, and with a fresh provider, and checks form and claims.
func (s *suite) plan(p, fresh hint.Provider, view *ledger.View, req hint.Request, affinity hint.Hint) []ledger.Claim {
	what := fmt.Sprintf("plan for %s with %+v", req.Owner(), affinity)
	claims, err := p.Plan(s.ctx, view, req, affinity)
	for _, other := range []hint.Provider{p, fresh} {
		again, againErr := other.Plan(s.ctx, view, req, affinity)
		if fmt.Sprint(err) != fmt.Sprint(againErr) || !reflect.DeepEqual(claims, again) {
			s.addf("%s: once %+v, %v, and then %+v, %v", what, claims, err, again, againErr)
		}
	}
	if err != nil {
		if errdefs.ClassOf(err) == errdefs.Internal {
			s.addf("%s: the error has no class: %v", what, err)
		}
		if len(claims) > 0 {
			s.addf("%s: claims together with an error", what)
		}
		return nil
	}
	if err := hint.CheckPlan(s.name, req, claims); err != nil {
		s.addf("%s: %v", what, err)
		return nil
	}
	trial := ledger.NewDraft(view)
	trial.AddClaims(req.Pod.UID, claims...)
	for _, f := range check.View(trial.View()) {
		s.addf("%s: %s", what, f)
	}
	return claims
}

// prepare prepares twice what the draft holds for a request.
func (s *suite) prepare(setup Setup, draft *ledger.Draft, req hint.Request) {
	pod, _ := draft.View().Pod(req.Pod.UID)
	var planned []ledger.Claim
	for _, c := range pod.Claims {
		if c.Owner == req.Owner() {
			planned = append(planned, c)
		}
	}
	preparer, ok := setup.Provider.(hint.Preparer)
	if len(planned) == 0 || !ok {
		return
	}
	prepared, err := preparer.Prepare(s.ctx, "admission", req, planned)
	if err != nil {
		s.addf("prepare for %s: %v", req.Owner(), err)
		return
	}
	if err := hint.CheckPrepared(s.name, planned, prepared); err != nil {
		s.addf("prepare for %s: %v", req.Owner(), err)
	}
	if again, err := preparer.Prepare(s.ctx, "admission", req, planned); err != nil || !reflect.DeepEqual(prepared, again) {
		s.addf("prepare for %s gave %+v, and when repeated %+v, %v", req.Owner(), prepared, again, err)
	}
}

// dump makes views comparable.
func dump(v *ledger.View) string {
	entries, err := journal.Dump(v)
	return fmt.Sprintf("%q %v", entries, err)
}
