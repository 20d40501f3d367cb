package live

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/berthd/berth/managers/admission"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/transition"
)

// Relocation is a move of a pod whose amounts stay.
type Relocation struct {
	UID string
	// Reason is why the pod moves; it is stored with the move.
	Reason string
	// Plan has the steps and the cost.
	Plan *transition.Plan
	move *ledger.Move
}

// Relocate begins a planned move. It ends by itself, as that of a resize. The pod must have what it had when
// the move was planned, else the error is of class Conflict. A refusal is of class Refused: a step is not
// possible any more, or an unknown pod may have what is free. bytesPerSecond limits the memory that
// moves; 0 is no other limit than the engine's. It does not wait for another operation on the pod, such as a removal: the
// error is then of class Unavailable.
func (e *Engine) Relocate(ctx context.Context, r Relocation, bytesPerSecond uint64) error {
	fail := func(err error) error { return fmt.Errorf("move pod %s: %w", r.UID, err) }
	unlock, err := e.TryLockPod(r.UID)
	if err != nil {
		return fail(err)
	}
	defer unlock()
	defer e.Unreserve(r.UID)
	record, begin, err := e.reserveMove(ctx, r, bytesPerSecond)
	if err != nil {
		return fail(err)
	}
	view := e.InFlight()
	draft := ledger.NewDraft(view)
	draft.PutPod(clone(record))
	draft.AddClaims(r.UID, begin...)
	restore, err := e.RecordClaims(ctx, draft.View(), r.UID, true)
	if err != nil {
		return fail(err)
	}
	_, err = e.Update(ctx, func(d *ledger.Draft) error {
		now := d.Base()
		if have, ok := now.Pod(r.UID); !ok || have.Move != nil || !hasAll(have, r.move.From) {
			return errdefs.Conflictf("the pod has changed meanwhile")
		}
		d.PutPod(clone(record))
		d.AddClaims(r.UID, begin...)
		if admission.Overtaken(draft.View(), now, d.View(), r.UID, begin) != nil {
			return errdefs.Conflictf("the rules have changed meanwhile")
		}
		return nil
	})
	if err != nil {
		return fail(errors.Join(err, restore()))
	}
	return nil
}

// reserveMove decides under the admission lock whether a move may begin, and reserves what the pod gets.
func (e *Engine) reserveMove(ctx context.Context, r Relocation, bytesPerSecond uint64) (record *ledger.Pod, begin []ledger.Claim,
	err error) {
	release, err := e.Acquire(ctx)
	if err != nil {
		return nil, nil, err
	}
	defer release()
	b, err := e.BasisInFlight()
	if err != nil {
		return nil, nil, err
	}
	pod, ok := b.View.Pod(r.UID)
	if !ok {
		return nil, nil, b.View.NotAdmitted(r.UID)
	}
	if err := moving(pod); err != nil {
		return nil, nil, err
	}
	if !hasAll(pod, r.move.From) {
		return nil, nil, errdefs.Conflictf("the pod has changed since its move was planned")
	}
	p, err := e.steps(ctx, b, pod, r.move, nil, &ledger.Trace{})
	if err != nil {
		return nil, nil, err
	}
	if _, why := admission.HeldBack(b.View, r.UID, p.move.Held); why != "" {
		return nil, nil, errdefs.Refuse(errdefs.ResizeDeferred, "%s", why)
	}
	record = clone(pod)
	record.Acknowledged, record.Move = nil, &p.move
	record.Move.SameAmounts, record.Move.Reason = true, r.Reason
	record.Move.BytesPerSecond = lowerLimit(e.BytesPerSecond, bytesPerSecond)
	e.Reserve(clone(record))
	return record, p.begin, nil
}

// lowerLimit returns the lower one of two limits; 0 is none.
func lowerLimit(a, b uint64) uint64 {
	if a == 0 || b != 0 && b < a {
		return b
	}
	return a
}

// hasAll returns whether a pod has some claims, as they are.
func hasAll(p *ledger.Pod, claims []ledger.Claim) bool {
	return !slices.ContainsFunc(claims, func(c ledger.Claim) bool {
		have, ok := p.Claim(c.Owner.Container, c.Resource)
		if !ok || have.Provider != c.Provider || (have.CPUs == nil) != (c.CPUs == nil) {
			return true
		}
		return have.CPUs != nil && have.CPUs.Set != c.CPUs.Set || !slices.EqualFunc(have.Memory, c.Memory, ledger.Block.Equal)
	})
}

// CancelMove reverses the move of a pod whose amounts stay: it returns to what it had. A pod that does not
// move is left as it is; a move of a resize is refused. If the way back is not possible any more, as after CPUs
// went offline, the error is of class Refused, and the move continues.
func (e *Engine) CancelMove(ctx context.Context, uid string) error {
	unlock, err := e.LockPod(ctx, uid)
	if err != nil {
		return err
	}
	defer unlock()
	view := e.Ledger.View()
	pod, ok := view.Pod(uid)
	switch {
	case !ok || pod.Move == nil || pod.Move.Canceled:
		return nil
	case !pod.Move.SameAmounts:
		return errdefs.Refuse(errdefs.Infeasible,
			"cancel the move of pod %s: it is that of a resize; resize the pod back to its amounts before", &pod.Pod)
	}
	record := clone(pod)
	back := pod.ReversedMove()
	if _, err := transition.New(view, []transition.Change{moveOf(uid, &back)}); err != nil {
		return fmt.Errorf("cancel the move of pod %s, which continues: %w", &pod.Pod, err)
	}
	record.Move = &back
	_, err = e.replace(ctx, view, record, nil)
	return err
}
