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
	"github.com/berthd/berth/managers/ledger/check"
)

// ErrOvertaken means that a confirmed plan is no longer valid: the rules have changed, or
// an import has taken reserved resources.
var ErrOvertaken = errors.New("the plan does not hold any more")

// admission is a candidate whose admission is carried out.
type admission struct {
	candidate
	// turn is the turn for remote calls; nil without one.
	turn *turn
	// prepared is the bus whose providers may have prepared claims.
	prepared *hint.Bus
	// undo are the steps to undo unless the pod is admitted.
	undo cleanup
}

// admit repeats attempts until one is not overtaken. The cgroup of one attempt is used by
// the next. If the pod is not admitted in the end, the cgroup is removed.
func (a *admission) admit(ctx context.Context) (v Verdict, err error) {
	a.calls = a.liveCalls()
	ctx = hint.WithCalls(ctx, a.calls)
	defer func() {
		err = a.unwind(v, err)
		a.reserved.Drop(a.uid())
	}()
	for attempt := 1; ; attempt++ {
		draft, v, err := a.reserve(ctx)
		if draft == nil {
			if err == nil && v.Repeated {
				v, err = a.reservedFor(ctx, v)
			}
			return v, err
		}
		v, err = a.carryOut(ctx, draft)
		if !errors.Is(err, ErrOvertaken) {
			return v, err
		}
		if attempt == a.Attempts {
			return Verdict{}, errdefs.Unavailablef("admit pod %s: the ledger moved during each of %d attempts", a.uid(), attempt)
		}
		a.replanned = append(a.replanned, draft.Base().Revision())
		a.giveBack(ctx)
	}
}

// reservedFor commits the pods of a resource claim that is admitted already, if it is reserved for others now. The caller has locked the
// claim.
func (a *admission) reservedFor(ctx context.Context, v Verdict) (Verdict, error) {
	claim := a.record.Pod.ResourceClaim
	if claim == nil || slices.Equal(claim.Pods, v.Pod.Pod.ResourceClaim.Pods) {
		return v, nil
	}
	view, err := a.Update(ctx, func(d *ledger.Draft) error {
		have, ok := d.View().Pod(a.uid())
		if !ok {
			return errdefs.Conflictf("the claim was removed meanwhile")
		}
		record := *have
		record.Pod.ResourceClaim = have.Pod.ResourceClaim.For(claim.Pods)
		d.PutPod(&record)
		return nil
	})
	if err != nil {
		return Verdict{}, fmt.Errorf("admit resource claim %s: %w", &a.record.Pod, err)
	}
	v.View = view
	v.Pod, _ = view.Pod(a.uid())
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
func (a *admission) reserve(ctx context.Context) (*ledger.Draft, Verdict, error) {
	defer func() { a.turn.end(); a.turn = nil }()
	for {
		next, v, err := a.confirm(ctx)
		switch {
		case err != nil:
			return nil, Verdict{}, err
		case next.unanswered != nil:
			err = a.call(ctx, next.unanswered)
		case next.ended != nil:
			a.turn.end() // a waiting admission must not block others
			a.turn = nil
			if !a.await(ctx, next.ended) {
				v, err = a.heldUp(ctx)
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
func (a *admission) confirm(ctx context.Context) (confirmation, Verdict, error) {
	release, err := a.waited(ctx, a.Acquire)
	if err != nil {
		return confirmation{}, Verdict{}, err
	}
	defer release()
	now := a.reserved.Count(a.Ledger.View)
	view, ended := now.View, now.Ended
	decidedOn(ctx, now)
	if v, ok, err := a.known(a.Ledger.View(), view); ok || err != nil {
		return confirmation{}, v, err
	}
	a.calls.Mode = hint.Replay
	draft, err := a.plan(ctx, view)
	switch {
	case draft == nil:
		return confirmation{}, Verdict{}, err
	case errors.Is(err, hint.ErrUnanswered):
		return confirmation{unanswered: view}, Verdict{}, nil
	case err != nil && ended != nil && a.fits(ctx, a.freed()):
		return confirmation{ended: ended}, Verdict{}, nil
	case err != nil:
		v, err := a.refuse(ctx, draft, err)
		return confirmation{}, v, err
	}
	if condition, why := HeldBack(a.Ledger.View(), a.uid(), claimsOf(draft.View(), a.uid())); condition != "" {
		v, err := a.deferred(view, condition, why)
		return confirmation{}, v, err
	}
	planned, _ := draft.View().Pod(a.uid())
	a.reserved.Put(planned)
	return confirmation{draft: draft}, Verdict{}, nil
}

// call plans on a view without the admission lock, and makes the remote calls without a
// recorded answer. The plan itself is discarded.
func (a *admission) call(ctx context.Context, view *ledger.View) error {
	a.waits(ctx)
	if a.turn == nil {
		var err error
		stepping, step := hint.StepIn(ctx, hint.StepWait)
		a.turn, err = a.takeTurn(stepping, a.calls.Unanswered)
		step.End(err)
		if err != nil {
			return err
		}
		a.calls.Before = a.turn.before
		if a.turn.waited {
			// The previous admission has reserved something, so the view is too old.
			view, _ = a.snapshot()
		}
	}
	a.calls.Mode = hint.Live
	switch _, err := a.plan(ctx, view); {
	case errors.Is(err, hint.ErrInputsChanged):
		return fmt.Errorf("plan pod %s: %w", a.uid(), err)
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

func (a *admission) takeTurn(ctx context.Context, party string) (*turn, error) {
	if release, ok := a.remote.TryLock(party); ok {
		return &turn{party: party, release: release}, nil
	}
	release, err := a.remote.Lock(ctx, "admission that calls", party)
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
func (c *candidate) fits(ctx context.Context, view *ledger.View) bool {
	if ctx.Err() != nil {
		return false
	}
	record := *c.record
	trial := &candidate{Engine: c.Engine, record: &record, managers: c.managers}
	_, err := trial.plan(hint.WithCalls(ctx, c.calls.Trial()), view)
	return err == nil
}

// await waits until a reservation or a removal has ended. It returns false if the call's
// deadline comes first; some time is left to answer.
func (a *admission) await(ctx context.Context, ended <-chan struct{}) bool {
	limited := ctx
	if end, ok := ctx.Deadline(); ok && a.WithTimeout != nil {
		left := end.Sub(a.Now())
		var cancel context.CancelFunc
		limited, cancel = a.WithTimeout(ctx, left-min(left/10, toAnswer))
		defer cancel()
	}
	a.waits(ctx)
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
func (c *candidate) heldUp(ctx context.Context) (Verdict, error) {
	if errors.Is(ctx.Err(), context.Canceled) {
		return Verdict{}, fmt.Errorf("admit pod %s: %w", c.uid(), context.Cause(ctx))
	}
	reserved, ending := c.reserved.Others(c.uid())
	reserved, ending = c.blockers(ctx, reserved, ending)
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
	return c.deferred(c.Ledger.View(), condition, message)
}

// triedBlockers limits the pods that are tested one by one.
const triedBlockers = 8

// blockers returns the pods without whose reservation or claims the candidate would fit,
// each tested alone. If there are none, it returns all.
func (c *candidate) blockers(ctx context.Context, reserved, ending []string) (_, _ []string) {
	alone := func(all []string) (out []string) {
		for _, uid := range all[:min(len(all), triedBlockers)] {
			view, _ := c.reserved.On(c.Ledger.View, uid)
			if c.fits(context.WithoutCancel(ctx), view) {
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
func (a *admission) giveBack(ctx context.Context) {
	if a.prepared != nil {
		a.prepared.Abort(context.WithoutCancel(ctx), a.record.AdmissionID)
	}
	a.reserved.Drop(a.uid())
}

// unwind undoes the preparations for a pod that is not admitted.
func (a *admission) unwind(v Verdict, err error) error {
	if err == nil && v.Outcome == Admitted {
		return nil
	}
	switch undone := a.undo.run(); {
	case undone == nil:
		return err
	case err != nil:
		return errors.Join(err, undone)
	default:
		a.noteUndone(undone)
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
func (a *admission) carryOut(ctx context.Context, draft *ledger.Draft) (Verdict, error) {
	if _, lives := a.living(draft.Base()); !lives {
		if err := a.prepare(ctx, draft); err != nil {
			return a.refuse(ctx, draft, err)
		}
	}
	record, _ := draft.View().Pod(a.uid())
	view := a.placeView(draft, record)
	stepping, step := hint.StepIn(ctx, hint.StepCgroup)
	parent, created, err := a.CgroupManager.EnsurePod(stepping, view, a.uid())
	step.End(err)
	if created {
		// A cgroup that existed before may have processes: a running pod that the ledger
		// had lost must not be killed because of a full disk. The undo must also work after
		// the caller has left.
		undoing := context.WithoutCancel(ctx)
		a.undo.add(func() error { return a.CgroupManager.ForgetPod(undoing, view, a.uid()) })
	}
	if err != nil {
		err = fmt.Errorf("make the cgroup of pod %s: %w", a.uid(), err)
		if _, lives := a.living(draft.Base()); lives {
			err = noVerdict(err)
		}
		return a.refuse(ctx, draft, err)
	}
	a.trace.Add(ledger.Step{Kind: ledger.StepPlaced, Text: "cgroup " + parent})
	stepping, step = hint.StepIn(ctx, hint.StepRecord)
	restore, err := a.RecordClaims(stepping, view, a.uid(), !created)
	step.End(err)
	if err != nil {
		if _, lives := a.living(draft.Base()); lives {
			err = noVerdict(err)
		}
		return a.refuse(ctx, draft, err)
	}
	a.undo.add(restore)
	return a.commit(ctx, draft, parent)
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
func (a *admission) prepare(ctx context.Context, draft *ledger.Draft) error {
	if bus := a.Bus; bus != a.prepared {
		a.prepared = bus
		undoing := context.WithoutCancel(ctx)
		a.undo.add(func() error { bus.Abort(undoing, a.record.AdmissionID); return nil })
	}
	if planned, _ := draft.View().Pod(a.uid()); slices.ContainsFunc(planned.Claims, isRemote) {
		a.waits(ctx)
	}
	pod := &a.record.Pod
	for i := -1; i < len(pod.Containers); i++ {
		req := hint.Request{Pod: pod, Container: i}
		if err := a.Bus.Prepare(ctx, a.record.AdmissionID, draft, req, a.trace); err != nil {
			return err
		}
	}
	return nil
}

// isRemote returns whether a claim has to be prepared by another process.
func isRemote(c ledger.Claim) bool { return c.CPUs == nil && len(c.Memory) == 0 }

// placeView returns a view with the prepared pod, all current pods and all reservations,
// because the values of the cgroups above a pod depend on all pods.
func (a *admission) placeView(draft *ledger.Draft, record *ledger.Pod) *ledger.View {
	if others, _ := a.reserved.Others(record.UID()); draft.Base() == a.Ledger.View() && len(others) == 0 {
		return draft.View()
	}
	a.reserved.Put(record)
	view, _ := a.reserved.On(a.Ledger.View)
	return view
}

// commit validates the plan under the admission lock and commits the record with its claims
// and its trace. This ends the reservation. A failed or overtaken plan is undone before
// that.
func (a *admission) commit(ctx context.Context, draft *ledger.Draft, parent string) (Verdict, error) {
	release, err := a.waited(ctx, a.reacquire)
	if err != nil {
		return Verdict{}, err
	}
	defer release()
	if err := a.leasesHold(draft.View()); err != nil {
		return a.refuse(ctx, draft, err)
	}
	planned, _ := draft.View().Pod(a.uid())
	record := *planned
	record.CgroupParent = parent
	record.Trace = a.trace
	steps := len(a.trace.Steps)
	a.trace.Admitted = true
	a.trace.Add(ledger.Step{Kind: ledger.StepCommitted})
	stepping, step := hint.StepIn(ctx, hint.StepCommit)
	view, err := a.Ledger.Update(stepping, func(d *ledger.Draft) error {
		now := d.Base()
		d.PutPod(&record)
		for _, b := range a.bindings {
			d.Bind(b)
		}
		for l := range draft.View().Leases() {
			if l.AdmissionID == a.record.AdmissionID {
				d.PutLease(l)
			}
		}
		return a.holds(draft, now, d)
	})
	step.End(err)
	if err != nil {
		a.trace.Admitted, a.trace.Steps = false, a.trace.Steps[:steps]
		return Verdict{}, fmt.Errorf("admit pod %s: %w", a.uid(), err)
	}
	a.reserved.Drop(a.uid())
	return Verdict{Outcome: Admitted, QoS: record.QoS, Pod: &record, View: view, Trace: a.trace}, nil
}

// holds returns ErrOvertaken if a plan is not valid on the current view. Other admissions
// and resizes respect reservations. A change of the rules, of the uncertain state, or an
// import may not.
func (a *admission) holds(planned *ledger.Draft, now *ledger.View, d *ledger.Draft) error {
	if now.SameFacts(planned.Base()) {
		return nil
	}
	if _, known := now.Pod(a.uid()); known || !now.Rules().SameManagers(a.rules) {
		return ErrOvertaken
	}
	return Overtaken(planned.View(), now, d.View(), a.uid(), claimsOf(d.View(), a.uid()))
}

// Overtaken returns ErrOvertaken if a pod cannot have new claims any more. planned is the view
// of the plan, now the current one, and next the current one with the plan.
func Overtaken(planned, now, next *ledger.View, uid string, claims []ledger.Claim) error {
	condition, _ := HeldBack(now, uid, claims)
	if condition != "" || newFinding(check.Pod(planned, uid), check.Pod(next, uid)) ||
		check.Overcommitment(next, uid) > check.Overcommitment(planned, uid) {
		return ErrOvertaken
	}
	return nil
}

func newFinding(before, after []check.Finding) bool {
	return slices.ContainsFunc(after, func(f check.Finding) bool { return !slices.Contains(before, f) })
}

// leasesHold refuses to commit claims whose lease has expired, because the provider may
// have given them to another pod.
func (a *admission) leasesHold(view *ledger.View) error {
	now := a.Now()
	for l := range view.Leases() {
		if l.AdmissionID == a.record.AdmissionID && !now.Before(l.Expires) {
			return hint.ExpiredLease(l)
		}
	}
	return nil
}
