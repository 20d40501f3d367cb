package admission

import (
	"context"
	"fmt"

	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/hint"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/topology"
	"github.com/berthd/berth/managers/workload"
)

// plan returns a draft with the pod and all of its claims. The draft is also returned with
// an error, unless no managers can decide about the pod on the view.
func (c *candidate) plan(ctx context.Context, view *ledger.View) (*ledger.Draft, error) {
	if err := c.assign(view); err != nil {
		return nil, err
	}
	if l, ok := c.living(view); ok {
		return c.takeOver(ctx, view, l)
	}
	c.begin(view, c.Now())
	draft := ledger.NewDraft(view)
	draft.PutPod(c.record)
	if err := c.planScope(ctx, draft); err != nil {
		return draft, err
	}
	if err := c.checkProvided(draft.View()); err != nil {
		return draft, err
	}
	whole := hint.Request{Pod: &c.record.Pod, Container: -1, Running: c.running}
	if err := c.Bus.Validate(ctx, draft.View(), whole, c.trace); err != nil {
		return draft, c.fail(draft, whole, err)
	}
	return draft, nil
}

// planScope executes the policy's rounds for a pod.
func (c *candidate) planScope(ctx context.Context, draft *ledger.Draft) error {
	if c.Policy.WholePod(&c.record.Pod, c.Features) {
		return c.planWhole(ctx, draft)
	}
	return c.planRounds(ctx, draft, c.Policy.Rounds(&c.record.Pod, c.Features))
}

// PlanRunning returns the view of a basis with a running pod after rounds of the policy. record has the claims that stay. No plugin or
// provider of another process is called.
func (e *Engine) PlanRunning(ctx context.Context, b Basis, record *ledger.Pod, rounds []topology.Round,
	trace *ledger.Trace) (*ledger.View, error) {
	draft := ledger.NewDraft(b.View)
	draft.PutPod(record)
	c := &candidate{Engine: e, record: record, managers: b.managers, trace: trace, running: true}
	if err := c.planRounds(hint.WithCalls(ctx, &hint.Calls{Mode: hint.Trial}), draft, rounds); err != nil {
		return nil, err
	}
	return draft.View(), nil
}

// planRounds executes rounds of the policy: get hints, merge, plan.
func (c *candidate) planRounds(ctx context.Context, draft *ledger.Draft, rounds []topology.Round) error {
	affinity := hint.Hint{Any: true}
	for _, round := range rounds {
		var err error
		if round.Borrows {
			err = c.planBorrowing(ctx, draft, round, affinity)
		} else {
			affinity, err = c.planRound(ctx, draft, round, affinity)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// planRound executes one round, and returns its affinity, or the one before if it has none.
func (c *candidate) planRound(ctx context.Context, draft *ledger.Draft, round topology.Round,
	affinity hint.Hint) (hint.Hint, error) {
	if round.Merge {
		replies, err := c.Bus.Hints(ctx, draft.View(), round.Hints, c.trace)
		if err != nil {
			return affinity, c.fail(draft, round.Hints, err)
		}
		_, merging := hint.StepIn(ctx, hint.StepMerge)
		result := c.Policy.Merge(replies)
		merging.End(nil)
		step := result.Step()
		step.Container = round.Hints.Owner().Container
		c.trace.Add(step)
		if !result.Admit {
			return affinity, c.fail(draft, round.Hints, awaited(c.Policy.Refusal(&c.record.Pod, c.Features), replies))
		}
		affinity = result.Affinity
	}
	for _, req := range round.Plan {
		if err := c.Bus.Plan(ctx, draft, req, affinity, c.trace); err != nil {
			return affinity, c.fail(draft, req, err)
		}
	}
	return affinity, nil
}

// Hints requests the hints for a pod or a container without planning, for the managers'
// services.
func (e *Engine) Hints(ctx context.Context, pod workload.Pod, container string) ([]hint.Reply, error) {
	record, _, err := e.Record(pod, "get hints for")
	if err != nil {
		return nil, err
	}
	pod = record.Pod
	index := -1
	if container != "" {
		for i := range pod.Containers {
			if pod.Containers[i].Name == container {
				index = i
			}
		}
		if index < 0 {
			return nil, errdefs.NotFoundf("pod %s has no container %q", pod.UID, container).
				Coded(errdefs.ContainerNotFound, "pod_uid", pod.UID, "container_name", container)
		}
	}
	var trace ledger.Trace
	b, err := e.Basis(e.Ledger.View)
	if err != nil {
		return nil, fmt.Errorf("get hints for pod %s: %w", pod.UID, err)
	}
	return b.Bus.Hints(hint.WithCalls(ctx, e.liveCalls()), b.View, hint.Request{Pod: &pod, Container: index}, &trace)
}

// failurePoint is where a plan failed: the draft and its view, the request, and the error.
type failurePoint struct {
	base, view *ledger.View
	req        hint.Request
	err        error
}

// fail records where the plan failed and returns the error.
func (c *candidate) fail(draft *ledger.Draft, req hint.Request, err error) error {
	c.failed = &failurePoint{draft.Base(), draft.View(), req, err}
	return err
}
