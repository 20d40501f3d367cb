package admission

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/workload"
)

// Resized is the result of a resize.
type Resized struct {
	// Verdict: an admitted resize is complete, a rejected one is infeasible on this node, a
	// deferred one may be repeated later. Unless it is admitted, the pod is unchanged.
	Verdict
	// Restarts lists the containers that the caller has to restart for the change to take
	// effect, according to their resize policy.
	Restarts []string
}

// Resize changes the cpu and memory of an admitted pod in place: in the ledger, in the
// pod's cgroup, and in the cgroups of containers that berth created. The caller updates the
// other containers, with a new answer of Allocate. Claims do not change: a container with
// exclusive CPUs or pinned memory cannot get another amount.
//
// A resize to the current size is admitted again. Errors are of class NotFound for a pod
// that is not admitted, Precondition for a pod of another owner, and Invalid for an invalid
// pod or one that differs in anything else. If the kernel refuses a value, the error has
// its class, and the pod has its old values.
func (e *Engine) Resize(ctx context.Context, req Request) (Resized, error) {
	pod, notes := workload.Defaulted(req.Pod, e.Features)
	if err := workload.Validate(&pod, e.Bounds); err != nil {
		return Resized{}, err
	}
	pod.QoS = pod.QoSClass(e.Features)
	digest, err := pod.Digest()
	if err != nil {
		return Resized{}, fmt.Errorf("resize pod %s: %w", &pod, err)
	}
	r := &resizing{engine: e, wanted: pod, digest: digest, notes: notes, dryRun: req.DryRun, scope: Scope{Owner: req.Owner}}
	if req.DryRun {
		view, _ := e.snapshot()
		return r.decide(ctx, view)
	}
	unlock, err := e.lockPod(ctx, pod.UID)
	if err != nil {
		return Resized{}, err
	}
	defer unlock()
	for attempt := 1; ; attempt++ {
		out, err := r.attempt(ctx)
		switch {
		case !errors.Is(err, errOvertaken):
			return out, err
		case attempt == e.Attempts:
			return Resized{}, errdefs.Unavailablef("resize pod %s: the policy was changed during each of %d attempts", &r.wanted, attempt)
		}
	}
}

// attempt decides and carries the decision out. An error that wraps errOvertaken means that
// the rules have changed meanwhile, and that the pod is unchanged.
func (r *resizing) attempt(ctx context.Context) (Resized, error) {
	e := r.engine
	// The kernel is read without the admission lock. Then the decision is confirmed under
	// the lock, and the new size is reserved.
	view, _ := e.snapshot()
	out, err := r.decide(ctx, view)
	if err != nil || out.Outcome != Admitted || out.Repeated {
		return out, err
	}
	defer e.reserved.drop(r.wanted.UID)
	if view, out, err = r.reserve(ctx); err != nil || out.Outcome != Admitted || out.Repeated {
		return out, err
	}
	return r.carryOut(ctx, view, out)
}

// resizing is a resize in progress.
type resizing struct {
	engine *Engine
	wanted workload.Pod
	digest string
	notes  []string
	dryRun bool
	scope  Scope
	trace  *ledger.Trace
}

// decide decides whether the resize is possible, and changes nothing.
func (r *resizing) decide(ctx context.Context, view *ledger.View) (Resized, error) {
	out, err := r.allow(ctx, view)
	if err != nil || out.Outcome != Admitted || out.Repeated {
		return out, err
	}
	if err := r.engine.CgroupManager.CheckResize(ctx, out.View, r.wanted.UID); err != nil {
		have, _ := view.Pod(r.wanted.UID)
		return r.refuse(have, view, err)
	}
	return out, nil
}

// reserve decides again under the admission lock, and reserves the larger of the old and
// new amounts. It returns the view from before.
func (r *resizing) reserve(ctx context.Context) (*ledger.View, Resized, error) {
	e := r.engine
	release, err := e.acquire(ctx)
	if err != nil {
		return nil, Resized{}, err
	}
	defer release()
	view, _ := e.snapshot()
	out, err := r.allow(ctx, view)
	if err == nil && out.Outcome == Admitted && !out.Repeated {
		have, _ := view.Pod(r.wanted.UID)
		reserved := *have
		reserved.Pod = larger(&have.Pod, &r.wanted)
		e.reserved.put(&reserved)
	}
	return view, out, err
}

// larger returns a pod with the larger amounts of two versions of it.
func larger(a, b *workload.Pod) workload.Pod {
	out := *b
	out.Containers = slices.Clone(b.Containers)
	for i := range out.Containers {
		c := &out.Containers[i]
		if old := a.Container(c.Name); old != nil {
			c.Requests, c.Limits = most(old.Requests, c.Requests), most(old.Limits, c.Limits)
		}
	}
	if a.Resources != nil && b.Resources != nil {
		out.Resources = &workload.Resources{
			Requests: most(a.Resources.Requests, b.Resources.Requests), Limits: most(a.Resources.Limits, b.Resources.Limits),
		}
	}
	return out
}

func most(a, b workload.Quantities) workload.Quantities {
	out := maps.Clone(b)
	for r, n := range a {
		if out[r] < n {
			out[r] = n
		}
	}
	return out
}

// allow returns whether the ledger and the providers allow the new size.
func (r *resizing) allow(ctx context.Context, view *ledger.View) (Resized, error) {
	e, uid := r.engine, r.wanted.UID
	have, ok := view.Pod(uid)
	if !ok {
		return Resized{}, errdefs.NotFoundf("pod %s is not admitted", uid).Coded(errdefs.PodNotFound, "pod_uid", uid)
	}
	if err := r.scope.check(uid, have.Agent()); err != nil {
		return Resized{}, err
	}
	if have.Digest == r.digest {
		return Resized{Verdict: Verdict{
			Outcome: Admitted, QoS: have.QoS, Pod: have, View: view, Trace: have.Trace, Repeated: true,
		}}, nil
	}
	if err := workload.CheckResize(&have.Pod, &r.wanted, e.Features).Err(fmt.Sprintf("resize of pod %.200q", &r.wanted)); err != nil {
		return Resized{}, err
	}
	r.begin(view)
	record := *have
	record.Pod, record.Digest, record.Trace = r.wanted, r.digest, r.trace
	draft := ledger.NewDraft(view)
	draft.PutPod(&record)
	bus, _ := e.Managers(view)
	if err := bus.Resize(ctx, view, &have.Pod, &r.wanted, r.trace); err != nil {
		return r.refuse(have, view, err)
	}
	r.trace.Admitted = true
	return Resized{
		Verdict:  Verdict{Outcome: Admitted, QoS: record.QoS, Pod: &record, View: draft.View(), Trace: r.trace},
		Restarts: workload.Restarts(&have.Pod, &r.wanted),
	}, nil
}

func (r *resizing) begin(view *ledger.View) {
	p := &r.wanted
	r.trace = &ledger.Trace{
		AdmissionID: r.engine.NewID(), Pod: p.UID, Namespace: p.Namespace, Name: p.Name,
		Generation: view.Generation(), DryRun: r.dryRun,
	}
	for _, n := range r.notes {
		r.trace.Add(ledger.Step{Kind: ledger.StepNoted, Text: n})
	}
	r.trace.Add(ledger.Step{Kind: ledger.StepNoted, Text: "an admitted pod is resized in place"})
}

// refuse converts a refusal to a verdict; other errors stay errors.
func (r *resizing) refuse(have *ledger.Pod, view *ledger.View, err error) (Resized, error) {
	reason, refused := errdefs.ReasonOf(err)
	if !refused {
		return Resized{}, fmt.Errorf("resize pod %s: %w", &r.wanted, err)
	}
	_, message := errdefs.Verdict(err)
	v := Verdict{Outcome: Rejected, Reason: reason, Message: message, QoS: have.QoS, View: view, Trace: r.trace}
	if reason == errdefs.ResizeDeferred {
		v.Outcome, v.RetryAfter = Deferred, r.engine.RetryAfter
	}
	r.trace.Reason, r.trace.Message = string(reason), message
	step := ledger.Step{Kind: ledger.StepRefused, Text: message}
	if fe := new(errdefs.Error); errors.As(err, &fe) {
		step.Provider, step.Resource = fe.Provider, fe.Resource
	}
	r.trace.Add(step)
	return Resized{Verdict: v}, nil
}

// carryOut writes the cgroups and then the ledger. After an error, the cgroups have their
// old values, or the next reconcile writes them.
func (r *resizing) carryOut(ctx context.Context, before *ledger.View, out Resized) (Resized, error) {
	e, uid := r.engine, r.wanted.UID
	undo := func() error { return e.CgroupManager.Resize(context.WithoutCancel(ctx), before, uid) }
	if err := e.CgroupManager.Resize(ctx, out.View, uid); err != nil {
		return Resized{}, errors.Join(fmt.Errorf("resize pod %s: %w", &r.wanted, err), undo())
	}
	r.trace.Add(ledger.Step{Kind: ledger.StepPlaced, Text: "cgroup " + out.Pod.CgroupParent})
	r.trace.Add(ledger.Step{Kind: ledger.StepCommitted})
	restore, err := e.CgroupManager.RecordClaims(ctx, out.View, uid, true)
	if err != nil {
		return Resized{}, errors.Join(fmt.Errorf("record what pod %s holds: %w", &r.wanted, err), undo())
	}
	rules := before.Rules().ConfigDigest
	view, err := e.update(ctx, func(d *ledger.Draft) error {
		if d.Base().Rules().ConfigDigest != rules {
			return errOvertaken
		}
		have, ok := d.View().Pod(uid)
		if !ok {
			return errdefs.Conflictf("the pod left meanwhile")
		}
		record := *out.Pod
		record.Claims, record.Acknowledged = have.Claims, nil
		d.PutPod(&record)
		return nil
	})
	if err != nil {
		return Resized{}, errors.Join(fmt.Errorf("resize pod %s: %w", &r.wanted, err), restore(), undo())
	}
	out.View = view
	out.Pod, _ = view.Pod(uid)
	return out, nil
}
