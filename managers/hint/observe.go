package hint

import "context"

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

// Observer is called when a step of an admission begins. It returns end, which is called with the
// step's error, and the step's context. Provider is empty for common steps. Managers have no
// clock, so the caller measures.
type Observer func(ctx context.Context, step, provider string) (inner context.Context, end func(error))

type observerKey struct{}

// Observed returns a context whose steps call an observer; with nil it is the same context.
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

// StepIn notifies the context's observer, if there is one, of the begin of a step.
func StepIn(ctx context.Context, step string) (inner context.Context, end func(error)) {
	return stepOf(ctx)(ctx, step, "")
}

// stepOf gives the context's observer, or one that does nothing.
func stepOf(ctx context.Context) Observer {
	if o, _ := ctx.Value(observerKey{}).(Observer); o != nil {
		return o
	}
	return noObserver
}

func noObserver(ctx context.Context, _, _ string) (context.Context, func(error)) {
	return ctx, func(error) {}
}
