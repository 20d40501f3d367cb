package admission

import (
	"context"
	"fmt"
	"time"

	"github.com/berthd/berth/managers/errdefs"
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
	// tries counts the decisions of searches for moves.
	tries int
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
		record: &ledger.Pod{Pod: *pod, QoS: pod.QoSClass(t.engine.Features), AdmissionID: "trial of " + pod.UID},
		notes:  notes, running: running,
	})
}

func (t *Trial) candidate(ctx context.Context, c *candidate) (Verdict, error) {
	c.dryRun, c.calls = true, &hint.Calls{Mode: hint.WhatIf}
	v, known, err := t.engine.known(t.view, t.view, c)
	if !known && err == nil {
		v, err = t.engine.decide(hint.WithCalls(ctx, c.calls), t.view, c)
	}
	t.skipped = c.calls.Skipped
	switch {
	case err != nil:
	case v.Outcome == Admitted:
		t.view = v.View
	case t.engine.Tries > 0:
		t.engine.explain(ctx, c)
	}
	return t.engine.noted(c, v), err
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
	return t.candidate(ctx, &candidate{record: record, notes: notes})
}

// Resize decides about a resize as Engine.Resize does, but without the kernel, which may refuse
// it. Errors are those of Engine.Resize.
func (t *Trial) Resize(ctx context.Context, req ResizeRequest) (Resized, error) {
	req.AdmissionID, req.IfRevision = "", 0 // other attempts are not known
	r := &resizing{engine: t.engine, request: req, id: "trial of " + req.UID, scope: Scope{Owner: req.Owner}}
	b, err := t.engine.basisOn(t.view)
	if err != nil {
		return Resized{}, err
	}
	out, err := r.allow(hint.WithCalls(ctx, &hint.Calls{Mode: hint.WhatIf}), b)
	if err == nil && out.Outcome == Admitted && !out.Repeated {
		t.view = out.View
		if r.move != nil {
			t.end(&out)
		}
	}
	return out, err
}

// Defragment searches moves of other pods after which a pod fits, as Engine.PlanDefragment does. The searches of
// a trial share its limit. If there are moves, the trial goes on with the view after them, with the pod. A mover
// may refuse moves of memory; nil refuses none.
func (t *Trial) Defragment(ctx context.Context, req DefragmentRequest, m Mover) (Defragmentation, error) {
	t.engine.Mover = m
	b, err := t.engine.basisOn(t.view)
	if err != nil {
		return Defragmentation{}, err
	}
	out, err := t.engine.planDefragment(ctx, b, req, &t.tries)
	if err == nil && out.Fits() {
		t.view = out.After
	}
	return out, err
}

// Replaced is what became of a pod that has lost something.
type Replaced struct {
	Loss
	// Refused is why nothing replaces it; nil if the pod has moved.
	Refused error
}

// Replace moves the pods that have lost something, as berthd does with hotplug.onLost: replace. A move ends at once.
// An error is one that is no refusal.
func (t *Trial) Replace(ctx context.Context) (out []Replaced, err error) {
	tried := map[string]bool{}
	for losses := Losses(t.view); len(losses) > 0; {
		l := losses[0]
		if losses = losses[1:]; tried[l.UID] {
			continue
		}
		tried[l.UID] = true
		b, err := t.engine.basisOn(t.view)
		if err != nil {
			return nil, err
		}
		r, err := t.engine.planReplacement(ctx, b, l)
		if err != nil && errdefs.ClassOf(err) != errdefs.Refused {
			return nil, err
		}
		out = append(out, Replaced{l, err})
		if err != nil {
			continue
		}
		pod, _ := t.view.Pod(l.UID)
		moved := clone(pod)
		moved.Move = r.move
		d := ledger.NewDraft(t.view)
		d.PutPod(moved.AfterMove())
		t.view = d.View()
		losses = Losses(t.view)
	}
	return out, nil
}

// end ends the move of a resize at once, because nothing runs.
func (t *Trial) end(out *Resized) {
	d := ledger.NewDraft(t.view)
	d.PutPod(out.Pod.AfterMove())
	t.view = d.View()
	out.View = t.view
	out.Pod, _ = t.view.Pod(out.Pod.UID())
}
