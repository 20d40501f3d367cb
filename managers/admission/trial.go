package admission

import (
	"context"
	"fmt"
	"time"

	"github.com/berthd/berth/managers/hint"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/topology"
	"github.com/berthd/berth/managers/workload"
)

// Trial decides about pods one after another on a ledger in memory; each pod sees the
// claims of the earlier ones. It makes no remote call; the built-in choice replaces that of
// plugins and external providers. It is not safe for concurrent use.
type Trial struct {
	engine  *Engine
	view    *ledger.View
	skipped map[string]bool
	now     time.Time
}

// NewTrial starts on a view, for example ledger.Empty. The managers decide as in an engine
// with that configuration. With Tries below 0, rejections have only a reason and no
// explanation, which is many times faster.
func NewTrial(cfg Config, view *ledger.View, bus *hint.Bus, policy *topology.Manager) *Trial {
	t := &Trial{view: view}
	t.engine = New(cfg, Parts{
		Managers:    func(*ledger.View) (*hint.Bus, *topology.Manager) { return bus, policy },
		Environment: Environment{Now: func() time.Time { return t.now }},
	})
	return t
}

// ForClaims adds the managers for resource claims, and returns the trial; see Parts.ClaimManagers.
func (t *Trial) ForClaims(managers func(*workload.Pod) (*hint.Bus, *topology.Manager, error)) *Trial {
	t.engine.ClaimManagers = func(_ *ledger.View, claim *workload.Pod) (*hint.Bus, *topology.Manager, error) {
		return managers(claim)
	}
	return t
}

// On continues with a view, at a time. The time is zero before.
func (t *Trial) On(view *ledger.View, now time.Time) { t.view, t.now = view, now }

// Engine is the engine that decides.
func (t *Trial) Engine() *Engine { return t.engine }

// View has the admitted pods.
func (t *Trial) View() *ledger.View { return t.view }

// Admit decides about a pod, which must be defaulted and valid, like pods in a ledger. The
// notes are added to its trace. Errors are those of Engine.Admit.
func (t *Trial) Admit(ctx context.Context, pod *workload.Pod, notes ...string) (Verdict, error) {
	return t.decide(ctx, pod, false, notes...)
}

// decide is Admit, of a pod that may be running.
func (t *Trial) decide(ctx context.Context, pod *workload.Pod, running bool, notes ...string) (Verdict, error) {
	return t.candidate(ctx, &candidate{
		Engine: t.engine,
		record: &ledger.Pod{Pod: *pod, QoS: pod.QoSClass(t.engine.Features), AdmissionID: "trial of " + pod.UID},
		notes:  notes, running: running,
	})
}

func (t *Trial) candidate(ctx context.Context, c *candidate) (Verdict, error) {
	c.dryRun, c.calls = true, &hint.Calls{Mode: hint.Trial}
	v, known, err := c.known(t.view, t.view)
	if !known && err == nil {
		v, err = c.decide(hint.WithCalls(ctx, c.calls), t.view)
	}
	t.skipped = c.calls.Skipped
	switch {
	case err != nil:
	case v.Outcome == Admitted:
		t.view = v.View
	case t.engine.Tries > 0:
		c.explain(ctx)
	}
	return c.noted(v), err
}

// Start starts the containers of a pod, one after the other, so that the pods after it can have what its init containers leave.
func (t *Trial) Start(pod *ledger.Pod) error {
	d := ledger.NewDraft(t.view)
	for _, c := range pod.Pod.Walk() {
		if _, err := t.engine.finish(d, ledger.Owner{Pod: pod.UID(), Container: c.Name}); err != nil {
			return err
		}
	}
	t.view = d.View()
	return nil
}

// Skipped are the providers that concern the last pod and were not called.
func (t *Trial) Skipped() map[string]bool { return t.skipped }

// Fill admits copies of a pod until one is not admitted, or the number most is reached. It
// returns the number of admitted copies and the last verdict.
func (t *Trial) Fill(ctx context.Context, pod *workload.Pod, most int) (n int, last Verdict, err error) {
	for n < most {
		copied := *pod
		copied.UID = fmt.Sprintf("%s-%d", pod.UID, n+1)
		copied.Name = fmt.Sprintf("%s-%d", pod.Name, n+1)
		if last, err = t.Admit(ctx, &copied); err != nil || last.Outcome != Admitted {
			break
		}
		n++
	}
	return n, last, err
}

// Repeat decides about the pod of a request that was made before, as its caller sent it; other
// fields of the request than the owner and the id are not used. Errors are those of Engine.Admit.
func (t *Trial) Repeat(ctx context.Context, req Request) (Verdict, error) {
	record, notes, err := t.engine.Record(req.Pod, "admit")
	if err != nil {
		return Verdict{}, err
	}
	record.OwnedBy, record.AdmissionID = ledger.OwnedByOf(req.Owner), req.AdmissionID
	return t.candidate(ctx, &candidate{Engine: t.engine, record: record, notes: notes})
}
