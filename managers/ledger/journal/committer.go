package journal

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/ledger/check"
	"github.com/berthd/berth/managers/machine"
)

// Recorder keeps a history in the journal: it adds entries to commits. Its calls follow each other.
type Recorder interface {
	// Open reads which entries are stored. It returns false if no history is kept. After an error of class Corrupt the
	// history begins again.
	Open(ctx context.Context, s Start) (kept bool, err error)
	// Record returns what a commit writes to the history, and the number of the last entry after it.
	Record(ctx context.Context, old, next *ledger.View) (entries []Entry, last uint64, err error)
	// Committed is called after the commit of the last Record, unless it failed. lost means that the journal was created
	// again, without the entries.
	Committed(lost bool)
}

// Start holds what a Recorder begins with.
type Start struct {
	Journal Journal
	View    *ledger.View
	// Rules of the last commit and, if it is known, its machine; nil if there was none.
	Rules   *ledger.PastRules
	Machine *machine.Topology
	// Unknown is why the rules of the last commit, and so the states before it, are not known.
	Unknown error
}

// committer writes commits to a journal.
type committer struct {
	journal  Journal
	history  Recorder // nil if there is none
	newEpoch func() ledger.EpochID
	// pending are entries found wanting at the start (schema, migrated values, machine, configuration). They travel with
	// the first commit, so that a start itself writes nothing.
	pending []Entry
}

// Commit checks, records, encodes and writes.
func (c *committer) Commit(ctx context.Context, old, next *ledger.View, changes *ledger.Content) (done ledger.Committed, err error) {
	internal := func(err error) error { return errdefs.Internalf("commit generation %d: %w", next.Generation(), err) }
	if changes != nil {
		if f, ok := check.Flaw(next, changes); ok {
			return done, internal(errors.New(f.String()))
		}
	}
	var recorded []Entry
	if c.history != nil {
		if recorded, done.Recorded, err = c.history.Record(ctx, old, next); err != nil {
			return done, internal(err)
		}
	}
	done.EpochID = next.EpochID()
	var batch []Entry
	if changes != nil {
		batch, err = encodeChanges(old, next, changes, done.Recorded)
	} else {
		batch, err = encodeRules(old, next, done.Recorded)
	}
	if err != nil {
		return done, internal(err)
	}
	// Pending entries come first, because an entry of the batch is newer.
	err = c.journal.Commit(ctx, next.Generation(), slices.Concat(c.pending, batch, recorded))
	lost := errors.Is(err, ErrDetached)
	if lost {
		done.EpochID, err = c.recreate(ctx, next, done.Recorded, err)
	}
	switch {
	case err == nil:
	case errors.Is(err, ctx.Err()):
		// The journal works: its caller has left.
		return done, fmt.Errorf("commit generation %d: nothing was committed, because the call had ended: %w", next.Generation(),
			context.Cause(ctx))
	case errdefs.ClassOf(err) == errdefs.Exhausted:
		return done, ledger.BlameStored(old, changes, errdefs.Exhaustedf("commit generation %d: %w", next.Generation(), err))
	default:
		return done, errdefs.Unavailablef("commit generation %d: %w", next.Generation(), err).Coded(errdefs.LedgerUnavailable)
	}
	if c.pending = nil; c.history != nil {
		c.history.Committed(lost)
	}
	return done, nil
}

// recreate writes the whole next view to a journal that is not in its place, in a new
// epoch, because another file in that place may have been read meanwhile. The view has
// everything that was acknowledged, so nothing is lost.
func (c *committer) recreate(ctx context.Context, next *ledger.View, recorded uint64, cause error) (ledger.EpochID, error) {
	j, ok := c.journal.(Recreator)
	if !ok || c.newEpoch == nil {
		return 0, cause
	}
	id := c.newEpoch()
	entries, err := dump(next, id, recorded)
	if err != nil {
		return 0, err
	}
	// The commit may be on the disk already, in the file that is gone: it is completed also
	// for a caller that has left.
	if err := j.Recreate(context.WithoutCancel(ctx), next.Generation(), entries); err != nil {
		return 0, errors.Join(cause, err)
	}
	return id, nil
}
