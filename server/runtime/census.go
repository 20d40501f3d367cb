package runtime

import (
	"context"
	"log/slog"
	"time"

	"github.com/berthd/berth/managers/admission"
	"github.com/berthd/berth/managers/ledger"
)

// Lister tells which containers there are; *Client is the one there is.
type Lister interface {
	List(ctx context.Context) ([]Container, error)
}

// Recounter keeps the bindings of containers; *admission.Engine is the one there
// is.
type Recounter interface {
	Recount(ctx context.Context, before *ledger.View, found []admission.Found, gone func(id string) bool) (admission.Recounted, error)
}

// Census keeps the ledger's map of containers equal to the runtime's, for what no
// agent has told: containers that were there before berthd, or that ended while
// nobody looked. Its methods are called by one goroutine at a time.
type Census struct {
	Runtime Lister
	Engine  Recounter
	// View returns the current view.
	View func() *ledger.View
	// Lives tells whether a bound container that the runtime does not show has
	// processes all the same.
	Lives func(ctx context.Context, b ledger.Binding) (bool, error)
	// Every is how often the containers are counted.
	Every time.Duration
	Log   *slog.Logger

	// shown are the ids that the runtime has shown, by the last count, or must have.
	shown map[string]bool
}

// Begin counts before anybody can create containers here: an id that is bound already
// and that the runtime does not know belongs to a container that is gone, unless that
// lives. After an error Run makes up for it.
func (c *Census) Begin(ctx context.Context) error {
	c.shown = map[string]bool{}
	for b := range c.View().Bindings() {
		c.shown[b.ID] = true
	}
	return c.take(ctx)
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
		if err := c.take(ctx); err != nil && ctx.Err() == nil {
			c.Log.ErrorContext(ctx, "count the containers of the runtime", "error", err)
		}
	}
}

func (c *Census) take(ctx context.Context) error {
	before := c.View()
	listed, err := c.Runtime.List(ctx)
	if err != nil {
		return err
	}
	found, shown := make([]admission.Found, 0, len(listed)), make(map[string]bool, len(listed))
	for _, l := range listed {
		found = append(found, admission.Found{ID: l.ID, Owner: l.Owner, Exited: l.Phase == Exited})
		shown[l.ID] = true
	}
	gone := map[string]bool{}
	for b := range before.Bindings() {
		if b.Own || shown[b.ID] || !c.shown[b.ID] {
			continue
		}
		if gone[b.ID] = !c.lives(ctx, b); !gone[b.ID] {
			shown[b.ID] = true
		}
	}
	done, err := c.Engine.Recount(ctx, before, found, func(id string) bool { return gone[id] })
	if err != nil {
		return err
	}
	c.shown = shown
	for _, b := range done.Bound {
		c.Log.InfoContext(ctx, "a container of the runtime is taken over", "id", b.ID, "owner", b.Owner.String())
	}
	for _, b := range done.Dropped {
		c.Log.InfoContext(ctx, "a container of the runtime is gone", "id", b.ID, "owner", b.Owner.String())
	}
	return nil
}

// lives looks for a container that the runtime does not show any more. A runtime may
// lose its records, or not have read them yet; what runs is bound all the same.
func (c *Census) lives(ctx context.Context, b ledger.Binding) bool {
	lives, err := c.Lives(ctx, b)
	switch {
	case err != nil:
		c.Log.ErrorContext(ctx, "look for a container that the runtime does not show", "id", b.ID, "owner", b.Owner.String(), "error", err)
	case lives:
		c.Log.WarnContext(ctx, "a container runs that the runtime does not show", "id", b.ID, "owner", b.Owner.String())
	}
	return lives || err != nil
}
