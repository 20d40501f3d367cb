package admission

import (
	"errors"

	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/hint"
)

// StateUncertain is the condition of a pod that waits until the ledger is known to
// be whole; providers have conditions of their own.
const StateUncertain = "StateUncertain"

// Condition is what a deferred pod waits for.
type Condition struct {
	// Type is StateUncertain, or a word of the provider's such as PluginAway.
	Type string
	// Provider and Resource are empty where it is about no resource.
	Provider, Resource string
}

// waiting is a refusal of the policy where a provider waits for something: it did
// not get as far as to refuse by itself.
type waiting struct {
	error
	wait hint.Wait
}

// Unwrap returns the refusal.
func (w *waiting) Unwrap() error { return w.error }

// Waits tells what the provider waits for.
func (w *waiting) Waits() hint.Wait { return w.wait }

// awaited adds to a refusal of the policy what the first of the providers waits
// for, if one does.
func awaited(refusal *errdefs.Error, replies []hint.Reply) error {
	for _, r := range replies {
		for i := range r.Answers {
			if w := r.Answers[i].Wait; w != nil {
				e := *refusal
				e.Provider, e.Resource = r.Provider, w.Resource
				return &waiting{&e, *w}
			}
		}
	}
	return refusal
}

// postponed makes a deferral of a refusal that time may heal. Where the
// configuration has no deferrals the refusal stands, unless nobody has decided.
func (e *Engine) postponed(refused Verdict, err error) (Verdict, error) {
	var w hint.Waiter
	if !errors.As(err, &w) || e.overdue(w.Waits()) {
		return refused, nil
	}
	condition, after := Condition{Type: w.Waits().Condition, Resource: w.Waits().Resource}, e.RetryAfter
	if fe := new(errdefs.Error); errors.As(err, &fe) {
		condition.Provider = fe.Provider
		if fe.RetryAfter > 0 {
			after = fe.RetryAfter
		}
	}
	if !e.DeferWaits && !w.Waits().Undecided {
		return refused, nil
	}
	refused.Outcome, refused.Reason = Deferred, ""
	refused.Trace.Reason = ""
	refused.RetryAfter, refused.Condition = after, &condition
	return e.undecided(refused)
}

// overdue reports whether a wait that has a bound has reached it.
func (e *Engine) overdue(w hint.Wait) bool {
	return !w.Since.IsZero() && !e.Now().Before(w.Since.Add(e.Resources.Grace))
}

// undecided returns a deferral, where the configuration has them, and else the error
// of class Unavailable that tells the same.
func (e *Engine) undecided(v Verdict) (Verdict, error) {
	if e.DeferWaits {
		return v, nil
	}
	err := errdefs.Unavailablef("pod %s is not decided about: %s", v.Trace.Pod, v.Message)
	err.RetryAfter = v.RetryAfter
	if c := v.Condition; c != nil {
		err.Reason, err.Provider, err.Resource = errdefs.Reason(c.Type), c.Provider, c.Resource
	}
	return Verdict{}, err
}
