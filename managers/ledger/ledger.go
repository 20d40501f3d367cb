package ledger

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/errdefs"
)

// DefaultTraces and DefaultTraceBytes are the default limits of the newest traces, by
// number and total size.
const (
	DefaultTraces     = 256
	DefaultTraceBytes = 16 << 20
)

// updateAttempts limits Update. Commits are short, so more attempts mean that the caller's
// change itself commits.
const updateAttempts = 100

// ErrStale is returned by Commit for a draft whose base is no longer the current view; the
// caller has to plan again. Its class is Conflict.
var ErrStale error = &errdefs.Error{
	Class:   errdefs.Conflict,
	Message: "the ledger has moved since the draft was started",
}

// Options are what a ledger is opened with.
type Options struct {
	// Journal stores the ledger's commits; the caller closes it after the last use of the
	// ledger.
	Journal Journal
	// Rules are the current rules; Rules.Machine must be set.
	Rules Rules
	// Restore returns the rules of a policy that was set before. If it returns false or is
	// nil, the override is dropped and Rules apply.
	Restore func(Override) (Rules, bool)
	// Keep returns the rules with the CPUs that were reserved at the last commit of this boot
	// under the same configuration, and the override in effect. It may be nil, and return false
	// to keep Rules.
	Keep func(reserved cpuset.Set, o *Override) (Rules, bool)
	// Epoch is the base of the revisions of an empty ledger, in units of 1024. Milliseconds
	// since 1970 keep them above those of earlier, lost ledgers. An existing ledger keeps
	// its own base.
	Epoch uint64
	// EpochID is the id of an empty ledger or one without an id: a random number. An
	// existing id is kept until RenewEpoch.
	EpochID EpochID
	// NewEpochID returns a random id for another epoch. It is needed if the journal has to
	// be created again (ErrDetached); without it commits fail then.
	NewEpochID func() EpochID
	// BootID is the kernel's id of this boot; empty if unused. It is written with the first
	// commit of each boot.
	BootID string
	// Traces is the number of newest traces to keep, in addition to those of current pods;
	// 0 means DefaultTraces.
	Traces int
	// TraceBytes limits the stored size of the newest traces, except the last one; 0 means
	// DefaultTraceBytes.
	TraceBytes int
	// History limits the history; without Entries, or with a journal that is no HistoryStore,
	// there is none. Now is the clock of its entries.
	History HistoryLimits
	Now     func() time.Time
}

// Ledger has the current view and commits drafts. It is safe for concurrent use; readers
// never wait for writers.
type Ledger struct {
	journal  Journal
	newEpoch func() EpochID
	current  atomic.Pointer[View]
	turn     chan struct{} // capacity 1: held by an Update that was overtaken

	mu sync.Mutex // held over a whole commit, the journal's write included
	// pending are entries found wanting at the start (schema, migrated values,
	// machine, configuration). They travel with the first commit, so that a
	// start itself writes nothing.
	pending   []Entry
	followers []func(old, new *View)

	history history
}

// View returns the current view.
func (l *Ledger) View() *View { return l.current.Load() }

// AwaitCommits returns the view after the commits that were under way. While a commit hangs it
// does not return.
func (l *Ledger) AwaitCommits() *View {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.current.Load()
}

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
//   - class Internal: the result would violate an invariant of the ledger; the error names
//     the finding. This is a bug of the planner.
//   - class Exhausted: the journal would have become larger than a start accepts. If most of the
//     draft is what a provider has stored with claims, the error names it.
//   - class Unavailable: the journal could not write. After a crash during the write, the
//     next start finds either the old or the new generation; both are complete.
//   - that of ctx, if it had ended before the write.
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
	next.facts.settle()
	if f, ok := d.flaw(next); ok {
		return nil, errdefs.Internalf("commit generation %d: %s", next.generation, f)
	}
	record, err := l.record(ctx, old, next)
	if err != nil {
		return nil, errdefs.Internalf("commit generation %d: %w", next.generation, err)
	}
	batch, err := encodeDraft(old, next, d)
	if err != nil {
		return nil, errdefs.Internalf("commit generation %d: %w", next.generation, err)
	}
	next.weighTraces(old.traces.next, batch)
	if err := l.write(ctx, old, next, batch, record); err != nil {
		return nil, d.blame(err)
	}
	return next, nil
}

// weighTraces sets the sizes of a batch's traces in a view that is not shared yet: the
// traces from a number on, in order.
func (v *View) weighTraces(first uint64, batch []Entry) {
	added := v.traces.kept
	for number := range added.From(first) {
		at := slices.IndexFunc(batch, func(e Entry) bool { return e.Bucket == BucketTraces && e.Value != nil })
		v.traces.weigh(number, len(batch[at].Value))
		batch = batch[at+1:]
	}
}

// date sets the generations of admission and change in the draft's records.
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

// Update commits the changes that change makes to a new draft. If another commit comes in
// between, it repeats that on the newer view. Errors are those of change, those of Commit,
// that of ctx if it ended during a wait, and one of class Conflict after updateAttempts
// attempts.
func (l *Ledger) Update(ctx context.Context, change func(*Draft) error) (*View, error) {
	v, err := l.try(ctx, change)
	if !errors.Is(err, ErrStale) {
		return v, err
	}
	// Each commit overtakes all waiting updates. Without turns, the last one could be
	// overtaken by all others.
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

// try commits the changes of change to a draft on the current view.
func (l *Ledger) try(ctx context.Context, change func(*Draft) error) (*View, error) {
	d := NewDraft(l.View())
	if err := change(d); err != nil {
		return nil, err
	}
	return l.Commit(ctx, d)
}

// write makes next durable and then current. mu must be held.
func (l *Ledger) write(ctx context.Context, old, next *View, batch []Entry, record recording) error {
	// Pending entries come first, because an entry of the batch is newer.
	err := l.journal.Commit(ctx, next.generation, slices.Concat(l.pending, batch, record.entries))
	if errors.Is(err, ErrDetached) {
		if err = l.recreate(ctx, next, err); err == nil {
			l.history.lost(record)
		}
	} else if err == nil {
		l.history.committed(record)
	}
	switch {
	case err == nil:
	case errors.Is(err, ctx.Err()):
		// The journal works: its caller has left.
		return fmt.Errorf("commit generation %d: nothing was committed, because the call had ended: %w", next.generation,
			context.Cause(ctx))
	case errdefs.ClassOf(err) == errdefs.Exhausted:
		return errdefs.Exhaustedf("commit generation %d: %w", next.generation, err)
	default:
		return errdefs.Unavailablef("commit generation %d: %w", next.generation, err).Coded(errdefs.LedgerUnavailable)
	}
	l.pending = nil
	l.current.Store(next)
	for _, f := range l.followers {
		f(old, next)
	}
	return nil
}
