package policy

import (
	"context"
	"time"

	"github.com/containerd/nri/pkg/api"

	"github.com/berthd/berth/managers/errdefs"
)

// Updater is a runtime that updates containers on request; package stub's is one.
type Updater interface {
	UpdateContainers([]*api.ContainerUpdate) ([]*api.ContainerUpdate, error)
}

// A runtime that has not answered a requested update for patience times its deadline for an event does not work. defaultDeadline is that
// deadline if the runtime does not tell its own.
const (
	patience        = 5
	defaultDeadline = 2 * time.Second
)

// requestUpdates requests updates of the runtime, and returns its answer, or the context's error when that ends. The call itself
// cannot be ended, and the runtime may carry out the updates later. So no other request is made meanwhile: it could overtake this one.
// Ready reports a runtime that does not answer. mu must be free.
func (p *Policy) requestUpdates(ctx context.Context, runtime Updater, updates []*api.ContainerUpdate) (failed []*api.ContainerUpdate,
	err error) {
	type answer struct {
		failed []*api.ContainerUpdate
		err    error
	}
	answered := make(chan answer, 1)
	go func() {
		failed, err := runtime.UpdateContainers(updates)
		answered <- answer{failed, err}
	}()
	deadline := defaultDeadline
	if p.Timeout != nil {
		deadline = p.Timeout()
	}
	late := time.NewTimer(patience * deadline)
	defer late.Stop()
	for {
		select {
		case a := <-answered:
			if p.stalled.Swap(nil) != nil {
				p.Log.Info("the runtime has answered the update of containers")
			}
			return a.failed, a.err
		case <-late.C:
			var stalled error = errdefs.Unavailablef("the runtime has not answered an update of %d containers for %s: containers are not moved, and those that wait for them do not start", len(updates), patience*deadline)
			p.stalled.Store(&stalled)
			p.Log.Warn("update containers failed", "error", stalled)
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// outlasting returns a context that ends callTimeout after another one.
func outlasting(ctx context.Context) (context.Context, context.CancelFunc) {
	out, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() { time.AfterFunc(callTimeout, cancel) })
	return out, func() { stop(); cancel() }
}
