package admission

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/hint"
	"github.com/berthd/berth/managers/ledger"
)

// Admit decides about a pod and, unless it is a dry run, carries the decision out. The same
// pod gets the same answer again. A rejection is a verdict. Errors are of class Invalid for
// an invalid pod, Precondition for a known uid with another specification or owner, Exists
// for the admission id of another pod or of a refused attempt with another specification, and
// Unavailable if the journal or the cgroup tree cannot be written at the moment.
func (e *Engine) Admit(ctx context.Context, req Request) (Verdict, error) {
	record, notes, err := e.Record(req.Pod, "admit")
	if err != nil {
		return Verdict{}, err
	}
	given := req.AdmissionID != ""
	if !given {
		req.AdmissionID = e.NewID()
	}
	record.OwnedBy, record.AdmissionID = ledger.OwnedByOf(req.Owner), req.AdmissionID
	ctx = hint.Observed(ctx, e.Observe)
	a := &admission{candidate: candidate{
		Engine: e, given: given, record: record, notes: append(notes, req.Unserved...),
		dryRun: req.DryRun, at: req.At, unserved: req.Unserved, allocations: req.RunningAllocations,
	}}
	c := &a.candidate
	if req.DryRun {
		v, err := c.runDry(ctx)
		if err == nil && v.Outcome != Admitted {
			c.explain(hint.Unobserved(ctx))
		}
		return c.noted(v), err
	}
	unlock, err := e.LockPod(ctx, c.uid())
	if err != nil {
		return Verdict{}, err
	}
	defer unlock()
	v, err := a.admit(ctx)
	if err == nil && v.Outcome != Admitted {
		if given {
			e.refused.remember(c.record.Agent(), c.record.AdmissionID, c.attempted())
		}
		c.explain(hint.Unobserved(ctx))
		if v.Outcome != Deferred || !c.saidBefore() {
			e.History.Refused(ctx, refusal(v, c.record, c.record.AdmissionID))
			c.saveTrace(ctx) // commits the refusal, too
		}
	}
	return c.noted(v), err
}

// candidate is a pod while it is decided about.
type candidate struct {
	*Engine
	record *ledger.Pod
	// managers are those of the last plan.
	managers
	notes []string
	// unserved are the notes that the answer also contains.
	unserved []string
	dryRun   bool
	// running is true for a trial of a pod of the ledger under other rules.
	running bool
	// at is when another program has decided; zero for now.
	at time.Time
	// given is whether the caller has named the admission.
	given bool
	trace *ledger.Trace
	// failed is where the plan failed; nil if it did not.
	failed *failurePoint
	// calls are the remote calls of the planning.
	calls *hint.Calls
	// replanned lists the revisions of the plans that were overtaken.
	replanned []uint64
	// allocations are the containers' current allocations as stated by the caller. bindings
	// are those of a pod that is already running.
	allocations []RunningAllocation
	bindings    []ledger.Binding
}

func (c *candidate) uid() string { return c.record.UID() }

func (c *candidate) attempted() attempted { return attempted{c.uid(), c.record.Digest} }

func (c *candidate) scope() Scope { return Scope{Owner: c.record.OwnedBy} }

// usualSteps is the usual number of steps in a trace, for each container and for the rest.
const usualSteps = 8

// begin starts the trace of a new attempt on a view.
func (c *candidate) begin(view *ledger.View, now time.Time) {
	p := &c.record.Pod
	c.failed = nil
	if !c.at.IsZero() {
		now = c.at
	}
	c.trace = &ledger.Trace{
		AdmissionID: c.record.AdmissionID,
		Pod:         p.UID, Namespace: p.Namespace, Name: p.Name,
		Generation: view.Generation(), DryRun: c.dryRun, Time: now, ResourceClaim: p.ResourceClaim != nil,
		Steps: make([]ledger.Step, 0, len(c.notes)+usualSteps*len(p.Containers)+usualSteps),
	}
	for _, n := range c.notes {
		c.trace.Add(ledger.Step{Kind: ledger.StepNoted, Text: n})
	}
	for _, revision := range c.replanned {
		c.trace.Add(ledger.Step{
			Kind: ledger.StepReplanned,
			Text: fmt.Sprintf("planned again: the ledger moved on from revision %d", revision),
		})
	}
}

// known returns the answer for a pod that is already admitted. The snapshot also has the
// pods with reservations.
func (c *candidate) known(view, snapshot *ledger.View) (Verdict, bool, error) {
	have, ok := view.Pod(c.uid())
	if u, lives := view.UnknownLivePod(c.uid()); !ok && lives {
		if err := c.scope().checkUnknown(&u); err != nil {
			return Verdict{}, true, err
		}
	}
	if !ok {
		return Verdict{}, false, c.named(snapshot)
	}
	if err := c.scope().Check(c.uid(), have.Agent()); err != nil {
		return Verdict{}, true, err
	}
	if have.Digest != c.record.Digest {
		return Verdict{}, true, errdefs.Preconditionf(
			"pod %s is admitted with another specification: only its resources may change, by Resize; otherwise remove it first", c.uid()).
			Coded(errdefs.PodSpecDiffers, "pod_uid", c.uid())
	}
	return Verdict{Outcome: Admitted, QoS: have.QoS, Pod: have, View: view, Trace: have.Trace, Repeated: true}, true, nil
}

// named refuses an admission id that admitted another pod here, or that was refused with
// another specification, because clients distinguish admissions by their ids.
func (c *candidate) named(view *ledger.View) error {
	if !c.given {
		return nil
	}
	if p, ok := view.Admitted(c.record.AdmissionID); ok {
		return errdefs.Existsf("admission id %q is that of pod %s, which is here: every admission has a name of its own", p.AdmissionID,
			p.UID()).
			Coded(errdefs.AdmissionIDUsed, "admission_id", p.AdmissionID, "pod_uid", p.UID())
	}
	return c.refused.check(c.record.Agent(), c.record.AdmissionID, c.attempted())
}

// assign sets the managers that decide about the candidate on a view. An admission keeps
// its bus when providers come and go, unless the configuration or the machine has changed. The
// error is errOutdated if there are none for the view.
func (c *candidate) assign(view *ledger.View) error {
	switch claim := c.record.Pod.ResourceClaim != nil; {
	case c.DecideOn(view):
	case claim && c.ClaimManagers == nil:
		return errdefs.Preconditionf("claim %s: no resource claims are admitted here", &c.record.Pod)
	case claim:
		bus, policy, err := c.ClaimManagers(view, &c.record.Pod)
		if err != nil {
			return fmt.Errorf("admit resource claim %s: %w", &c.record.Pod, err)
		}
		if bus == nil {
			return errOutdated
		}
		c.managers = managers{bus, policy, view.Rules()}
	default:
		b, err := c.BasisOn(view)
		if err != nil {
			return err
		}
		c.managers = b.managers
	}
	return nil
}

// runDry decides on the current state. It does not wait for other admissions. It makes the
// remote calls of planning, because their answers affect the decision.
func (c *candidate) runDry(ctx context.Context) (v Verdict, err error) {
	for attempt := 1; ; attempt++ {
		c.calls = c.liveCalls()
		v, err = c.tryDry(ctx)
		switch {
		case !errors.Is(err, errOutdated):
			return v, err
		case attempt == c.Attempts:
			return Verdict{}, errdefs.Unavailablef("admit pod %s: the policy or the machine was changed during each of %d attempts",
				c.uid(), attempt)
		}
	}
}

// tryDry is runDry on one state. The error is errOutdated if it has other rules at the end.
func (c *candidate) tryDry(ctx context.Context) (Verdict, error) {
	snapshot, ended := c.snapshot()
	v, known, err := c.known(c.Ledger.View(), snapshot)
	if known || err != nil {
		return v, err
	}
	v, err = c.decide(hint.WithCalls(ctx, c.calls), snapshot)
	if err != nil || v.Outcome == Admitted || ended == nil {
		return v, err
	}
	freed := c.freed()
	if !c.DecideOn(freed) {
		return Verdict{}, errOutdated
	}
	if c.fits(ctx, freed) {
		return c.heldUp(ctx)
	}
	return v, nil
}

// decide decides on a view, and changes nothing.
func (c *candidate) decide(ctx context.Context, view *ledger.View) (Verdict, error) {
	draft, err := c.plan(ctx, view)
	if draft == nil {
		return Verdict{}, err
	}
	if err != nil {
		return c.refuse(ctx, draft, err)
	}
	if condition, why := HeldBack(view, c.uid(), claimsOf(draft.View(), c.uid())); condition != "" && !c.running {
		return c.deferred(view, condition, why)
	}
	c.record, _ = draft.View().Pod(c.uid())
	c.trace.Admitted = true
	return Verdict{Outcome: Admitted, QoS: c.record.QoS, Pod: c.record, View: draft.View(), Trace: c.trace}, nil
}

// deferred returns the answer for a pod that cannot be decided now, with the reason.
func (c *candidate) deferred(view *ledger.View, condition, why string) (Verdict, error) {
	c.trace.Message = why
	c.trace.Add(ledger.Step{Kind: ledger.StepRefused, Text: c.trace.Message})
	return c.undecided(Verdict{
		Outcome: Deferred, Message: c.trace.Message, QoS: c.record.QoS,
		Trace: c.trace, View: view, RetryAfter: c.RetryAfter,
		Condition: &Condition{Type: condition},
	})
}

// refuse converts a refusal to a verdict. Errors that do not concern the pod stay errors.
func (c *candidate) refuse(ctx context.Context, draft *ledger.Draft, err error) (Verdict, error) {
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
	return c.postponed(Verdict{
		Outcome: Rejected, Reason: reason, Message: message,
		QoS: c.record.QoS, Trace: c.trace, View: draft.Base(),
	}, err)
}

// aboutPod returns whether an error concerns the pod, and so is a refusal. It is not about
// the pod if the caller has left, the call's time is over, or the node itself failed: a
// controller fails a rejected pod permanently, while the node recovers. A failure of a
// provider is a refusal, as in the kubelet.
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

// cleanup is a list of steps to undo, run in reverse order.
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
