package app

import (
	"context"
	"os"

	"github.com/berthd/berth/api/config"
	"github.com/berthd/berth/managers/admission"
	"github.com/berthd/berth/managers/cgroup"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/server/internal/host/numamaps"
	"github.com/berthd/berth/server/internal/mover"
	"github.com/berthd/berth/server/internal/moves"
	"github.com/berthd/berth/server/internal/rpc"
)

// newMover constructs what carries out the moves of the ledger.
func newMover(g *given, l *ledger.Ledger, engine *admission.Engine) *mover.Mover {
	m := mover.New(mover.Config{
		View: l.View, Advance: engine.Advance, Observe: g.metrics.Moved,
		Log: g.Log.With("part", "mover"), Now: g.Now,
	})
	l.Follow(func(old, new *ledger.View) {
		for _, c := range ledger.Changes(old, new) {
			if c.Kind == ledger.PodChanged && c.Pod.Move != nil {
				m.Wake()
				return
			}
		}
	})
	return m
}

// newReplacer constructs what moves pods that lose something when the machine changes.
func newReplacer(g *given, l *ledger.Ledger, engine *admission.Engine) *mover.Replacer {
	r := mover.NewReplacer(mover.ReplacerConfig{
		View: l.View, Plan: engine.PlanReplacement,
		Begin: func(ctx context.Context, to admission.Relocation, bytesPerSecond uint64) error {
			return engine.Relocate(ledger.WithCall(ctx, &ledger.Call{Name: "Replace", Time: g.Now()}), to, bytesPerSecond)
		},
		Observe: g.metrics.Replaced, Log: g.Log.With("part", "replacer"), Now: g.Now,
	})
	l.Follow(func(_, _ *ledger.View) { r.Wake() })
	return r
}

// defragmenter makes room for pods.
func defragmenter(g *given, d *deciding) *mover.Defragmenter {
	return &mover.Defragmenter{
		Plan: d.engine.PlanDefragment, Begin: d.engine.Relocate, Cancel: d.engine.CancelMove,
		View: d.ledger.View, Use: d.moves.Use, Now: g.Now, Away: rpc.Away,
	}
}

// memoryIsReported returns whether agents report where the memory of containers is. A tree in memory does not show
// it, except on a simulated machine, on which no container has memory.
func memoryIsReported(c config.Config) bool {
	return !c.KernelCgroups() && (c.Machine == "" || c.Beside == config.Kubelet)
}

// ReportMemory implements lifecycle.Memory.
func (d *deciding) ReportMemory(id string, r moves.Report) bool {
	found, used, news := d.moves.ReportMemory(id, r)
	if news && d.replacer != nil {
		d.replacer.Wake() // the pod may move now
	}
	view := d.ledger.View()
	if b, ok := view.Binding(id); ok && used {
		if pod, ok := view.Pod(b.Owner.Pod); ok && pod.Move != nil {
			d.mover.Retry(pod.UID())
		}
	}
	return found
}

// hugePages has what moves of running containers with huge pages need.
func hugePages(c config.Config, conn *os.File) (out moves.HugePages) {
	out.Move = c.Moves.HugePages
	if conn != nil {
		reader := numamaps.NewClient(conn)
		out.Check, out.Read = reader.Check, reader.Read
	} else if out.Move && c.KernelCgroups() {
		out.Move = false // a berthd that main has not started
	}
	if c.Machine == "" {
		out.Free = freeHugeBytes
	}
	return out
}

// freeHugeBytes implements moves.HugePages.
func freeHugeBytes() (cgroup.HugeBytes, error) {
	nodes, err := freeHugePages()
	out := cgroup.HugeBytes{}
	for _, n := range nodes {
		for _, p := range n.HugePages {
			out.Add(cgroup.HugeBytes{int64(p.SizeKiB << 10): {n.ID: p.SizeKiB << 10 * p.Count}})
		}
	}
	return out, err
}
