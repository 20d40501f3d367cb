package ledger

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/berthd/berth/managers/errdefs"
)

// DefaultTraces is the number of newest traces that a ledger keeps if Options
// does not say otherwise, and DefaultTraceBytes how large they may be together.
const (
	DefaultTraces     = 256
	DefaultTraceBytes = 16 << 20
)

// updateAttempts bounds Update. Commits are short, so more attempts than this
// mean that the caller's change itself commits.
const updateAttempts = 100

// ErrStale is what Commit returns for a draft whose base is no longer the
// current view: plan again on the new one. Its class is Conflict.
var ErrStale error = &errdefs.Error{
	Class:   errdefs.Conflict,
	Message: "the ledger has moved since the draft was started",
}

// Options are what a ledger is opened with.
type Options struct {
	// Journal keeps the ledger's commits; the caller closes it after the last use
	// of the ledger.
	Journal Journal
	// Rules of today; Rules.Machine must be set.
	Rules Rules
	// Restore is asked for the rules that follow from a policy which was set
	// before. False drops the override, and Rules hold; so it is without Restore.
	Restore func(Override) (Rules, bool)
	// Epoch is where the revisions of a ledger begin that begins empty, in units of
	// 1024: milliseconds since 1970 keep them apart from those of ledgers before it
	// that were lost. A ledger that has begun keeps its own.
	Epoch uint64
	// EpochID is the id of a ledger that begins empty or has none: a random number.
	// A ledger that has one keeps it until RenewEpoch.
	EpochID EpochID
	// NewEpochID draws the id of another epoch. It is needed where the journal is to be
	// made anew in its place (ErrDetached); without it commits fail then.
	NewEpochID func() EpochID
	// BootID is the kernel's id of this boot; empty where nobody asks. It is written
	// with the first commit of each boot.
	BootID string
	// Traces is the number of newest traces kept beside those of the pods that
	// are here; 0 means DefaultTraces.
	Traces int
	// TraceBytes bounds the newest traces by their size as stored, all but the very
	// last one; 0 means DefaultTraceBytes.
	TraceBytes int
}

// Ledger is the current view and the way to the next one. It is safe for
// concurrent use; readers never wait for writers.
type Ledger struct {
	journal  Journal
	newEpoch func() EpochID
	current  atomic.Pointer[View]
	turn     chan struct{} // holds one: an Update that was overtaken

	mu sync.Mutex // held over a whole commit, the journal's write included
	// pending are entries found wanting at the start (schema, migrated values,
	// machine, configuration). They travel with the first commit, so that a
	// start itself writes nothing.
	pending   []Entry
	followers []func(old, new *View)
}

// View returns the current view.
func (l *Ledger) View() *View { return l.current.Load() }

// Follow calls f for every later change of the current view, one at a time and in the
// order of the generations, after the change is durable and visible and before the
// committing call returns. It is called under the lock that commits hold: it must be
// quick and must not commit. Those that follow are called in the order of their coming.
func (l *Ledger) Follow(f func(old, new *View)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.followers = append(l.followers, f)
}

// Commit makes a draft the next generation: durable first, then visible. It
// returns the view that is current afterwards. A draft that changes nothing
// commits nothing. On error nothing is changed:
//
//   - ErrStale (class Conflict): the draft's base is not the current view.
//   - class Internal: the result would break an invariant of the ledger; the
//     error names the finding. This is a planner's mistake.
//   - class Unavailable: the journal could not write. Whether a crash in the
//     middle of the write left the new or the old generation shows at the next
//     start; both are whole.
func (l *Ledger) Commit(ctx context.Context, d *Draft) (*View, error) {
	if d.Empty() {
		return l.View(), nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	old := l.View()
	if d.base != old {
		return nil, ErrStale
	}
	d.date(old)
	next := d.apply(old.generation + 1)
	next.facts.sums.known()
	if f, ok := d.flaw(next); ok {
		return nil, errdefs.Internalf("commit generation %d: %s", next.generation, f)
	}
	batch, err := encodeDraft(old, next, d)
	if err != nil {
		return nil, errdefs.Internalf("commit generation %d: %w", next.generation, err)
	}
	next.weighTraces(old.traces.next, batch)
	if err := l.write(ctx, old, next, batch); err != nil {
		return nil, err
	}
	return next, nil
}

// weighTraces notes the sizes of the traces that a batch brings: those of a view, which
// nobody else has yet, from a number on, in their order.
func (v *View) weighTraces(first uint64, batch []Entry) {
	added := v.traces.kept
	for number := range added.From(first) {
		at := slices.IndexFunc(batch, func(e Entry) bool { return e.Bucket == BucketTraces && e.Value != nil })
		v.traces.weigh(number, len(batch[at].Value))
		batch = batch[at+1:]
	}
}

// date notes in records which generation brought their pods and which changed them.
func (d *Draft) date(old *View) {
	for uid, p := range d.pods {
		if p == nil {
			continue
		}
		p.AdmittedGeneration, p.ChangedGeneration = old.generation+1, old.generation+1
		if was, ok := old.pods.Get(uid); ok {
			p.AdmittedGeneration = was.AdmittedGeneration
		}
	}
}

// Update commits what change does to a fresh draft, and does so again on a newer
// view as long as another commit came in between. It returns the error of change
// as it is, those of Commit, that of ctx if it ended while others had their turn,
// and one of class Conflict if it was overtaken a hundred times.
func (l *Ledger) Update(ctx context.Context, change func(*Draft) error) (*View, error) {
	v, err := l.try(ctx, change)
	if !errors.Is(err, ErrStale) {
		return v, err
	}
	// Of many that were overtaken one succeeds with every commit, so without turns
	// the last would be overtaken by all.
	select {
	case l.turn <- struct{}{}:
		defer func() { <-l.turn }()
	case <-ctx.Done():
		return nil, fmt.Errorf("update ledger: wait for other updates: %w", context.Cause(ctx))
	}
	for range updateAttempts {
		if v, err = l.try(ctx, change); !errors.Is(err, ErrStale) {
			return v, err
		}
	}
	return nil, errdefs.Conflictf("update ledger: overtaken %d times: %w", updateAttempts, ErrStale)
}

// try commits what change does to a draft on the current view.
func (l *Ledger) try(ctx context.Context, change func(*Draft) error) (*View, error) {
	d := NewDraft(l.View())
	if err := change(d); err != nil {
		return nil, err
	}
	return l.Commit(ctx, d)
}

// write makes next durable and then current. The lock is held.
func (l *Ledger) write(ctx context.Context, old, next *View, batch []Entry) error {
	// What is pending comes first: an entry of the batch is newer.
	err := l.journal.Commit(ctx, next.generation, append(l.pending[:len(l.pending):len(l.pending)], batch...))
	if errors.Is(err, ErrDetached) {
		err = l.recreate(ctx, next, err)
	}
	if err != nil {
		return errdefs.Unavailablef("commit generation %d: %w", next.generation, err).Coded(errdefs.LedgerUnavailable)
	}
	l.pending = nil
	l.current.Store(next)
	for _, f := range l.followers {
		f(old, next)
	}
	return nil
}
