package ledger

import (
	"context"
	"errors"

	"github.com/berthd/berth/managers/errdefs"
)

// ErrDetached is what the Commit of a journal returns that is not in its place any
// more, as when its file was removed or replaced: the next start would not find what
// it writes. Its class is Unavailable.
var ErrDetached error = &errdefs.Error{
	Class:   errdefs.Unavailable,
	Message: "the ledger's file is not in its place any more",
}

// Recreator is a Journal that can be made anew in its place.
type Recreator interface {
	Journal
	// Recreate puts a whole state, as generation gen, where the next start looks for
	// it: all of it or nothing, durable when it returns nil. Later commits go there.
	Recreate(ctx context.Context, gen uint64, entries []Entry) error
}

// recreate writes all that the next view holds to a journal that is not in its place,
// in a new epoch: what was in that place meanwhile may have been read by others. What
// has been acknowledged is in the view, so nothing is lost.
func (l *Ledger) recreate(ctx context.Context, next *View, cause error) error {
	j, ok := l.journal.(Recreator)
	if !ok || l.newEpoch == nil {
		return cause
	}
	whole := *next
	whole.epoch.id = l.newEpoch()
	entries, err := Dump(&whole)
	if err != nil {
		return err
	}
	if err := j.Recreate(ctx, next.generation, entries); err != nil {
		return errors.Join(cause, err)
	}
	next.epoch.id = whole.epoch.id
	return nil
}
