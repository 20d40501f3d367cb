package app

import (
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/server/internal/mover"
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
