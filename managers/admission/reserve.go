package admission

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/berthd/berth/managers/hint"
	"github.com/berthd/berth/managers/ledger"
)

// snapshot returns the current view with all reservations on top of it, and a
// channel that is closed when one of them has ended; nil if there are none.
func (e *Engine) snapshot() (*ledger.View, <-chan struct{}) { return e.reserved.on(e.Ledger.View) }

// confirmation is what became of a plan under the admission lock. The zero value
// says that the pod got a verdict.
type confirmation struct {
	// draft with the pod, of which the claims are reserved.
	draft *ledger.Draft
	// unanswered is the view on which a remote call has to be made first.
	unanswered *ledger.View
	// ended is closed when a reservation has ended without which the pod might fit.
	ended <-chan struct{}
}

// reserve plans until a plan is confirmed under the admission lock, and reserves
// what it takes. Remote calls are made and other reservations are awaited without
// the lock. The draft is nil where the pod got a verdict instead.
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
			c.turn.end() // nobody waits behind who waits himself
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

// confirm plans under the admission lock, with the recorded answers of remote calls,
// and reserves what the plan takes.
func (e *Engine) confirm(ctx context.Context, c *candidate) (confirmation, Verdict, error) {
	release, err := e.acquire(ctx)
	if err != nil {
		return confirmation{}, Verdict{}, err
	}
	defer release()
	view, ended := e.snapshot()
	if v, ok, err := e.known(e.Ledger.View(), view, c); ok || err != nil {
		return confirmation{}, v, err
	}
	e.assign(c, view)
	c.calls.Mode = hint.Replay
	draft, err := e.plan(ctx, view, c)
	switch {
	case errors.Is(err, hint.ErrUnanswered):
		return confirmation{unanswered: view}, Verdict{}, nil
	case err != nil && ended != nil && e.fits(ctx, c, e.Ledger.View()):
		return confirmation{ended: ended}, Verdict{}, nil
	case err != nil:
		v, err := e.refuse(ctx, draft, c, err)
		return confirmation{}, v, err
	}
	if condition, why := heldBack(view, draft.View(), c.uid()); condition != "" {
		v, err := e.deferred(view, c, condition, why)
		return confirmation{}, v, err
	}
	planned, _ := draft.View().Pod(c.uid())
	e.reserved.put(planned)
	return confirmation{draft: draft}, Verdict{}, nil
}

// call plans on a view without the admission lock, and makes the remote calls that
// have no recorded answer. What becomes of the plan counts for nothing.
func (e *Engine) call(ctx context.Context, view *ledger.View, c *candidate) error {
	if c.turn == nil {
		var err error
		if c.turn, err = e.takeTurn(ctx, c.calls.Unanswered); err != nil {
			return err
		}
		c.calls.Before = c.turn.before
		if c.turn.waited {
			// The one before has taken something: the view is an old one.
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

// turn is held by an admission from its first call to a plugin or provider until its
// plan is reserved, so that the next admission that calls the same one offers it
// what is free then. Who calls two of them has no turn: nobody who needs only one
// waits for the other.
type turn struct {
	party   string
	waited  bool
	release func()
}

func (e *Engine) takeTurn(ctx context.Context, party string) (*turn, error) {
	if release, ok := e.remote.try(party); ok {
		return &turn{party: party, release: release}, nil
	}
	release, err := e.remote.lock(ctx, "admission that calls", party)
	if err != nil {
		return nil, err
	}
	return &turn{party: party, waited: true, release: release}, nil
}

// before ends the turn where another party is called.
func (t *turn) before(_ context.Context, party string) error {
	if party != t.party {
		t.end()
	}
	return nil
}

// end ends the turn. It may be called again, and for no turn.
func (t *turn) end() {
	if t != nil && t.release != nil {
		t.release()
		t.release = nil
	}
}

// fits reports whether a pod that was refused would fit on another view, as far as
// can be told without a remote call.
func (e *Engine) fits(ctx context.Context, c *candidate, view *ledger.View) bool {
	if ctx.Err() != nil {
		return false
	}
	record := *c.record
	trial := &candidate{record: &record, bus: c.bus, policy: c.policy}
	_, err := e.plan(hint.WithCalls(ctx, c.calls.WhatIf()), view, trial)
	return err == nil
}

// await waits until a reservation has ended. It is false if the time of the pod's
// own admission is over before that, but for what it takes to answer.
func (e *Engine) await(ctx context.Context, ended <-chan struct{}) bool {
	limited := ctx
	if end, ok := ctx.Deadline(); ok && e.WithTimeout != nil {
		left := end.Sub(e.Now())
		var cancel context.CancelFunc
		limited, cancel = e.WithTimeout(ctx, left-min(left/10, toAnswer))
		defer cancel()
	}
	select {
	case <-ended:
		return true
	case <-limited.Done():
		return false
	}
}

// toAnswer is the most that is kept of an admission's time to tell that it waited in
// vain.
const toAnswer = time.Second

// AdmissionsInFlight is the condition of a pod that would fit, but for what
// admissions in flight have reserved.
const AdmissionsInFlight = "AdmissionsInFlight"

// heldUp answers a pod that would fit, but for reservations of other pods.
func (e *Engine) heldUp(ctx context.Context, c *candidate) (Verdict, error) {
	if errors.Is(ctx.Err(), context.Canceled) {
		return Verdict{}, fmt.Errorf("admit pod %s: %w", c.uid(), context.Cause(ctx))
	}
	message := fmt.Sprintf("pod %s would fit, but for what is reserved for pods that are being admitted or resized: %s",
		c.uid(), strings.Join(e.blockers(ctx, c), ", "))
	c.failed = nil // the reservations explain enough
	return e.deferred(e.Ledger.View(), c, AdmissionsInFlight, message)
}

// triedBlockers bounds the reservations that are looked at one by one.
const triedBlockers = 8

// blockers are the pods whose reservation alone keeps the pod out; where there are
// none, all that have one.
func (e *Engine) blockers(ctx context.Context, c *candidate) []string {
	all := e.reserved.others(c.uid())
	var alone []string
	for _, uid := range all[:min(len(all), triedBlockers)] {
		view, _ := e.reserved.on(e.Ledger.View, uid)
		if e.fits(context.WithoutCancel(ctx), c, view) {
			alone = append(alone, uid)
		}
	}
	if len(alone) > 0 {
		return alone
	}
	return all
}
