package admission

import (
	"context"

	"github.com/berthd/berth/managers/ledger"
)

// Alone runs do with the current view, while no operation on the pod is in progress. It is
// for cleanup that must not affect a pod during its admission.
func (e *Engine) Alone(ctx context.Context, uid string, do func(ctx context.Context, view *ledger.View) error) error {
	unlock, err := e.LockPod(ctx, uid)
	if err != nil {
		return err
	}
	defer unlock()
	return do(ctx, e.Ledger.View())
}
