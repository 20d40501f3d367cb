package admission

import (
	"context"
	"errors"
	"fmt"

	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/hint"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/topology"
	"github.com/berthd/berth/managers/workload"
)

// Admit decides about a pod and, unless it is a dry run, makes the decision
// real. The same pod again gets the same answer; an invalid pod is an error of
// class Invalid, the same uid with another specification or for another owner
// one of class Precondition, the admission id of another pod one of class Exists, a journal or a cgroup tree that cannot be
// written at the moment one of class Unavailable. A rejection is a verdict.
func (e *Engine) Admit(ctx context.Context, req Request) (Verdict, error) {
	pod, notes := workload.Defaulted(req.Pod, e.Features)
	if err := workload.Validate(&pod, e.Bounds); err != nil {
		return Verdict{}, err
	}
	// The class as computed, so that a pod which comes back with its status
	// filled in is still the same pod.
	pod.QoS = pod.QoSClass(e.Features)
	digest, err := pod.Digest()
	if err != nil {
		return Verdict{}, fmt.Errorf("admit pod %s: %w", &pod, err)
	}
	given := req.AdmissionID != ""
	if !given {
		req.AdmissionID = e.NewID()
	}
	c := &candidate{
		given: given,
		record: &ledger.Pod{
			Pod: pod, Digest: digest, QoS: pod.QoS, OwnedBy: ledger.OwnedByOf(req.Owner),
			AdmissionID: req.AdmissionID, AdmittedAt: e.Now(),
		},
		notes:  append(notes, req.Unserved...),
		dryRun: req.DryRun, unserved: req.Unserved, holdings: req.Holdings,
	}
	if req.DryRun {
		v, err := e.dryRun(ctx, c)
		if err == nil && v.Outcome != Admitted {
			e.explain(ctx, c)
		}
		return e.noted(c, v), err
	}
	unlock, err := e.lockPod(ctx, pod.UID)
	if err != nil {
		return Verdict{}, err
	}
	defer unlock()
	v, err := e.admit(ctx, c)
	if err == nil && v.Outcome != Admitted {
		e.explain(ctx, c)
		if v.Outcome != Deferred || !e.saidBefore(c) {
			e.saveTrace(ctx, c)
		}
	}
	return e.noted(c, v), err
}

// candidate is a pod on its way through an admission.
type candidate struct {
	record *ledger.Pod
	bus    *hint.Bus
	policy *topology.Manager
	// rules is the digest of the configuration that bus and policy decide under.
	rules string
	notes []string
	// unserved are those of the notes that the answer has, too.
	unserved []string
	dryRun   bool
	// given tells that the caller has named the admission.
	given bool
	trace *ledger.Trace
	// failed is where the plan failed; nil if it did not.
	failed *failurePoint
	// calls are the remote calls of its planning, and turn says whose turn it is to
	// make them; nil where there is no turn.
	calls *hint.Calls
	turn  *turn
	// replanned lists the generations that the ledger moved on from.
	replanned []uint64
	// prepared is the bus whose providers may have prepared something.
	prepared *hint.Bus
	// holdings are what the pod's containers run with, by the caller's word; bindings
	// are those of a pod that lives here already.
	holdings []Holding
	bindings []ledger.Binding
	// undo is what must be undone unless the pod is admitted.
	undo cleanup
}

func (c *candidate) uid() string { return c.record.UID() }

func (c *candidate) scope() Scope { return Scope{Owner: c.record.OwnedBy} }

// usualSteps is how many steps a trace has for a container, and besides.
const usualSteps = 8

// begin starts the trace of a new attempt on a view.
func (c *candidate) begin(view *ledger.View) {
	p := &c.record.Pod
	c.failed = nil
	c.trace = &ledger.Trace{
		AdmissionID: c.record.AdmissionID,
		Pod:         p.UID, Namespace: p.Namespace, Name: p.Name,
		Generation: view.Generation(), DryRun: c.dryRun,
		Steps: make([]ledger.Step, 0, len(c.notes)+usualSteps*len(p.Containers)+usualSteps),
	}
	for _, n := range c.notes {
		c.trace.Add(ledger.Step{Kind: ledger.StepNoted, Text: n})
	}
	for _, generation := range c.replanned {
		c.trace.Add(ledger.Step{
			Kind: ledger.StepReplanned,
			Text: fmt.Sprintf("planned again: the ledger moved on from generation %d", generation),
		})
	}
}

// known answers for a pod that is already admitted. The snapshot has pods on their
// way, too.
func (e *Engine) known(view, snapshot *ledger.View, c *candidate) (Verdict, bool, error) {
	have, ok := view.Pod(c.uid())
	if u, lives := view.UnknownLivePod(c.uid()); !ok && lives {
		if err := c.scope().checkUnknown(&u); err != nil {
			return Verdict{}, true, err
		}
	}
	if !ok {
		return Verdict{}, false, e.named(snapshot, c)
	}
	if err := c.scope().check(c.uid(), have.Agent()); err != nil {
		return Verdict{}, true, err
	}
	if have.Digest != c.record.Digest {
		return Verdict{}, true, errdefs.Preconditionf(
			"pod %s is admitted with another specification: only its resources may change, by Resize; otherwise remove it first", c.uid()).
			Coded(errdefs.PodSpecDiffers, "pod_uid", c.uid())
	}
	return Verdict{Outcome: Admitted, QoS: have.QoS, Pod: have, View: view, Trace: have.Trace, Repeated: true}, true, nil
}

// named refuses the name of an admission that brought another pod here: whoever
// tells admissions apart by their names would take this one for that.
func (e *Engine) named(view *ledger.View, c *candidate) error {
	if !c.given {
		return nil
	}
	if p, ok := view.Admitted(c.record.AdmissionID); ok {
		return errdefs.Existsf("admission id %q is that of pod %s, which is here: every admission has a name of its own", p.AdmissionID, p.UID()).
			Coded(errdefs.AdmissionIDUsed, "admission_id", p.AdmissionID, "pod_uid", p.UID())
	}
	return nil
}

// assign finds out who decides about the candidate on a view. An admission keeps
// the bus that it began with, though providers come and go, unless other rules ask
// for other managers.
func (e *Engine) assign(c *candidate, view *ledger.View) {
	if c.bus == nil || c.rules != view.Rules().ConfigDigest {
		c.bus, c.policy = e.Managers(view)
		c.rules = view.Rules().ConfigDigest
	}
}

// dryRun decides on what is so at this moment. It waits for no other admission, and
// makes the remote calls of planning, as their answers decide who gets what.
func (e *Engine) dryRun(ctx context.Context, c *candidate) (Verdict, error) {
	c.calls = &hint.Calls{Mode: hint.Live}
	snapshot, ended := e.snapshot()
	v, known, err := e.known(e.Ledger.View(), snapshot, c)
	if known || err != nil {
		return v, err
	}
	v, err = e.decide(hint.WithCalls(ctx, c.calls), snapshot, c)
	if err == nil && v.Outcome != Admitted && ended != nil && e.fits(ctx, c, e.freed()) {
		return e.heldUp(ctx, c)
	}
	return v, err
}

// decide answers on a view, and changes nothing.
func (e *Engine) decide(ctx context.Context, view *ledger.View, c *candidate) (Verdict, error) {
	e.assign(c, view)
	draft, err := e.plan(ctx, view, c)
	if err != nil {
		return e.refuse(ctx, draft, c, err)
	}
	c.record, _ = draft.View().Pod(c.uid())
	c.trace.Admitted = true
	return Verdict{Outcome: Admitted, QoS: c.record.QoS, Pod: c.record, View: draft.View(), Trace: c.trace}, nil
}

// deferred answers a pod about which nothing can be decided now, and why.
func (e *Engine) deferred(view *ledger.View, c *candidate, condition, why string) (Verdict, error) {
	c.trace.Message = why
	c.trace.Add(ledger.Step{Kind: ledger.StepRefused, Text: c.trace.Message})
	return e.undecided(Verdict{
		Outcome: Deferred, Message: c.trace.Message, QoS: c.record.QoS,
		Trace: c.trace, View: view, RetryAfter: e.RetryAfter,
		Condition: &Condition{Type: condition},
	})
}

// refuse turns a refusal into a verdict. Errors that say nothing about the pod stay errors.
func (e *Engine) refuse(ctx context.Context, draft *ledger.Draft, c *candidate, err error) (Verdict, error) {
	if hint.Interrupts(err) || !aboutPod(ctx, err) {
		return Verdict{}, err
	}
	reason, message := errdefs.Verdict(err)
	c.trace.Reason, c.trace.Message = string(reason), message
	step := ledger.Step{Kind: ledger.StepRefused, Text: message}
	if fe := new(errdefs.Error); errors.As(err, &fe) {
		step.Provider, step.Resource = fe.Provider, fe.Resource
	}
	if c.failed != nil {
		step.Container = c.failed.req.Owner().Container
	}
	c.trace.Add(step)
	return e.postponed(Verdict{
		Outcome: Rejected, Reason: reason, Message: message,
		QoS: c.record.QoS, Trace: c.trace, View: draft.Base(),
	}, err)
}

// aboutPod reports whether an error says something about the pod, and so is a refusal. An error is not about the pod
// when the caller went away, when the time of the call is over, and when the node itself failed: a controller fails a
// rejected pod for good, and the node works again later. What a provider cannot do is a refusal, as the kubelet has it.
func aboutPod(ctx context.Context, err error) bool {
	fe := new(errdefs.Error)
	ofProvider := errors.As(err, &fe) && fe.Provider != ""
	if e := (callersError{}); errors.As(err, &e) {
		return false
	}
	switch errdefs.ClassOf(err) {
	case errdefs.Invalid, errdefs.Canceled:
		return false
	case errdefs.Deadline:
		return ofProvider && ctx.Err() == nil
	case errdefs.Unavailable, errdefs.Internal:
		return ofProvider
	}
	return true
}

// cleanup undoes steps in reverse order.
type cleanup []func() error

func (c *cleanup) add(f func() error) { *c = append(*c, f) }

func (c *cleanup) run() error {
	var errs []error
	for i := len(*c) - 1; i >= 0; i-- {
		errs = append(errs, (*c)[i]())
	}
	*c = nil
	return errors.Join(errs...)
}
