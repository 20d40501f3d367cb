package hint

import (
	"context"

	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/workload"
)

// Resizer may refuse a change of a pod's cpu or memory in place.
type Resizer interface {
	// Resize compares the changed pod with the current one. A refusal is a *errdefs.Error of class
	// Refused: errdefs.Infeasible if it is never possible on this node, errdefs.ResizeDeferred if
	// it may be possible later.
	Resize(ctx context.Context, view *ledger.View, old, wanted *workload.Pod) error
}

// Resize calls every Resizer, in order. An error is a refusal or a required provider's failure.
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
