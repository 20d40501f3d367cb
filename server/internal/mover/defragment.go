package mover

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/berthd/berth/managers/admission"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/live"
	"github.com/berthd/berth/managers/numa"
)

// How often the ledger is compared with the end of a move, and the progress is read. The factor is by how much a pause
// between two looks at the progress is longer than the look before it: to read where huge pages are takes long for
// processes with much memory.
const (
	progressEvery  = 100 * time.Millisecond
	progressFactor = 10
)

// Defragmenter makes room for pods by moves of others: one after the other, each planned on what
// there is then. It keeps nothing: after a crash, the moves of the ledger end, and a new request plans the rest.
type Defragmenter struct {
	// Plan, Begin and Cancel are those of live.Engine: PlanDefragment, Relocate and CancelMove.
	Plan   func(context.Context, live.DefragmentRequest) (live.Defragmentation, error)
	Begin  func(ctx context.Context, r live.Relocation, bytesPerSecond uint64) error
	Cancel func(ctx context.Context, uid string) error
	View   func() *ledger.View
	// Use reads the usage of a pod's containers; nil if it cannot be read.
	Use func(ctx context.Context, view *ledger.View, uid string) live.PodUse
	Now func() time.Time
	// Away announces that a call waits, until back is called; nil for nothing.
	Away func(ctx context.Context) (back func())

	busy sync.Mutex
}

// Defragment makes room for a pod, and calls tell for each event. After an error of tell, or when ctx
// ends, the pod that moves returns to what it had. Errors are those of Plan and of tell, and of class Unavailable
// while another defragmentation is carried out.
func (d *Defragmenter) Defragment(ctx context.Context, req live.DefragmentRequest, bytesPerSecond uint64, dryRun bool,
	tell func(live.DefragmentEvent) error) error {
	if !dryRun {
		if !d.busy.TryLock() {
			return errdefs.Unavailablef("another defragmentation is carried out: try again when it has ended")
		}
		defer d.busy.Unlock()
	}
	plan, err := d.Plan(ctx, req)
	if err != nil {
		return err
	}
	if err := tell(live.DefragmentEvent{Plan: &plan}); err != nil || dryRun {
		return err
	}
	moved := 0
	for ; len(plan.Moves) > 0 && moved < req.MaxMoves; moved++ {
		next := plan.Moves[0]
		if err := d.move(ctx, next, bytesPerSecond, tell); err != nil {
			class := errdefs.ClassOf(err)
			// Unavailable: another operation on the pod is in progress.
			if class == errdefs.Refused || class == errdefs.Conflict || class == errdefs.NotFound || class == errdefs.Unavailable &&
				ctx.Err() == nil {
				return tell(live.DefragmentEvent{Result: &live.DefragmentResult{Moved: moved, Why: err.Error()}})
			}
			return err
		}
		rest := req
		rest.Stay = append(rest.Stay[:len(rest.Stay):len(rest.Stay)], next.UID)
		rest.MaxMoves = max(1, req.MaxMoves-moved-1)
		req.Stay = rest.Stay
		if plan, err = d.Plan(ctx, rest); err != nil {
			return err
		}
	}
	result := &live.DefragmentResult{Moved: moved, Fits: plan.Outcome == admission.Admitted, Why: plan.Why}
	if !result.Fits && result.Why == "" {
		result.Why = "other pods have taken the room meanwhile: " + plan.Message
	}
	return tell(live.DefragmentEvent{Result: result})
}

// move carries out one move.
func (d *Defragmenter) move(ctx context.Context, r live.Relocation, bytesPerSecond uint64,
	tell func(live.DefragmentEvent) error) (err error) {
	began := d.Now()
	before := d.use(ctx, r.UID)
	if err := d.Begin(ctx, r, bytesPerSecond); err != nil {
		return err
	}
	defer func() {
		if err == nil {
			return
		}
		// The caller waits no more, so the move is undone without it.
		if undone := d.Cancel(context.WithoutCancel(ctx), r.UID); undone != nil {
			err = fmt.Errorf("%w; and the move of pod %s continues: %w", err, r.UID, undone)
		}
	}()
	if d.Away != nil {
		defer d.Away(ctx)()
	}
	tick := time.NewTicker(progressEvery)
	defer tick.Stop()
	var last live.MoveProgress
	var due time.Time
	for {
		pod, ok := d.View().Pod(r.UID)
		switch {
		case !ok:
			return errdefs.NotFoundf("pod %s was removed while it moved", r.UID)
		case pod.Move == nil:
			return tell(live.DefragmentEvent{Moved: &live.PodMoved{
				UID: r.UID, Took: d.Now().Sub(began), Before: before, After: d.use(ctx, r.UID),
			}})
		case pod.Move.Canceled:
			return errdefs.Conflictf("the move of pod %s was canceled", r.UID)
		}
		if looks := d.Now(); !looks.Before(due) {
			now := d.progress(ctx, pod)
			due = d.Now().Add(progressFactor * d.Now().Sub(looks))
			if now != last {
				last = now
				if err := tell(live.DefragmentEvent{Progress: &now}); err != nil {
					return err
				}
			}
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
	}
}

func (d *Defragmenter) use(ctx context.Context, uid string) live.PodUse {
	if d.Use == nil {
		return live.PodUse{}
	}
	return d.Use(ctx, d.View(), uid)
}

// progress compares where the memory of a moving pod is with where it goes.
func (d *Defragmenter) progress(ctx context.Context, pod *ledger.Pod) live.MoveProgress {
	out := live.MoveProgress{UID: pod.UID()}
	var to numa.Mask
	for i := range pod.Move.To {
		for _, b := range pod.Move.To[i].Memory {
			to = to.Union(b.Nodes)
		}
	}
	for id, bytes := range d.use(ctx, pod.UID()).NodeBytes {
		if out.AllBytes += bytes; to.Contains(id) {
			out.ArrivedBytes += bytes
		}
	}
	return out
}
