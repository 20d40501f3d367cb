package admission

import (
	"context"

	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/explain"
	"github.com/berthd/berth/managers/hint"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/ledger/history"
	"github.com/berthd/berth/managers/topology"
	"github.com/berthd/berth/managers/workload"
)

// explain completes the trace of a rejected pod with shortages and suggestions. It takes
// much longer than the decision, so it holds no lock, and reads only the view of the
// decision.
func (c *candidate) explain(ctx context.Context) {
	if c.failed == nil || errdefs.ClassOf(c.failed.err) != errdefs.Refused {
		return
	}
	refused := &c.trace.Steps[len(c.trace.Steps)-1]
	refused.Container = c.failed.req.Owner().Container
	r := &explain.Refusal{
		Request: c.failed.req, Err: c.failed.err, Base: c.failed.base, Planned: c.failed.view,
		Bus: c.Bus, Policy: c.Policy,
	}
	refused.Shortages = r.Missing()
	explain.Say(c.failed.base, c.trace)
	if suspect(c.failed.base) {
		return
	}
	if c.Slot != nil {
		leave, err := c.Slot(ctx)
		if err != nil {
			return // the trace has the shortages, without suggestions
		}
		defer leave()
	}
	var note string
	if c.trace.Suggestions, c.trace.Tried, note = r.Suggest(ctx, c.dry(), refused.Shortages); note != "" {
		c.trace.Add(ledger.Step{Kind: ledger.StepNoted, Text: note})
	}
}

// dry returns a function that tries changes of a rejected pod on a view, without a lock. It
// uses recorded answers of the admission's remote calls. Other answers of external
// providers are unknown.
func (c *candidate) dry() explain.Dry {
	return explain.Dry{
		Run: func(ctx context.Context, view *ledger.View, pod *workload.Pod, policy *topology.Manager) bool {
			record := *c.record
			record.Pod = *pod
			calls := c.calls.Trial()
			trial := &candidate{Engine: c.Engine, record: &record, managers: managers{c.Bus, policy, c.rules}}
			_, err := trial.plan(hint.WithCalls(ctx, calls), view)
			return err == nil && len(calls.Skipped) == 0
		},
		Busy: c.reserved.Has, Tries: c.Tries, Time: c.TryTime, Now: c.Now, Bounds: c.Bounds, Features: c.Features,
		Kubelet: c.Kubelet,
	}
}

// refusal is a verdict for the history.
func refusal(v Verdict, record *ledger.Pod, id string) history.Refusal {
	return history.Refusal{
		Verdict: v.Outcome.String(), Reason: string(v.Reason), Message: v.Message,
		Pod: record, View: v.View, AdmissionID: id,
	}
}

// saveTrace stores the trace of a rejected pod in the ledger. An error is noted in the
// answer's trace, because the verdict does not depend on it.
//
// This is a synced commit. The history's entry needs none and goes with it. The trace does: the
// answer names an admission id with which the trace can be read from then on, also after a crash,
// and a view shows only what is durable. A trace that waited for the next commit would be in no
// view until then.
func (c *candidate) saveTrace(ctx context.Context) {
	_, err := c.Update(ctx, func(d *ledger.Draft) error { d.PutTrace(c.trace); return nil })
	if err != nil {
		c.trace.Add(ledger.Step{Kind: ledger.StepNoted, Text: "this trace could not be kept: " + err.Error()})
	}
}

// saidBefore reports whether the pod's newest trace has the same verdict. Deferred pods are sent
// repeatedly, and every stored trace is a commit.
func (c *candidate) saidBefore() bool {
	last, ok := c.Ledger.View().TraceOfPod(c.uid())
	return ok && !last.Admitted && last.Reason == c.trace.Reason && last.Message == c.trace.Message
}
