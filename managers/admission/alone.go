package admission

import (
	"context"

	"github.com/berthd/berth/managers/ledger"
)

// Alone runs do while no operation on a pod is under way, with the view of then:
// for whoever cleans up after pods and must not meet one on its way in.
func (e *Engine) Alone(ctx context.Context, uid string, do func(ctx context.Context, view *ledger.View) error) error {
	unlock, err := e.lockPod(ctx, uid)
	if err != nil {
		return err
	}
	defer unlock()
	return do(ctx, e.Ledger.View())
}
