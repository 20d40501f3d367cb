package ledger

import (
	"context"

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
