package rpc

import (
	"context"
	"fmt"

	"github.com/berthd/berth/api/access"
	"github.com/berthd/berth/managers/errdefs"
)

// A turn is the right to run. One call of a user other than root has it at a time, from
// when its message is read until it waits for something or ends: however many calls a user
// makes, they take one processor, and there is one of them between root's call and the
// next processor. A call that has waited does not get its turn back: what it does then is
// little, or it is under the admission lock, or it has a slot. So nobody who has a turn
// waits for somebody who wants one.

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

// leaveTurn is endTurn for who holds mu.
func (t *ticket) leaveTurn() {
	if t.turn {
		t.turn = false
		t.load.turn.leave(1)
	}
}

// Turn waits until a call that had to wait may run again, if it does not run: for streams,
// whose handlers go on for long. End gives that up, as EndTurn and the next message that is
// sent do. A call of root's may run at any time.
func Turn(ctx context.Context) (end func(), err error) {
	t, ok := ctx.Value(ticketKey{}).(*ticket)
	if !ok {
		return func() {}, nil
	}
	return t.endTurn, t.takeTurn(ctx)
}

// Slot waits for a slot, if the call has none: for the costly part of a call that is not
// costly otherwise, or of one that was paused. Leave gives it back. A call of root's needs none.
func Slot(ctx context.Context) (leave func(), err error) {
	t, ok := ctx.Value(ticketKey{}).(*ticket)
	if !ok {
		return func() {}, nil
	}
	return t.takeSlot(ctx)
}

// EndTurn says that a call is about to wait for something other than a processor. Others
// have its slot from then on.
func EndTurn(ctx context.Context) {
	if t, ok := ctx.Value(ticketKey{}).(*ticket); ok {
		t.endTurn()
		t.pauseSlot()
	}
}

// Away says that a call waits for another process until back is called. Back waits for a slot
// if the call had one, unless the call's time is over.
func Away(ctx context.Context) (back func()) {
	t, ok := ctx.Value(ticketKey{}).(*ticket)
	if !ok {
		return func() {}
	}
	had := t.slotState() == hasSlot
	EndTurn(ctx)
	return func() {
		if had {
			_ = t.resumeSlot(ctx) // who called it sees that the time is over
		}
	}
}

// UserOf names the user that a call counts as: one number, the members of a group, or those
// without a role. It is empty for root and for berthd's own user, and outside of calls.
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

// keepsTurn reports whether a handler runs in the turn of its call: those that only read,
// and the agent's, which tell where they wait. What others do is waiting, for the kernel,
// for plugins, for providers.
func keepsTurn(fullMethod string) bool {
	role, ok := access.RoleOf(fullMethod)
	return !ok || role == access.Read || role == access.Agent
}
