package admission

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/hint"
	"github.com/berthd/berth/managers/ledger"
)

// errOvertaken means that a confirmed plan is no longer valid: the rules have changed, or
// an import has taken reserved resources.
var errOvertaken = errors.New("the plan does not hold any more")

// admit repeats attempts until one is not overtaken. The cgroup of one attempt is used by
// the next. If the pod is not admitted in the end, the cgroup is removed.
func (e *Engine) admit(ctx context.Context, c *candidate) (v Verdict, err error) {
	c.calls = e.calls()
	ctx = hint.WithCalls(ctx, c.calls)
	defer func() {
		err = e.undo(c, v, err)
		e.reserved.drop(c.uid())
	}()
	for attempt := 1; ; attempt++ {
		draft, v, err := e.reserve(ctx, c)
		if draft == nil {
			return v, err
		}
		v, err = e.carryOut(ctx, draft, c)
		if !errors.Is(err, errOvertaken) {
			return v, err
		}
		if attempt == e.Attempts {
			return Verdict{}, errdefs.Unavailablef("admit pod %s: the ledger moved during each of %d attempts", c.uid(), attempt)
		}
		c.replanned = append(c.replanned, draft.Base().Revision())
		e.giveBack(ctx, c)
	}
}

// giveBack ends the reservation of an overtaken plan. Before that, the providers release
// their reservations, because they may be offered to other pods then.
func (e *Engine) giveBack(ctx context.Context, c *candidate) {
	if c.prepared != nil {
		c.prepared.Abort(context.WithoutCancel(ctx), c.record.AdmissionID)
	}
	e.reserved.drop(c.uid())
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
	parent, created, err := e.CgroupManager.EnsurePod(ctx, view, c.uid())
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
	restore, err := e.CgroupManager.RecordClaims(ctx, view, c.uid(), !created)
	if err != nil {
		err = fmt.Errorf("record what pod %s holds: %w", c.uid(), err)
		if errdefs.ClassOf(err) == errdefs.NotFound {
			err = errdefs.Unavailablef("its cgroup has gone meanwhile: %w", err)
		}
		if _, lives := c.living(draft.Base()); lives {
			err = noVerdict(err)
		}
		return e.refuse(ctx, draft, c, err)
	}
	c.undo.add(restore)
	return e.commit(ctx, draft, c, parent)
}

// prepare gets the agreement of plugins and providers to the plan, container by container.
func (e *Engine) prepare(ctx context.Context, draft *ledger.Draft, c *candidate) error {
	if bus := c.bus; bus != c.prepared {
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
		if err := c.bus.Prepare(ctx, c.record.AdmissionID, draft, req, c.trace); err != nil {
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
	if others, _ := e.reserved.others(record.UID()); draft.Base() == e.Ledger.View() && len(others) == 0 {
		return draft.View()
	}
	e.reserved.put(record)
	view, _ := e.reserved.on(e.Ledger.View)
	return view
}

// commit validates the plan under the admission lock and commits the record with its claims
// and its trace. This ends the reservation. A failed or overtaken plan is undone before
// that.
func (e *Engine) commit(ctx context.Context, draft *ledger.Draft, c *candidate, parent string) (Verdict, error) {
	release, err := e.reacquire(ctx)
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
	view, err := e.Ledger.Update(ctx, func(d *ledger.Draft) error {
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
	if err != nil {
		c.trace.Admitted, c.trace.Steps = false, c.trace.Steps[:steps]
		return Verdict{}, fmt.Errorf("admit pod %s: %w", c.uid(), err)
	}
	e.reserved.drop(c.uid())
	return Verdict{Outcome: Admitted, QoS: record.QoS, Pod: &record, View: view, Trace: c.trace}, nil
}

// holds returns errOvertaken if a plan is not valid on the current view. Other admissions
// and resizes respect reservations. A change of the rules, of the uncertain state, or an
// import may not.
func (e *Engine) holds(planned *ledger.Draft, now *ledger.View, d *ledger.Draft, c *candidate) error {
	if now.SameFacts(planned.Base()) {
		return nil
	}
	_, known := now.Pod(c.uid())
	switch {
	case known, now.Rules().ConfigDigest != c.rules,
		heldBackNow(now, d.View(), c.uid()),
		newFinding(ledger.CheckPod(planned.View(), c.uid()), ledger.CheckPod(d.View(), c.uid())):
		return errOvertaken
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
			err := errdefs.Deadlinef("provider %s held what it reserved until %s, and the admission took longer", l.Provider, l.Expires.UTC().Format(time.RFC3339))
			err.Provider = l.Provider
			return err
		}
	}
	return nil
}
