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

// snapshot returns the current view with all reservations added, and a channel that is
// closed when a reservation or a removal has ended; nil if there are none.
func (e *Engine) snapshot() (*ledger.View, <-chan struct{}) { return e.reserved.on(e.Ledger.View) }

// InFlight returns the current view with the pods that are being admitted or resized. Of a
// resized pod it has the larger of the old and new amounts.
func (e *Engine) InFlight() *ledger.View {
	view, _ := e.snapshot()
	return view
}

// freed returns the current view without reservations and without ending pods.
func (e *Engine) freed() *ledger.View {
	reserved, ending := e.reserved.others("")
	view, _ := e.reserved.on(e.Ledger.View, append(reserved, ending...)...)
	return view
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
	case err != nil && ended != nil && e.fits(ctx, c, e.freed()):
		return confirmation{ended: ended}, Verdict{}, nil
	case err != nil:
		v, err := e.refuse(ctx, draft, c, err)
		return confirmation{}, v, err
	}
	if condition, why := heldBack(e.Ledger.View(), draft.View(), c.uid()); condition != "" {
		v, err := e.deferred(view, c, condition, why)
		return confirmation{}, v, err
	}
	planned, _ := draft.View().Pod(c.uid())
	e.reserved.put(planned)
	return confirmation{draft: draft}, Verdict{}, nil
}

// call plans on a view without the admission lock, and makes the remote calls without a
// recorded answer. The plan itself is discarded.
func (e *Engine) call(ctx context.Context, view *ledger.View, c *candidate) error {
	e.waits(ctx)
	if c.turn == nil {
		var err error
		if c.turn, err = e.takeTurn(ctx, c.calls.Unanswered); err != nil {
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
	if release, ok := e.remote.try(party); ok {
		return &turn{party: party, release: release}, nil
	}
	release, err := e.remote.lock(ctx, "admission that calls", party)
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

// fits returns whether a refused pod would fit on another view, as far as this is known
// without remote calls.
func (e *Engine) fits(ctx context.Context, c *candidate, view *ledger.View) bool {
	if ctx.Err() != nil {
		return false
	}
	record := *c.record
	trial := &candidate{record: &record, bus: c.bus, policy: c.policy}
	_, err := e.plan(hint.WithCalls(ctx, c.calls.WhatIf()), view, trial)
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

// Conditions of pods that would fit without temporary claims of other pods.
const (
	// AdmissionsInFlight: running admissions and resizes have reserved it.
	AdmissionsInFlight = "AdmissionsInFlight"
	// PodsEnding: pods that are being removed have it.
	PodsEnding = "PodsEnding"
)

// heldUp returns the answer for a pod that would fit without reservations or ending pods.
func (e *Engine) heldUp(ctx context.Context, c *candidate) (Verdict, error) {
	if errors.Is(ctx.Err(), context.Canceled) {
		return Verdict{}, fmt.Errorf("admit pod %s: %w", c.uid(), context.Cause(ctx))
	}
	reserved, ending := e.reserved.others(c.uid())
	reserved, ending = e.blockers(ctx, c, reserved, ending)
	condition, message := AdmissionsInFlight, fmt.Sprintf("pod %s would fit, but for what is", c.uid())
	if len(reserved)+len(ending) == 0 {
		message = fmt.Sprintf("pod %s fits only now: admit it again", c.uid())
	}
	if len(ending) > 0 {
		condition, message = PodsEnding, fmt.Sprintf("%s held by pod %s, which is ending", message, strings.Join(ending, ", which is ending, by pod "))
	}
	if len(ending) > 0 && len(reserved) > 0 {
		message += ", and for what is"
	}
	if len(reserved) > 0 {
		message += " reserved for pods that are being admitted or resized: " + strings.Join(reserved, ", ")
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
			view, _ := e.reserved.on(e.Ledger.View, uid)
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
