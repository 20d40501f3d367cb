package reconcile

import (
	"context"
	"errors"
	"testing"

	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/server/internal/runtime"
)

// listCounter is a runtime that counts its lists, and may refuse them.
type listCounter struct {
	noRuntime
	lists int
	fail  error
}

func (c *listCounter) List(context.Context, ...string) ([]runtime.Container, error) {
	c.lists++
	return nil, c.fail
}

// TestListOncePerTurn: a turn lists once what a list of the turn covers. A list that fails is not kept.
func TestListOncePerTurn(t *testing.T) {
	t.Parallel()
	parts, r := newParts(t), &listCounter{}
	parts.cfg.Runtime, parts.cfg.Now = r, parts.tracker.now
	view := viewOf()
	parts.cfg.View = func() *ledger.View { return view }
	c := &calls{cfg: parts.cfg, tracker: parts.tracker, mu: make(gate, 1), wake: func() {}}
	t.Cleanup(func() { c.begin(); c.running.Wait() })
	list := func(what string, want int, ids []string, again bool) {
		t.Helper()
		if _, err := c.list(t.Context(), ids, again); err != nil || r.lists != want {
			t.Errorf("%s: %d lists, want %d: %v", what, r.lists, want, err)
		}
	}
	list("some", 1, []string{"a", "b"}, false)
	list("one of them", 1, []string{"b"}, false)
	list("another", 2, []string{"c"}, false)
	list("all", 3, nil, false)
	list("what all contain", 3, []string{"c"}, false)
	list("all again", 4, nil, true)
	c.begin()
	r.fail = errdefs.Unavailablef("nobody there")
	if _, err := c.list(t.Context(), nil, false); !errors.Is(err, errAway) || !c.away.Load() || c.current != nil {
		t.Errorf("without the runtime: %v, away %t", err, c.away.Load())
	}
	r.fail = nil
	if list("it is back", 6, nil, false); c.away.Load() {
		t.Error("a runtime that answers is away")
	}
}
