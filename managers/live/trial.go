package live

import (
	"context"

	"github.com/berthd/berth/managers/admission"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/hint"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/topology"
	"github.com/berthd/berth/managers/workload"
)

// Trial is a trial of admissions that also decides about changes of its pods. It is not safe for concurrent use.
type Trial struct {
	*admission.Trial
	engine *Engine
	// tries counts the decisions of searches for moves.
	tries int
}

// NewTrial is admission.NewTrial.
func NewTrial(cfg admission.Config, view *ledger.View, bus *hint.Bus, policy *topology.Manager) *Trial {
	t := admission.NewTrial(cfg, view, bus, policy)
	return &Trial{Trial: t, engine: New(t.Engine(), Options{})}
}

// ForClaims adds the managers for resource claims, and returns the trial.
func (t *Trial) ForClaims(managers func(*workload.Pod) (*hint.Bus, *topology.Manager, error)) *Trial {
	t.Trial.ForClaims(managers)
	return t
}

// put goes on with a view, at the same time.
func (t *Trial) put(view *ledger.View) { t.On(view, t.engine.Now()) }

// Resize decides about a resize as Engine.Resize does, but without the kernel, which may refuse
// it. Errors are those of Engine.Resize.
func (t *Trial) Resize(ctx context.Context, req ResizeRequest) (Resized, error) {
	req.AdmissionID, req.IfRevision = "", 0 // other attempts are not known
	r := &resizing{engine: t.engine, request: req, id: "trial of " + req.UID, scope: admission.Scope{Owner: req.Owner}}
	b, err := t.engine.BasisOn(t.View())
	if err != nil {
		return Resized{}, err
	}
	out, err := r.allow(hint.WithCalls(ctx, &hint.Calls{Mode: hint.Trial}), b)
	if err == nil && out.Outcome == admission.Admitted && !out.Repeated {
		t.put(out.View)
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
	b, err := t.engine.BasisOn(t.View())
	if err != nil {
		return Defragmentation{}, err
	}
	out, err := t.engine.planDefragment(ctx, b, req, &t.tries)
	if err == nil && out.Fits() {
		t.put(out.After)
	}
	return out, err
}

// Replaced tells what became of a pod that has lost something.
type Replaced struct {
	Loss
	// Refused is why nothing replaces it; nil if the pod has moved.
	Refused error
}

// Replace moves the pods that have lost something, as berthd does with hotplug.onLost: replace. A move ends at once.
// An error is one that is no refusal.
func (t *Trial) Replace(ctx context.Context) (out []Replaced, err error) {
	tried := map[string]bool{}
	for losses := Losses(t.View()); len(losses) > 0; {
		l := losses[0]
		if losses = losses[1:]; tried[l.UID] {
			continue
		}
		tried[l.UID] = true
		b, err := t.engine.BasisOn(t.View())
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
		pod, _ := t.View().Pod(l.UID)
		moved := clone(pod)
		moved.Move = r.move
		d := ledger.NewDraft(t.View())
		d.PutPod(moved.AfterMove())
		t.put(d.View())
		losses = Losses(t.View())
	}
	return out, nil
}

// end ends the move of a resize at once, because nothing runs.
func (t *Trial) end(out *Resized) {
	d := ledger.NewDraft(t.View())
	d.PutPod(out.Pod.AfterMove())
	t.put(d.View())
	out.View = t.View()
	out.Pod, _ = out.View.Pod(out.Pod.UID())
}
