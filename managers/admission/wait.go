package admission

import (
	"errors"

	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/hint"
)

// StateUncertain is the condition of a pod that is deferred because the ledger may lack
// running pods. Providers have other conditions.
const StateUncertain = "StateUncertain"

// Condition is the reason of a deferral.
type Condition struct {
	// Type is StateUncertain, or a condition of a provider such as PluginAway.
	Type string
	// Provider and Resource are empty if the condition is not about a resource.
	Provider, Resource string
}

// waiting is a refusal by the policy while a provider has a temporary condition. The
// provider itself was not reached.
type waiting struct {
	error
	wait hint.Wait
}

// Unwrap returns the refusal.
func (w *waiting) Unwrap() error { return w.error }

// Waits returns the provider's condition.
func (w *waiting) Waits() hint.Wait { return w.wait }

// awaited adds the first temporary condition of a provider, if there is one, to a refusal
// by the policy.
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

// postponed converts a temporary refusal to a deferral. If deferrals are off, the refusal
// stays, unless nothing was decided.
func (c *candidate) postponed(refused Verdict, err error) (Verdict, error) {
	var w hint.Waiter
	if !errors.As(err, &w) || c.overdue(w.Waits()) {
		return refused, nil
	}
	condition, after := Condition{Type: w.Waits().Condition, Resource: w.Waits().Resource}, c.RetryAfter
	if fe := new(errdefs.Error); errors.As(err, &fe) {
		condition.Provider = fe.Provider
		if fe.RetryAfter > 0 {
			after = fe.RetryAfter
		}
	}
	if !c.DeferWaits && !w.Waits().Undecided {
		return refused, nil
	}
	refused.Outcome, refused.Reason = Deferred, ""
	refused.Trace.Reason = ""
	refused.RetryAfter, refused.Condition = after, &condition
	return c.undecided(refused)
}

// overdue returns whether a temporary condition has reached its time limit.
func (c *candidate) overdue(w hint.Wait) bool {
	return !w.Since.IsZero() && !c.Now().Before(w.Since.Add(c.Resources.Grace))
}

// undecided returns a deferral, or an error of class Unavailable if deferrals are off.
func (c *candidate) undecided(v Verdict) (Verdict, error) {
	if c.DeferWaits {
		return v, nil
	}
	err := errdefs.Unavailablef("pod %s is not decided about: %s", v.Trace.Pod, v.Message)
	err.RetryAfter = v.RetryAfter
	if c := v.Condition; c != nil {
		err.Reason, err.Provider, err.Resource = errdefs.Reason(c.Type), c.Provider, c.Resource
	}
	return Verdict{}, err
}
