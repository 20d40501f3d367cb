package admission

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/hint"
	"github.com/berthd/berth/managers/ledger"
)

// ErrOvertaken means that a confirmed plan is no longer valid: the rules have changed, or
// an import has taken reserved resources.
var ErrOvertaken = errors.New("the plan does not hold any more")

// admit repeats attempts until one is not overtaken. The cgroup of one attempt is used by
// the next. If the pod is not admitted in the end, the cgroup is removed.
func (e *Engine) admit(ctx context.Context, c *candidate) (v Verdict, err error) {
	c.calls = e.calls()
	ctx = hint.WithCalls(ctx, c.calls)
	defer func() {
		err = e.undo(c, v, err)
		e.reserved.Drop(c.uid())
	}()
	for attempt := 1; ; attempt++ {
		draft, v, err := e.reserve(ctx, c)
		if draft == nil {
			if err == nil && v.Repeated {
				v, err = e.reservedFor(ctx, c, v)
			}
			return v, err
		}
		v, err = e.carryOut(ctx, draft, c)
		if !errors.Is(err, ErrOvertaken) {
			return v, err
		}
		if attempt == e.Attempts {
			return Verdict{}, errdefs.Unavailablef("admit pod %s: the ledger moved during each of %d attempts", c.uid(), attempt)
		}
		c.replanned = append(c.replanned, draft.Base().Revision())
		e.giveBack(ctx, c)
	}
}

// reservedFor commits the pods of a resource claim that is admitted already, if it is reserved for others now. The caller has locked the
// claim.
func (e *Engine) reservedFor(ctx context.Context, c *candidate, v Verdict) (Verdict, error) {
	claim := c.record.Pod.ResourceClaim
	if claim == nil || slices.Equal(claim.Pods, v.Pod.Pod.ResourceClaim.Pods) {
		return v, nil
	}
	view, err := e.Update(ctx, func(d *ledger.Draft) error {
		have, ok := d.View().Pod(c.uid())
		if !ok {
			return errdefs.Conflictf("the claim was removed meanwhile")
		}
		record := *have
		record.Pod.ResourceClaim = have.Pod.ResourceClaim.For(claim.Pods)
		d.PutPod(&record)
		return nil
	})
	if err != nil {
		return Verdict{}, fmt.Errorf("admit resource claim %s: %w", &c.record.Pod, err)
	}
	v.View = view
	v.Pod, _ = view.Pod(c.uid())
	return v, nil
}

// confirmation is the result of planning under the admission lock. The zero value means
// that the pod got a verdict.
type confirmation struct {
	// draft has the pod, whose claims are reserved.
	draft *ledger.Draft
	// unanswered is the view for which a remote call has to be made first.
	unanswered *ledger.View
	// ended is closed when a reservation or a removal has ended, after which the pod might
	// fit.
	ended <-chan struct{}
}

// reserve plans until a plan is confirmed under the admission lock, and reserves it. Remote
// calls, and waits for other reservations and removals, happen without the lock. The draft
// is nil if the pod got a verdict.
func (e *Engine) reserve(ctx context.Context, c *candidate) (*ledger.Draft, Verdict, error) {
	defer func() { c.turn.end(); c.turn = nil }()
	for {
		next, v, err := e.confirm(ctx, c)
		switch {
		case err != nil:
			return nil, Verdict{}, err
		case next.unanswered != nil:
			err = e.call(ctx, next.unanswered, c)
		case next.ended != nil:
			c.turn.end() // a waiting admission must not block others
			c.turn = nil
			if !e.await(ctx, next.ended) {
				v, err = e.heldUp(ctx, c)
				return nil, v, err
			}
		default:
			return next.draft, v, nil
		}
		if err != nil {
			return nil, Verdict{}, err
		}
	}
}

// confirm plans under the admission lock, with the recorded answers of remote calls, and
// reserves the plan.
func (e *Engine) confirm(ctx context.Context, c *candidate) (confirmation, Verdict, error) {
	release, err := e.waited(ctx, e.Acquire)
	if err != nil {
		return confirmation{}, Verdict{}, err
	}
	defer release()
	now := e.reserved.Count(e.Ledger.View)
	view, ended := now.View, now.Ended
	decidedOn(ctx, now)
	if v, ok, err := e.known(e.Ledger.View(), view, c); ok || err != nil {
		return confirmation{}, v, err
	}
	c.calls.Mode = hint.Replay
	draft, err := e.plan(ctx, view, c)
	switch {
	case draft == nil:
		return confirmation{}, Verdict{}, err
	case errors.Is(err, hint.ErrUnanswered):
		return confirmation{unanswered: view}, Verdict{}, nil
	case err != nil && ended != nil && e.fits(ctx, c, e.freed()):
		return confirmation{ended: ended}, Verdict{}, nil
	case err != nil:
		v, err := e.refuse(ctx, draft, c, err)
		return confirmation{}, v, err
	}
	if condition, why := HeldBack(e.Ledger.View(), c.uid(), claimsOf(draft.View(), c.uid())); condition != "" {
		v, err := e.deferred(view, c, condition, why)
		return confirmation{}, v, err
	}
	planned, _ := draft.View().Pod(c.uid())
	e.reserved.Put(planned)
	return confirmation{draft: draft}, Verdict{}, nil
}

// call plans on a view without the admission lock, and makes the remote calls without a
// recorded answer. The plan itself is discarded.
func (e *Engine) call(ctx context.Context, view *ledger.View, c *candidate) error {
	e.waits(ctx)
	if c.turn == nil {
		var err error
		stepping, step := hint.StepIn(ctx, hint.StepWait)
		c.turn, err = e.takeTurn(stepping, c.calls.Unanswered)
		step.End(err)
		if err != nil {
			return err
		}
		c.calls.Before = c.turn.before
		if c.turn.waited {
			// The previous admission has reserved something, so the view is too old.
			view, _ = e.snapshot()
		}
	}
	c.calls.Mode = hint.Live
	switch _, err := e.plan(ctx, view, c); {
	case errors.Is(err, hint.ErrInputsChanged):
		return fmt.Errorf("plan pod %s: %w", c.uid(), err)
	case err != nil && ctx.Err() != nil:
		return err
	}
	return nil
}

// turn is held by an admission from its first call to a plugin or provider until its plan
// is reserved. So the next admission that calls the same one offers what is free after
// that. An admission that calls two of them has no turn, so that no admission that calls
// only one of them waits for the other.
type turn struct {
	party   string
	waited  bool
	release func()
}

func (e *Engine) takeTurn(ctx context.Context, party string) (*turn, error) {
	if release, ok := e.remote.TryLock(party); ok {
		return &turn{party: party, release: release}, nil
	}
	release, err := e.remote.Lock(ctx, "admission that calls", party)
	if err != nil {
		return nil, err
	}
	return &turn{party: party, waited: true, release: release}, nil
}

// before ends the turn when another plugin or provider is called.
func (t *turn) before(_ context.Context, party string) error {
	if party != t.party {
		t.end()
	}
	return nil
}

// end ends the turn. It may be called repeatedly, and on nil.
func (t *turn) end() {
	if t != nil && t.release != nil {
		t.release()
		t.release = nil
	}
}

// fits returns whether a refused pod fits on another view, as far as this can be computed
// without remote calls.
func (e *Engine) fits(ctx context.Context, c *candidate, view *ledger.View) bool {
	if ctx.Err() != nil {
		return false
	}
	record := *c.record
	trial := &candidate{record: &record, managers: c.managers}
	_, err := e.plan(hint.WithCalls(ctx, c.calls.Trial()), view, trial)
	return err == nil
}

// await waits until a reservation or a removal has ended. It returns false if the call's
// deadline comes first; some time is left to answer.
func (e *Engine) await(ctx context.Context, ended <-chan struct{}) bool {
	limited := ctx
	if end, ok := ctx.Deadline(); ok && e.WithTimeout != nil {
		left := end.Sub(e.Now())
		var cancel context.CancelFunc
		limited, cancel = e.WithTimeout(ctx, left-min(left/10, toAnswer))
		defer cancel()
	}
	e.waits(ctx)
	select {
	case <-ended:
		return true
	case <-limited.Done():
		return false
	}
}

// toAnswer is the largest part of an admission's time that is left to answer after waiting.
const toAnswer = time.Second

// Conditions of pods that fit without temporary claims of other pods.
const (
	// AdmissionsInFlight: running admissions and resizes have reserved it.
	AdmissionsInFlight = "AdmissionsInFlight"
	// PodsEnding: pods that are being removed have it.
	PodsEnding = "PodsEnding"
)

// heldUp returns the answer for a pod that fits without reservations and ending pods.
func (e *Engine) heldUp(ctx context.Context, c *candidate) (Verdict, error) {
	if errors.Is(ctx.Err(), context.Canceled) {
		return Verdict{}, fmt.Errorf("admit pod %s: %w", c.uid(), context.Cause(ctx))
	}
	reserved, ending := e.reserved.Others(c.uid())
	reserved, ending = e.blockers(ctx, c, reserved, ending)
	condition, message := AdmissionsInFlight, fmt.Sprintf("pod %s fits only now: admit it again", c.uid())
	var holders []string
	if len(ending) > 0 {
		condition = PodsEnding
		holders = append(holders, "pods that are ending: "+strings.Join(ending, ", "))
	}
	if len(reserved) > 0 {
		holders = append(holders, "pods that are being admitted or resized: "+strings.Join(reserved, ", "))
	}
	if len(holders) > 0 {
		message = fmt.Sprintf("pod %s fits without the resources of %s", c.uid(), strings.Join(holders, "; and of "))
	}
	c.failed = nil // the message names the blocking pods, so the failure point is not needed
	return e.deferred(e.Ledger.View(), c, condition, message)
}

// triedBlockers limits the pods that are tested one by one.
const triedBlockers = 8

// blockers returns the pods without whose reservation or claims the candidate would fit,
// each tested alone. If there are none, it returns all.
func (e *Engine) blockers(ctx context.Context, c *candidate, reserved, ending []string) (_, _ []string) {
	alone := func(all []string) (out []string) {
		for _, uid := range all[:min(len(all), triedBlockers)] {
			view, _ := e.reserved.On(e.Ledger.View, uid)
			if e.fits(context.WithoutCancel(ctx), c, view) {
				out = append(out, uid)
			}
		}
		return out
	}
	if r, d := alone(reserved), alone(ending); len(r)+len(d) > 0 {
		return r, d
	}
	return reserved, ending
}

// giveBack ends the reservation of an overtaken plan. Before that, the providers release
// their reservations, because they may be offered to other pods then.
func (e *Engine) giveBack(ctx context.Context, c *candidate) {
	if c.prepared != nil {
		c.prepared.Abort(context.WithoutCancel(ctx), c.record.AdmissionID)
	}
	e.reserved.Drop(c.uid())
}

// undo undoes the preparations for a pod that is not admitted.
func (e *Engine) undo(c *candidate, v Verdict, err error) error {
	if err == nil && v.Outcome == Admitted {
		return nil
	}
	switch undone := c.undo.run(); {
	case undone == nil:
		return err
	case err != nil:
		return errors.Join(err, undone)
	default:
		c.noteUndone(undone)
		return nil
	}
}

// noteUndone adds a step that could not be undone to the trace of a rejected pod. The next
// sweep removes a remaining cgroup. The refusal stays the last step.
func (c *candidate) noteUndone(undone error) {
	last := len(c.trace.Steps) - 1
	c.trace.Steps = slices.Insert(c.trace.Steps, last, ledger.Step{
		Kind: ledger.StepNoted, Text: "not everything could be undone: " + undone.Error(),
	})
}

// carryOut prepares a reserved plan, without the admission lock, and commits it.
func (e *Engine) carryOut(ctx context.Context, draft *ledger.Draft, c *candidate) (Verdict, error) {
	if _, lives := c.living(draft.Base()); !lives {
		if err := e.prepare(ctx, draft, c); err != nil {
			return e.refuse(ctx, draft, c, err)
		}
	}
	record, _ := draft.View().Pod(c.uid())
	view := e.placeView(draft, record)
	stepping, step := hint.StepIn(ctx, hint.StepCgroup)
	parent, created, err := e.CgroupManager.EnsurePod(stepping, view, c.uid())
	step.End(err)
	if created {
		// A cgroup that existed before may have processes: a running pod that the ledger
		// had lost must not be killed because of a full disk. The undo must also work after
		// the caller has left.
		undoing := context.WithoutCancel(ctx)
		c.undo.add(func() error { return e.CgroupManager.ForgetPod(undoing, view, c.uid()) })
	}
	if err != nil {
		err = fmt.Errorf("make the cgroup of pod %s: %w", c.uid(), err)
		if _, lives := c.living(draft.Base()); lives {
			err = noVerdict(err)
		}
		return e.refuse(ctx, draft, c, err)
	}
	c.trace.Add(ledger.Step{Kind: ledger.StepPlaced, Text: "cgroup " + parent})
	stepping, step = hint.StepIn(ctx, hint.StepRecord)
	restore, err := e.RecordClaims(stepping, view, c.uid(), !created)
	step.End(err)
	if err != nil {
		if _, lives := c.living(draft.Base()); lives {
			err = noVerdict(err)
		}
		return e.refuse(ctx, draft, c, err)
	}
	c.undo.add(restore)
	return e.commit(ctx, draft, c, parent)
}

// RecordClaims writes a pod's claim record. If another program removes the cgroup, that
// is no reason to refuse the pod.
func (e *Engine) RecordClaims(ctx context.Context, view *ledger.View, uid string, there bool) (restore func() error, err error) {
	restore, err = e.CgroupManager.RecordClaims(ctx, view, uid, there)
	if errdefs.ClassOf(err) == errdefs.NotFound {
		err = errdefs.Unavailablef("its cgroup has gone meanwhile: %w", err)
	}
	if err != nil {
		err = fmt.Errorf("record what pod %s holds: %w", uid, err)
	}
	return restore, err
}

// prepare gets the agreement of plugins and providers to the plan, container by container.
func (e *Engine) prepare(ctx context.Context, draft *ledger.Draft, c *candidate) error {
	if bus := c.Bus; bus != c.prepared {
		c.prepared = bus
		undoing := context.WithoutCancel(ctx)
		c.undo.add(func() error { bus.Abort(undoing, c.record.AdmissionID); return nil })
	}
	if planned, _ := draft.View().Pod(c.uid()); slices.ContainsFunc(planned.Claims, isRemote) {
		e.waits(ctx)
	}
	pod := &c.record.Pod
	for i := -1; i < len(pod.Containers); i++ {
		req := hint.Request{Pod: pod, Container: i}
		if err := c.Bus.Prepare(ctx, c.record.AdmissionID, draft, req, c.trace); err != nil {
			return err
		}
	}
	return nil
}

// isRemote returns whether a claim has to be prepared by another process.
func isRemote(c ledger.Claim) bool { return c.CPUs == nil && len(c.Memory) == 0 }

// placeView returns a view with the prepared pod, all current pods and all reservations,
// because the values of the cgroups above a pod depend on all pods.
func (e *Engine) placeView(draft *ledger.Draft, record *ledger.Pod) *ledger.View {
	if others, _ := e.reserved.Others(record.UID()); draft.Base() == e.Ledger.View() && len(others) == 0 {
		return draft.View()
	}
	e.reserved.Put(record)
	view, _ := e.reserved.On(e.Ledger.View)
	return view
}

// commit validates the plan under the admission lock and commits the record with its claims
// and its trace. This ends the reservation. A failed or overtaken plan is undone before
// that.
func (e *Engine) commit(ctx context.Context, draft *ledger.Draft, c *candidate, parent string) (Verdict, error) {
	release, err := e.waited(ctx, e.reacquire)
	if err != nil {
		return Verdict{}, err
	}
	defer release()
	if err := e.leasesHold(draft.View(), c); err != nil {
		return e.refuse(ctx, draft, c, err)
	}
	planned, _ := draft.View().Pod(c.uid())
	record := *planned
	record.CgroupParent = parent
	record.Trace = c.trace
	steps := len(c.trace.Steps)
	c.trace.Admitted = true
	c.trace.Add(ledger.Step{Kind: ledger.StepCommitted})
	stepping, step := hint.StepIn(ctx, hint.StepCommit)
	view, err := e.Ledger.Update(stepping, func(d *ledger.Draft) error {
		now := d.Base()
		d.PutPod(&record)
		for _, b := range c.bindings {
			d.Bind(b)
		}
		for l := range draft.View().Leases() {
			if l.AdmissionID == c.record.AdmissionID {
				d.PutLease(l)
			}
		}
		return e.holds(draft, now, d, c)
	})
	step.End(err)
	if err != nil {
		c.trace.Admitted, c.trace.Steps = false, c.trace.Steps[:steps]
		return Verdict{}, fmt.Errorf("admit pod %s: %w", c.uid(), err)
	}
	e.reserved.Drop(c.uid())
	return Verdict{Outcome: Admitted, QoS: record.QoS, Pod: &record, View: view, Trace: c.trace}, nil
}

// holds returns ErrOvertaken if a plan is not valid on the current view. Other admissions
// and resizes respect reservations. A change of the rules, of the uncertain state, or an
// import may not.
func (e *Engine) holds(planned *ledger.Draft, now *ledger.View, d *ledger.Draft, c *candidate) error {
	if now.SameFacts(planned.Base()) {
		return nil
	}
	if _, known := now.Pod(c.uid()); known || !now.Rules().SameManagers(c.rules) {
		return ErrOvertaken
	}
	return Overtaken(planned.View(), now, d.View(), c.uid(), claimsOf(d.View(), c.uid()))
}

// Overtaken returns ErrOvertaken if a pod cannot have new claims any more. planned is the view
// of the plan, now the current one, and next the current one with the plan.
func Overtaken(planned, now, next *ledger.View, uid string, claims []ledger.Claim) error {
	condition, _ := HeldBack(now, uid, claims)
	if condition != "" || newFinding(ledger.CheckPod(planned, uid), ledger.CheckPod(next, uid)) ||
		ledger.Overcommitment(next, uid) > ledger.Overcommitment(planned, uid) {
		return ErrOvertaken
	}
	return nil
}

func newFinding(before, after []ledger.Finding) bool {
	return slices.ContainsFunc(after, func(f ledger.Finding) bool { return !slices.Contains(before, f) })
}

// leasesHold refuses to commit claims whose lease has expired, because the provider may
// have given them to another pod.
func (e *Engine) leasesHold(view *ledger.View, c *candidate) error {
	now := e.Now()
	for l := range view.Leases() {
		if l.AdmissionID == c.record.AdmissionID && !now.Before(l.Expires) {
			return hint.ExpiredLease(l)
		}
	}
	return nil
}
