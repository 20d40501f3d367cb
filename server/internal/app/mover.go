package app

import (
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/server/internal/mover"
	"github.com/berthd/berth/server/internal/rpc"
)

// buildMover constructs what carries out the moves of the ledger.
func (a *App) buildMover() {
	a.mover = mover.New(mover.Config{
		View: a.Ledger.View, Advance: a.Engine.Advance, Observe: a.metrics.Moved,
		Log: a.Log.With("part", "mover"), Now: a.Now,
	})
	a.Ledger.Follow(func(old, new *ledger.View) {
		for _, c := range ledger.Changes(old, new) {
			if c.Kind == ledger.PodChanged && c.Pod.Move != nil {
				a.mover.Wake()
				return
			}
		}
	})
}

// defragmenter makes room for pods.
func (a *App) defragmenter() *mover.Defragmenter {
	return &mover.Defragmenter{
		Plan: a.Engine.PlanDefragment, Begin: a.Engine.Relocate, Cancel: a.Engine.CancelMove,
		View: a.Ledger.View, Use: a.reconcile.Use, Now: a.Now, Away: rpc.Away,
	}
}
