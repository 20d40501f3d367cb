package mover

import (
	"context"
	"log/slog"
	"time"

	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/live"
	"github.com/berthd/berth/managers/machine"
)

// The pauses between two turns of a Replacer on the same machine: the shortest one, and the factor by which
// a pause is longer than the turn before it.
const (
	replacePause = time.Second
	pauseFactor  = 20
)

// ReplacerConfig configures a Replacer.
type ReplacerConfig struct {
	View func() *ledger.View
	// Plan and Begin are those of live.Engine: PlanReplacement and Relocate.
	Plan  func(context.Context, live.Loss) (live.Relocation, error)
	Begin func(ctx context.Context, r live.Relocation, bytesPerSecond uint64) error
	// Observe is called after each begun move, and for each loss that is only reported, once; nil for nothing.
	Observe func(l live.Loss, err error)
	Log     *slog.Logger
	Now     func() time.Time
}

// Replacer begins moves of pods that have lost CPUs or memory because the machine has changed. A pod that cannot be
// served stays as it is, and is tried again after commits, which may have freed something, and after changes
// of the machine. One that another operation changes is tried again soon, and holds up no other pod. It keeps nothing: losses
// follow from the ledger.
type Replacer struct {
	ReplacerConfig
	wake chan struct{}
	// machine is that of the last turn, and next the earliest time of another one on the same machine.
	machine *machine.Topology
	next    time.Time
	// kept has what was logged last about pods, by uid.
	kept map[string]kept
}

// kept is why a pod keeps what it has.
type kept struct {
	loss  live.Loss
	class errdefs.Class
}

// NewReplacer returns a replacer. It starts nothing.
func NewReplacer(cfg ReplacerConfig) *Replacer {
	return &Replacer{ReplacerConfig: cfg, wake: make(chan struct{}, 1)}
}

// Wake requests a look at the ledger. It never blocks.
func (r *Replacer) Wake() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// Run replaces what pods lose until ctx ends.
func (r *Replacer) Run(ctx context.Context) error {
	for {
		var again <-chan time.Time
		if wait := r.Turn(ctx); wait > 0 {
			again = time.After(wait)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-r.wake:
		case <-again:
		}
	}
}

// Turn begins all moves that are possible now. It returns the time until another turn is due; 0 if there is none
// before the next commit.
func (r *Replacer) Turn(ctx context.Context) (wait time.Duration) {
	view, began := r.View(), r.Now()
	if view.Machine() == r.machine && began.Before(r.next) {
		return r.next.Sub(began)
	}
	r.machine = view.Machine()
	tried, now := map[string]bool{}, map[string]kept{}
	var busy, failed bool
	losses := live.Losses(view)
	for len(losses) > 0 && ctx.Err() == nil {
		l := losses[0]
		if losses = losses[1:]; tried[l.UID] {
			continue
		}
		tried[l.UID] = true
		if pod, ok := r.View().Pod(l.UID); !ok || pod.Move != nil {
			continue // the end of its move is a commit
		}
		err := r.replace(ctx, l)
		if err == nil {
			losses = live.Losses(r.View()) // a move may be enough for the memory of several pods
			continue
		}
		if ctx.Err() != nil {
			break
		}
		switch errdefs.ClassOf(err) {
		case errdefs.NotFound:
		case errdefs.Conflict:
			r.Log.DebugContext(ctx, "a pod has changed while its move was planned", "uid", l.UID, "reason", l.String(), "error", err)
			busy = true
		case errdefs.Refused:
			r.report(ctx, l, "a pod has lost CPUs or memory, and keeps the rest: berthd tries again after other changes", err)
			now[l.UID] = kept{l, errdefs.ClassOf(err)}
		default:
			r.report(ctx, l, "a pod has lost CPUs or memory, and could not be moved yet: berthd tries again", err)
			now[l.UID] = kept{l, errdefs.ClassOf(err)}
			busy, failed = busy || errdefs.ClassOf(err) == errdefs.Unavailable, true
		}
	}
	r.kept = now
	pause := max(replacePause, pauseFactor*r.Now().Sub(began))
	r.next = r.Now().Add(pause)
	switch {
	case busy:
		return pause
	case failed:
		return max(pause, lastPause)
	}
	return 0
}

func (r *Replacer) replace(ctx context.Context, l live.Loss) error {
	plan, err := r.Plan(ctx, l)
	if err != nil {
		return err
	}
	if err := r.Begin(ctx, plan, 0); err != nil {
		return err
	}
	r.observe(l, nil)
	c := plan.Plan.Cost
	r.Log.WarnContext(ctx, "a pod moves, because the machine has changed", "uid", l.UID, "reason", l.String(),
		"containers", c.Containers, "cpus", c.CPUs, "bytes", c.Bytes)
	return nil
}

// report logs why a pod keeps what it has, once for each loss and class of error.
func (r *Replacer) report(ctx context.Context, l live.Loss, what string, err error) {
	if r.kept[l.UID] == (kept{l, errdefs.ClassOf(err)}) {
		r.Log.DebugContext(ctx, "a pod still has what the machine lacks", "uid", l.UID, "reason", l.String(), "error", err)
		return
	}
	r.observe(l, err)
	r.Log.WarnContext(ctx, what, "uid", l.UID, "reason", l.String(), "error", err)
}

func (r *Replacer) observe(l live.Loss, err error) {
	if r.Observe != nil {
		r.Observe(l, err)
	}
}
