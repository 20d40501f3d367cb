package hint

import (
	"context"

	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/workload"
)

// Resizer has a say when a pod that is here changes its cpu or memory in place.
type Resizer interface {
	// Resize holds what is wanted against what the pod has. A refusal is a
	// *errdefs.Error of class Refused: errdefs.Infeasible if it can never be on this
	// node, errdefs.ResizeDeferred if it may be later.
	Resize(ctx context.Context, view *ledger.View, old, wanted *workload.Pod) error
}

// Resize calls every provider that has a say, in order. An error is a refusal or a
// required provider's failure.
func (b *Bus) Resize(ctx context.Context, view *ledger.View, old, wanted *workload.Pod, trace *ledger.Trace) error {
	req := Request{Pod: wanted, Container: -1}
	for i := range b.entries {
		e := &b.entries[i]
		r, ok := e.Provider.(Resizer)
		if !ok {
			continue
		}
		err := b.call(ctx, e, "resize", req, func(ctx context.Context) error { return r.Resize(ctx, view, old, wanted) })
		if err != nil {
			if !tolerated(ctx, e, req, err, trace) {
				return err
			}
			continue
		}
		trace.Add(ledger.Step{Kind: ledger.StepValidated, Provider: e.Provider.Name()})
	}
	return nil
}
