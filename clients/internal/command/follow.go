package command

import (
	"context"
	"errors"
	"fmt"

	"google.golang.org/grpc/codes"

	allocationv1 "github.com/berthd/berth/api/berth/allocation/v1"
	"github.com/berthd/berth/clients/berth"
)

// Watcher follows the events of berthd, over its restarts.
type Watcher struct {
	*Session
	Request *allocationv1.WatchRequest
	// Revision up to which each was called.
	Revision uint64
	// Each is called for every message.
	Each func(*allocationv1.WatchResponse) error
	// seen is set after the first message.
	seen bool
}

// Run shows events, over restarts of berthd, until the context ends.
func (w *Watcher) Run(ctx context.Context) error {
	for {
		err := w.stream(ctx)
		var failed *berth.Error
		switch errors.As(err, &failed); {
		case !w.seen || failed == nil:
			return err
		case ctx.Err() != nil:
			return nil
		case failed.Code == codes.OutOfRange:
			fmt.Fprintf(w.Err, "%s; starting with the current state\n", failed.Message)
			w.Revision = 0
		case failed.Code == codes.Unavailable:
			fmt.Fprintln(w.Err, "berthd has gone; waiting for it")
			if err := w.WaitReady(ctx); err != nil && ctx.Err() == nil {
				return err
			}
		default:
			return err
		}
	}
}

// stream shows the events of one stream; it returns what ended it.
func (w *Watcher) stream(ctx context.Context) error {
	w.Request.FromRevision = w.Revision
	messages, err := w.Allocation().Watch(ctx, w.Request)
	if err != nil {
		return err
	}
	for {
		message, err := messages.Recv()
		if err != nil {
			return err
		}
		w.Revision, w.seen = message.GetRevision(), true
		if err := w.Each(message); err != nil {
			return err
		}
	}
}
