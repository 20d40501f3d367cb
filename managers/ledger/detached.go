package ledger

import (
	"context"
	"errors"

	"github.com/berthd/berth/managers/errdefs"
)

// ErrDetached is returned by Commit of a journal that is no longer in its place, for
// example after its file was removed or replaced. The next start would not find its
// commits. Its class is Unavailable.
var ErrDetached error = &errdefs.Error{
	Class:   errdefs.Unavailable,
	Message: "the ledger's file is not in its place any more",
}

// Recreator is a Journal that can be created again in its place.
type Recreator interface {
	Journal
	// Recreate writes a whole state, as generation gen, to the place where the next start
	// reads it: all or nothing, durable when it returns nil. Later commits go there.
	Recreate(ctx context.Context, gen uint64, entries []Entry) error
}

// recreate writes the whole next view to a journal that is not in its place, in a new
// epoch, because another file in that place may have been read meanwhile. The view has
// everything that was acknowledged, so nothing is lost.
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
	// The commit may be on the disk already, in the file that is gone: it is completed also
	// for a caller that has left.
	if err := j.Recreate(context.WithoutCancel(ctx), next.generation, entries); err != nil {
		return errors.Join(cause, err)
	}
	next.epoch.id = whole.epoch.id
	return nil
}
