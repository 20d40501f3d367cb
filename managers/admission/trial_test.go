package admission_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/berthd/berth/managers/admission"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/ledger/check"
	"github.com/berthd/berth/managers/topology"
	"github.com/berthd/berth/managers/workload"
)

// trial makes a trial with the managers of an engine.
func trial(h *fixture) *admission.Trial {
	bus, policy := h.Managers(h.ledger.View())
	return admission.NewTrial(h.Config, ledger.Empty(h.ledger.View().Rules()), bus, policy)
}

// TestTrialAgreesWithTheEngine: the same pods, the same verdicts and claims, and
// nothing is written and no external call is made.
func TestTrialAgreesWithTheEngine(t *testing.T) {
	t.Parallel()
	h := newFixture(t, topology.Restricted)
	try := trial(h)
	var tried, done []string
	tell := func(v admission.Verdict, view *ledger.View, uid string) string {
		p, _ := view.Pod(uid)
		if p == nil {
			return fmt.Sprint(v.Outcome, v.Reason, v.Message)
		}
		text := fmt.Sprint(v.Outcome, v.QoS)
		for _, c := range p.Claims {
			text += fmt.Sprint(" ", c.Owner, c.Resource)
			if c.CPUs != nil {
				text += fmt.Sprint(c.CPUs.Set)
			} else {
				text += fmt.Sprint(c.Devices.IDs())
			}
		}
		return text
	}
	pods := []workload.Pod{guaranteed("a", 2, 1), guaranteed("b", 1, 0), guaranteed("c", 40, 0), guaranteed("d", 1, 2),
		guaranteed("e", 1, 2)}
	for _, p := range pods {
		v, err := try.Admit(t.Context(), &p)
		must(t, err)
		tried = append(tried, tell(v, try.View(), p.UID))
	}
	if h.journal.Commits() != 0 || len(h.plugins.calls) != 0 {
		t.Errorf("%d commits, plugins were asked for %v", h.journal.Commits(), h.plugins.calls)
	}
	for _, p := range pods {
		v := h.admit(t, p)
		done = append(done, tell(v, h.ledger.View(), p.UID))
	}
	if got, want := strings.Join(tried, "\n"), strings.Join(done, "\n"); got != want {
		t.Errorf("tried\n%s\ndone\n%s", got, want)
	}
}

func TestTrialExplains(t *testing.T) {
	t.Parallel()
	h := newFixture(t, topology.Restricted)
	for _, tries := range []int{-1, 64} {
		h.Tries = tries
		p := guaranteed("a", 40, 0)
		v, err := trial(h).Admit(t.Context(), &p, "a note")
		must(t, err)
		explained := len(v.Trace.Steps[len(v.Trace.Steps)-1].Shortages) > 0
		if explained != (tries > 0) || v.Trace.Steps[0].Text != "a note" || v.Reason == "" {
			t.Errorf("%d tries: %+v", tries, v.Trace)
		}
	}
}

// TestFill continues until nothing is left, over more drafts than are kept apart.
func TestFill(t *testing.T) {
	t.Parallel()
	h := newFixture(t, topology.BestEffort)
	h.Tries = -1
	try := trial(h)
	p := guaranteed("a", 1, 0)
	free := try.View().AllocatableCPUs().Len()
	n, last, err := try.Fill(t.Context(), &p, 1000)
	must(t, err)
	if n != free || last.Outcome != admission.Rejected || last.Reason != errdefs.UnexpectedAdmissionError {
		t.Errorf("%d of %d, then %+v", n, free, last)
	}
	if findings := check.View(try.View()); len(findings) > 0 || try.View().NumPods() != n {
		t.Errorf("%d pods, %v", try.View().NumPods(), findings)
	}
	shared := workload.Pod{UID: "b", Name: "b", Namespace: "default", Containers: []workload.Container{{Name: "main"}}}
	if n, last, err = try.Fill(t.Context(), &shared, 100); err != nil || n != 100 || last.Outcome != admission.Admitted {
		t.Errorf("%d, %v, %v", n, last.Outcome, err)
	}
	if try.View().NumPods() != free+100 {
		t.Errorf("%d pods", try.View().NumPods())
	}
}
