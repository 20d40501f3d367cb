package rpc

import (
	"context"
	"fmt"

	"github.com/berthd/berth/api/access"
	"github.com/berthd/berth/managers/errdefs"
)

// A turn is the right to run. One call of a user other than root has it, from reading its message
// until it waits for something or ends. A user's calls therefore use only one processor, and
// delay root's call by at most one of them. A call that has waited does not get its turn back.
// Its remaining work is small, or under the admission lock, or in a slot. A call with a turn
// never waits for a call without one.

// takeTurn waits for the turn of the call's user.
func (t *ticket) takeTurn(ctx context.Context) error {
	if err := t.awaitReading(ctx); err != nil {
		return err
	}
	if t.hasTurn() {
		return nil
	}
	if err := t.load.turn.enter(ctx, 1); err != nil {
		err := errdefs.Exhaustedf("calls of %s come faster than they are carried out, one at a time", t.who)
		err.RetryAfter = retryAfter
		return err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.turn = true; t.over {
		t.leaveTurn()
	}
	return nil
}

func (t *ticket) hasTurn() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.turn
}

// endTurn lets the next call of the user run. It may be called again.
func (t *ticket) endTurn() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.leaveTurn()
}

// leaveTurn is endTurn for callers that hold mu.
func (t *ticket) leaveTurn() {
	if t.turn {
		t.turn = false
		t.load.turn.leave(1)
	}
}

// Turn waits until a call that has waited may run again; it is for the handlers of long streams.
// End returns the turn, and so do EndTurn and sending the next message. A call of root may always
// run.
func Turn(ctx context.Context) (end func(), err error) {
	t, ok := ctx.Value(ticketKey{}).(*ticket)
	if !ok {
		return func() {}, nil
	}
	return t.endTurn, t.takeTurn(ctx)
}

// Slot waits for a slot, if the call has none: for the costly part of another call, or of a
// paused one. Leave returns it. A call of root needs none.
func Slot(ctx context.Context) (leave func(), err error) {
	t, ok := ctx.Value(ticketKey{}).(*ticket)
	if !ok {
		return func() {}, nil
	}
	return t.takeSlot(ctx)
}

// EndTurn announces that a call will wait for something other than a processor. Other calls can
// have its slot from then on.
func EndTurn(ctx context.Context) {
	if t, ok := ctx.Value(ticketKey{}).(*ticket); ok {
		t.endTurn()
		t.pauseSlot()
	}
}

// Away announces that a call waits for another process until back is called. Back waits for a
// slot if the call had one, unless the call's time is over.
func Away(ctx context.Context) (back func()) {
	t, ok := ctx.Value(ticketKey{}).(*ticket)
	if !ok {
		return func() {}
	}
	had := t.slotState() == hasSlot
	EndTurn(ctx)
	return func() {
		if had {
			_ = t.resumeSlot(ctx) // the caller checks whether the time is over
		}
	}
}

// UserOf names the user that a call counts as: one uid, the members of a group, or users without
// a role. It is empty for root and berthd's own user, and outside of calls.
func UserOf(ctx context.Context) string {
	t, ok := ctx.Value(ticketKey{}).(*ticket)
	if !ok {
		return ""
	}
	switch t.user.kind {
	case byGID:
		return fmt.Sprint("group ", t.user.id)
	case withoutRole:
		return "users without a role"
	}
	return fmt.Sprint("user ", t.user.id)
}

// keepsTurn reports whether a handler runs in the turn of its call: methods that only read, and
// the agent's, which announce their waits. Other methods mainly wait, for the kernel, for
// plugins, or for providers.
func keepsTurn(fullMethod string) bool {
	role, ok := access.RoleOf(fullMethod)
	return !ok || role == access.Read || role == access.Agent
}
