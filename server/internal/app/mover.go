package app

import (
	"context"

	"github.com/berthd/berth/api/config"
	"github.com/berthd/berth/managers/admission"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/server/internal/mover"
	"github.com/berthd/berth/server/internal/moves"
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

// buildReplacer constructs what moves pods that lose something when the machine changes, if the configuration
// requests that.
func (a *App) buildReplacer() {
	if a.Config.Hotplug.OnLost != config.LostReplace {
		return
	}
	a.replacer = mover.NewReplacer(mover.ReplacerConfig{
		View: a.Ledger.View, Plan: a.Engine.PlanReplacement,
		Begin: func(ctx context.Context, r admission.Relocation, bytesPerSecond uint64) error {
			return a.Engine.Relocate(ledger.WithCall(ctx, &ledger.Call{Name: "Replace", Time: a.Now()}), r, bytesPerSecond)
		},
		Observe: a.metrics.Replaced, Log: a.Log.With("part", "replacer"), Now: a.Now,
	})
	a.Ledger.Follow(func(_, _ *ledger.View) { a.replacer.Wake() })
}

// defragmenter makes room for pods.
func (a *App) defragmenter() *mover.Defragmenter {
	return &mover.Defragmenter{
		Plan: a.Engine.PlanDefragment, Begin: a.Engine.Relocate, Cancel: a.Engine.CancelMove,
		View: a.Ledger.View, Use: a.moves.Use, Now: a.Now, Away: rpc.Away,
	}
}

// memoryIsReported returns whether agents report where the memory of containers is. A tree in memory does not show
// it, except on a simulated machine, on which no container has memory.
func memoryIsReported(c config.Config) bool {
	return c.Cgroups.Tree == config.TreeMemory && (c.Machine == "" || c.Beside == config.Kubelet)
}

// ReportMemory implements lifecycle.Memory.
func (a *App) ReportMemory(id string, r moves.Report) bool {
	found, used, news := a.moves.ReportMemory(id, r)
	if news && a.replacer != nil {
		a.replacer.Wake() // the pod may move now
	}
	view := a.Ledger.View()
	if b, ok := view.Binding(id); ok && used {
		if pod, ok := view.Pod(b.Owner.Pod); ok && pod.Move != nil {
			a.mover.Retry(pod.UID())
		}
	}
	return found
}
