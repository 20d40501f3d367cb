package hint

import (
	"context"
	"time"
)

// Names of the steps of an admission, for measurements.
const (
	// StepWait is the wait for the admission lock, and for a turn to call a provider.
	StepWait = "wait"
	// StepHints, StepPlan and StepPrepare are calls of one provider.
	StepHints   = "hints"
	StepPlan    = "plan"
	StepPrepare = "prepare"
	// StepMerge merges the hints of a round.
	StepMerge = "merge"
	// StepCgroup creates the pod's cgroup, and StepRecord writes its claim record.
	StepCgroup = "cgroup"
	StepRecord = "record"
	// StepCommit writes the ledger.
	StepCommit = "commit"
)

// Observer is notified of the begin and the end of each step of an admission. Provider is empty for common steps. Managers have
// no clock, so the observer measures.
type Observer interface {
	// Begin returns the step's context, and its start for End.
	Begin(ctx context.Context, step, provider string) (inner context.Context, start time.Time)
	// End gets the step's context and its error.
	End(inner context.Context, step, provider string, start time.Time, err error)
}

type observerKey struct{}

// Observed returns a context whose steps are observed; with nil it is the same context.
func Observed(ctx context.Context, o Observer) context.Context {
	if o == nil {
		return ctx
	}
	return context.WithValue(ctx, observerKey{}, o)
}

// Unobserved gives a context without an observer, for plans that are only tried.
func Unobserved(ctx context.Context) context.Context {
	if o, _ := ctx.Value(observerKey{}).(Observer); o == nil {
		return ctx
	}
	return context.WithValue(ctx, observerKey{}, Observer(nil))
}

// Running is a step that has begun. It is a value, because there are some for each provider in each round.
type Running struct {
	observer       Observer // nil for none
	inner          context.Context
	step, provider string
	start          time.Time
}

// End notifies the observer of the end of the step.
func (r Running) End(err error) {
	if r.observer != nil {
		r.observer.End(r.inner, r.step, r.provider, r.start, err)
	}
}

// StepIn notifies the context's observer, if there is one, of the begin of a common step.
func StepIn(ctx context.Context, step string) (inner context.Context, r Running) {
	return stepOf(ctx, step, "")
}

// stepOf is StepIn for a step of a provider.
func stepOf(ctx context.Context, step, provider string) (inner context.Context, r Running) {
	o, _ := ctx.Value(observerKey{}).(Observer)
	if o == nil {
		return ctx, r
	}
	inner, start := o.Begin(ctx, step, provider)
	return inner, Running{o, inner, step, provider, start}
}
