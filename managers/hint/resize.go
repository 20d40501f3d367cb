package hint

import (
	"context"

	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/workload"
)

// Widening is the rule for claims of a resized container that do not fit on their NUMA nodes any
// more. It follows from the topology policy. The zero value lets claims extend to any nodes.
type Widening struct {
	// OneNode: a claim stays on its nodes (policy single-numa-node).
	OneNode bool
	// Preferred: a claim extends only to nodes that an admission would prefer for all claims of the
	// container, or in pod scope of the pod (policy restricted).
	Preferred bool
	Scope     Scope
}

// OtherNodes marks a refusal of a Resizer that concerns the NUMA nodes, CPUs or memory that the pod has. With
// others, the request may be possible.
type OtherNodes struct{ Err error }

// Error returns the text of the refusal.
func (e *OtherNodes) Error() string { return e.Err.Error() }

// Unwrap returns the refusal.
func (e *OtherNodes) Unwrap() error { return e.Err }

// Resizer decides whether a pod's cpu or memory may change in place.
type Resizer interface {
	// Resize compares the changed pod with the current one. It returns the claims that change, each
	// for one that the pod has. A refusal is a *errdefs.Error of class Refused: errdefs.Infeasible
	// if the change is never possible on this node, errdefs.ResizeDeferred if it may be possible
	// later. OtherNodes wraps it if that is only so where the pod is.
	Resize(ctx context.Context, view *ledger.View, old, wanted *workload.Pod, w Widening) ([]ledger.Claim, error)
}

// Resize calls every Resizer, in order, and returns the claims that change. An error is a refusal
// or a required provider's failure.
func (b *Bus) Resize(ctx context.Context, view *ledger.View, old, wanted *workload.Pod, w Widening,
	trace *ledger.Trace) ([]ledger.Claim, error) {
	return b.change(ctx, "resize", Request{Pod: wanted, Container: -1}, trace,
		func(m Member) func(context.Context) ([]ledger.Claim, error) {
			r, ok := m.(Resizer)
			if !ok {
				return nil
			}
			return func(ctx context.Context) ([]ledger.Claim, error) { return r.Resize(ctx, view, old, wanted, w) }
		})
}

// Replacer decides which CPUs a pod gets for those that the machine does not have any more.
type Replacer interface {
	// Replace returns the claims that change, each for one that the pod has and with the same amount. It
	// returns none if the machine has everything that the pod has of the provider. Refusals are those
	// of Resizer.
	Replace(ctx context.Context, view *ledger.View, pod *ledger.Pod, w Widening) ([]ledger.Claim, error)
}

// Replace calls every Replacer, in order, and returns the claims that change. An error is a refusal
// or a required provider's failure.
func (b *Bus) Replace(ctx context.Context, view *ledger.View, pod *ledger.Pod, w Widening, trace *ledger.Trace) ([]ledger.Claim, error) {
	return b.change(ctx, "replacement", Request{Pod: &pod.Pod, Container: -1}, trace,
		func(m Member) func(context.Context) ([]ledger.Claim, error) {
			r, ok := m.(Replacer)
			if !ok {
				return nil
			}
			return func(ctx context.Context) ([]ledger.Claim, error) { return r.Replace(ctx, view, pod, w) }
		})
}

// change makes a call to every member that has one, in order, and returns the claims that change.
func (b *Bus) change(ctx context.Context, what string, req Request, trace *ledger.Trace,
	of func(Member) func(context.Context) ([]ledger.Claim, error)) ([]ledger.Claim, error) {
	var changed []ledger.Claim
	for i := range b.entries {
		e := &b.entries[i]
		plan := of(e.Provider)
		if plan == nil {
			continue
		}
		var claims []ledger.Claim
		err := b.call(ctx, e, what, req, func(ctx context.Context) (err error) {
			claims, err = plan(ctx)
			return err
		})
		if err != nil {
			if !tolerated(ctx, e, req, err, trace) {
				return nil, err
			}
			continue
		}
		changed = append(changed, claims...)
		for _, c := range claims {
			trace.Add(planned(&c))
		}
		if _, ok := e.Provider.(Validator); ok {
			trace.Add(ledger.Step{Kind: ledger.StepValidated, Provider: e.Provider.Name()})
		}
	}
	return changed, nil
}
