package admission

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/berthd/berth/managers/fault"
	"github.com/berthd/berth/managers/hint"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/workload"
)

// Admit decides about a pod and, unless it is a dry run, makes the decision
// real. The same pod again gets the same answer; an invalid pod is an error of
// class Invalid, the same uid with another specification or the admission id of
// another pod one of class Precondition, a journal or a cgroup tree that cannot be
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
			Pod: pod, Digest: digest, QoS: pod.QoS,
			AdmissionID: req.AdmissionID, AdmittedAt: e.Now(),
		},
		notes:  notes,
		dryRun: req.DryRun,
	}
	if req.DryRun {
		// A dry run waits for nobody: it works on the view of this moment.
		v, err := e.decide(ctx, e.Ledger.View(), c)
		if err == nil && v.Outcome != Admitted {
			e.explain(ctx, c)
		}
		return e.noted(c, v), err
	}
	unlock, err := e.pods.lock(ctx, pod.UID)
	if err != nil {
		return Verdict{}, err
	}
	defer unlock()
	v, err := e.admitLocked(ctx, c)
	if err == nil && v.Outcome != Admitted {
		// Without the lock: what would make this pod fit is no other pod's delay.
		e.explain(ctx, c)
		e.keep(ctx, c)
	}
	return e.noted(c, v), err
}

func (e *Engine) admitLocked(ctx context.Context, c *candidate) (Verdict, error) {
	release, err := e.acquire(ctx)
	if err != nil {
		return Verdict{}, err
	}
	defer release()
	return e.admit(ctx, c)
}

// candidate is a pod on its way through an admission.
type candidate struct {
	record *ledger.Pod
	bus    Bus
	policy Policy
	// rules is the digest of the configuration that bus and policy decide under.
	rules  string
	notes  []string
	dryRun bool
	// given tells that the caller has named the admission.
	given bool
	trace *ledger.Trace
	// failed is where the plan failed; nil if it did not.
	failed *failurePoint
	// replanned lists the generations that the ledger moved on from.
	replanned []uint64
	// hurried tells that it has been overtaken often enough.
	hurried bool
	// undo is what must be undone unless the pod is admitted.
	undo cleanup
}

func (c *candidate) uid() string { return c.record.UID() }

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

// known answers for a pod that is already admitted.
func (e *Engine) known(view *ledger.View, c *candidate) (Verdict, bool, error) {
	have, ok := view.Pod(c.uid())
	if !ok {
		return Verdict{}, false, e.named(view, c)
	}
	if have.Digest != c.record.Digest {
		return Verdict{}, true, fault.Preconditionf(
			"pod %s is admitted with another specification: only its resources may change, by Resize; otherwise Remove it first", c.uid())
	}
	return Verdict{Outcome: Admitted, QoS: have.QoS, Pod: have, View: view, Trace: have.Trace, Repeated: true}, true, nil
}

// named refuses the name of an admission that brought another pod here: whoever
// tells admissions apart by their names would take this one for that.
func (e *Engine) named(view *ledger.View, c *candidate) error {
	if !c.given {
		return nil
	}
	for p := range view.Pods() {
		if p.AdmissionID == c.record.AdmissionID {
			return fault.Preconditionf("admission id %q is that of pod %s, which is here: every admission has a name of its own", p.AdmissionID, p.UID())
		}
	}
	return nil
}

// assign finds out who decides about the candidate on a view, and tells whether
// that has changed. An admission keeps the bus that it began with, though
// providers come and go, unless other rules ask for other managers.
func (e *Engine) assign(c *candidate, view *ledger.View) (changed bool) {
	if c.bus != nil && c.rules == view.Rules().ConfigDigest {
		return false
	}
	c.bus, c.policy = e.Managers(view)
	c.rules = view.Rules().ConfigDigest
	return true
}

// decide answers on a view, and changes nothing.
func (e *Engine) decide(ctx context.Context, view *ledger.View, c *candidate) (Verdict, error) {
	if v, ok, err := e.known(view, c); ok || err != nil {
		return v, err
	}
	e.assign(c, view)
	draft, err := e.plan(ctx, view, c)
	if err != nil {
		return e.refuse(ctx, draft, c, err)
	}
	c.record, _ = draft.View().Pod(c.uid())
	c.trace.Admitted = true
	return Verdict{Outcome: Admitted, QoS: c.record.QoS, Pod: c.record, View: draft.View(), Trace: c.trace}, nil
}

// calmAttempts is how many plans are made for the best of what is free at the moment
// of the commit. After that, what becomes free meanwhile is left to later pods: on
// a node where pods go one after the other, the next would wait for the last.
const calmAttempts = 2

// admit makes attempts until one is not overtaken. What an attempt has prepared
// stays for the next one; whoever is not admitted in the end has it undone.
func (e *Engine) admit(ctx context.Context, c *candidate) (v Verdict, err error) {
	defer func() {
		if err == nil && v.Outcome == Admitted {
			return
		}
		switch undone := c.undo.run(); {
		case undone == nil:
		case err != nil:
			err = errors.Join(err, undone)
		default:
			// The pod is rejected all the same; a cgroup that stayed goes with the
			// next sweep. The refusal remains the last step.
			last := len(c.trace.Steps) - 1
			c.trace.Steps = slices.Insert(c.trace.Steps, last, ledger.Step{
				Kind: ledger.StepNoted, Text: "not everything could be undone: " + undone.Error(),
			})
		}
	}()
	for attempt := 1; ; attempt++ {
		view := e.Ledger.View()
		if v, ok, err := e.known(view, c); ok || err != nil {
			return v, err
		}
		c.hurried = attempt > calmAttempts
		v, err := e.attempt(ctx, view, c)
		if err == nil || !errors.Is(err, ledger.ErrStale) {
			return v, err
		}
		if attempt == e.Attempts {
			return Verdict{}, fault.Unavailablef("admit pod %s: the ledger moved during each of %d attempts", c.uid(), attempt)
		}
		c.replanned = append(c.replanned, view.Generation())
	}
}

// attempt plans on a view, prepares and commits. An error wrapping
// ledger.ErrStale means that the ledger moved and has not been changed.
func (e *Engine) attempt(ctx context.Context, view *ledger.View, c *candidate) (Verdict, error) {
	joined := e.assign(c, view)
	draft, err := e.plan(ctx, view, c)
	if err != nil {
		return e.refuse(ctx, draft, c, err)
	}
	if why := uncertain(view, c.uid()); why != "" && ownsSomething(draft.View(), c.uid()) {
		return e.deferred(view, c, why)
	}
	// What undoes must work also when the caller has gone.
	undoing := context.WithoutCancel(ctx)
	if bus := c.bus; joined {
		c.undo.add(func() error { bus.Abort(undoing, c.record.AdmissionID); return nil })
	}
	if err := e.prepare(ctx, draft, c); err != nil {
		return e.refuse(ctx, draft, c, err)
	}
	parent, created, err := e.Places.EnsurePod(ctx, draft.View(), c.uid())
	if created {
		// A cgroup that was there before may hold processes: a pod that lived
		// through the loss of its ledger is not killed for a full disk.
		c.undo.add(func() error { return e.Places.ForgetPod(undoing, draft.View(), c.uid()) })
	}
	if err != nil {
		return e.refuse(ctx, draft, c, fmt.Errorf("make the cgroup of pod %s: %w", c.uid(), err))
	}
	c.trace.Add(ledger.Step{Kind: ledger.StepPlaced, Text: "cgroup " + parent})
	if err := e.leasesHold(draft.View(), c); err != nil {
		return e.refuse(ctx, draft, c, err)
	}
	return e.commit(ctx, draft, c, parent)
}

// leasesHold refuses to commit what an outside provider does not hold any more:
// it may have given it to somebody else.
func (e *Engine) leasesHold(view *ledger.View, c *candidate) error {
	now := e.Now()
	for l := range view.Leases() {
		if l.AdmissionID == c.record.AdmissionID && !now.Before(l.Expires) {
			err := fault.Deadlinef("provider %s held what it reserved until %s, and the admission took longer", l.Provider, l.Expires.UTC().Format(time.RFC3339))
			err.Provider = l.Provider
			return err
		}
	}
	return nil
}

// deferred answers a pod that wants something of its own while the ledger cannot
// be trusted to know every holder.
func (e *Engine) deferred(view *ledger.View, c *candidate, why string) (Verdict, error) {
	c.trace.Message = why
	c.trace.Add(ledger.Step{Kind: ledger.StepRefused, Text: c.trace.Message})
	return e.undecided(Verdict{
		Outcome: Deferred, Message: c.trace.Message, QoS: c.record.QoS,
		Trace: c.trace, View: view, RetryAfter: e.RetryAfter,
		Condition: &Condition{Type: StateUncertain},
	})
}

// commit writes the record with its trace; the draft holds its claims.
func (e *Engine) commit(ctx context.Context, draft *ledger.Draft, c *candidate, parent string) (Verdict, error) {
	have, _ := draft.View().Pod(c.uid())
	record := *have
	record.CgroupParent = parent
	record.Trace = c.trace
	c.trace.Admitted = true
	c.trace.Add(ledger.Step{Kind: ledger.StepCommitted})
	draft.PutPod(&record)
	draft.RestsOnPods()
	if c.hurried {
		draft.BearsReleases()
	}
	view, err := e.Ledger.Commit(ctx, draft)
	if err != nil {
		return Verdict{}, fmt.Errorf("admit pod %s: %w", c.uid(), err)
	}
	return Verdict{Outcome: Admitted, QoS: record.QoS, Pod: &record, View: view, Trace: c.trace}, nil
}

// refuse turns a refusal into a verdict. Errors that say nothing about the pod stay errors.
func (e *Engine) refuse(ctx context.Context, draft *ledger.Draft, c *candidate, err error) (Verdict, error) {
	if !aboutPod(ctx, err) {
		return Verdict{}, err
	}
	reason, message := fault.Verdict(err)
	c.trace.Reason, c.trace.Message = string(reason), message
	step := ledger.Step{Kind: ledger.StepRefused, Text: message}
	if fe := new(fault.Error); errors.As(err, &fe) {
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
	fe := new(fault.Error)
	ofProvider := errors.As(err, &fe) && fe.Provider != ""
	switch fault.ClassOf(err) {
	case fault.Invalid, fault.Canceled:
		return false
	case fault.Deadline:
		return ofProvider && ctx.Err() == nil
	case fault.Unavailable, fault.Internal:
		return ofProvider
	}
	return true
}

// prepare lets the outside agree to the plan, container by container, and notes
// what nobody provides.
func (e *Engine) prepare(ctx context.Context, draft *ledger.Draft, c *candidate) error {
	pod := &c.record.Pod
	for i := -1; i < len(pod.Containers); i++ {
		req := hint.Request{Pod: pod, Container: i}
		if err := c.bus.Prepare(ctx, c.record.AdmissionID, draft, req, c.trace); err != nil {
			return err
		}
	}
	return nil
}

// ownsSomething reports whether a pod holds any claim.
func ownsSomething(view *ledger.View, uid string) bool {
	p, ok := view.Pod(uid)
	return ok && len(p.Claims) > 0
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
