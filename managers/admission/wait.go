package admission

import (
	"errors"

	"github.com/berthd/berth/managers/fault"
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
func awaited(refusal *fault.Error, replies []hint.Reply) error {
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

// postponed makes a deferral of a refusal that time may heal, where the
// configuration has deferrals.
func (e *Engine) postponed(refused Verdict, err error) Verdict {
	var w hint.Waiter
	if !e.DeferWaits || !errors.As(err, &w) {
		return refused
	}
	refused.Outcome, refused.Reason = Deferred, ""
	refused.Trace.Reason = ""
	refused.RetryAfter = e.RetryAfter
	refused.Condition = &Condition{Type: w.Waits().Condition, Resource: w.Waits().Resource}
	if fe := new(fault.Error); errors.As(err, &fe) {
		refused.Condition.Provider = fe.Provider
	}
	return refused
}
