package hint

import (
	"context"

	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/workload"
)

// Resizer decides whether a pod's cpu or memory may change in place.
type Resizer interface {
	// Resize compares the changed pod with the current one. It returns the claims that change, each
	// for one that the pod has. A refusal is a *errdefs.Error of class Refused: errdefs.Infeasible
	// if the change is never possible on this node, errdefs.ResizeDeferred if it may be possible
	// later.
	Resize(ctx context.Context, view *ledger.View, old, wanted *workload.Pod) ([]ledger.Claim, error)
}

// Resize calls every Resizer, in order, and returns the claims that change. An error is a refusal
// or a required provider's failure.
func (b *Bus) Resize(ctx context.Context, view *ledger.View, old, wanted *workload.Pod, trace *ledger.Trace) ([]ledger.Claim, error) {
	req := Request{Pod: wanted, Container: -1}
	var changed []ledger.Claim
	for i := range b.entries {
		e := &b.entries[i]
		r, ok := e.Provider.(Resizer)
		if !ok {
			continue
		}
		var claims []ledger.Claim
		err := b.call(ctx, e, "resize", req, func(ctx context.Context) (err error) {
			claims, err = r.Resize(ctx, view, old, wanted)
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
		trace.Add(ledger.Step{Kind: ledger.StepValidated, Provider: e.Provider.Name()})
	}
	return changed, nil
}
