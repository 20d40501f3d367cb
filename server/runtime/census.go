package runtime

import (
	"context"
	"log/slog"
	"time"

	"github.com/berthd/berth/managers/admission"
)

// Recounter keeps the bindings of containers; *admission.Engine is the one there
// is.
type Recounter interface {
	Recount(ctx context.Context, found []admission.Found, gone func(id string) bool) (admission.Recounted, error)
}

// Census keeps the ledger's map of containers equal to the runtime's, for what no
// agent has told: containers that were there before berthd, or that ended while
// nobody looked. Its methods are called by one goroutine at a time.
type Census struct {
	Runtime *Client
	Engine  Recounter
	// Every is how often the containers are counted.
	Every time.Duration
	Log   *slog.Logger

	seen map[string]bool // by the last count
}

// Begin counts before anybody can create containers here: an id that the runtime
// does not know belongs to a container that is gone.
func (c *Census) Begin(ctx context.Context) error {
	return c.take(ctx, func(string) bool { return true })
}

// Run counts again and again until ctx ends. An id that the runtime has never shown
// may belong to a container that it is about to make, and stays.
func (c *Census) Run(ctx context.Context) error {
	tick := time.NewTicker(c.Every)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
		seen := c.seen
		if err := c.take(ctx, func(id string) bool { return seen[id] }); err != nil && ctx.Err() == nil {
			c.Log.ErrorContext(ctx, "count the containers of the runtime", "error", err)
		}
	}
}

func (c *Census) take(ctx context.Context, gone func(string) bool) error {
	listed, err := c.Runtime.List(ctx)
	if err != nil {
		return err
	}
	found, seen := make([]admission.Found, 0, len(listed)), make(map[string]bool, len(listed))
	for _, l := range listed {
		found = append(found, admission.Found{ID: l.ID, Owner: l.Owner, Exited: l.Phase == Exited})
		seen[l.ID] = true
	}
	done, err := c.Engine.Recount(ctx, found, gone)
	if err != nil {
		return err
	}
	c.seen = seen
	for _, b := range done.Bound {
		c.Log.InfoContext(ctx, "a container of the runtime is taken over", "id", b.ID, "owner", b.Owner.String())
	}
	for _, b := range done.Dropped {
		c.Log.InfoContext(ctx, "a container of the runtime is gone", "id", b.ID, "owner", b.Owner.String())
	}
	return nil
}
