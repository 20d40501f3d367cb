package ledger

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/berthd/berth/managers/errdefs"
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

// Committer makes commits durable. Its calls follow each other.
type Committer interface {
	// Commit makes next durable, which follows old. changes are those of a draft; nil means that only the rules, the
	// override or the epoch differ. The errors are those of Ledger.Commit, without ErrStale.
	Commit(ctx context.Context, old, next *View, changes *Content) (Committed, error)
}

// Committed holds what a commit gave a view in addition.
type Committed struct {
	// Recorded is the number of the last entry of the history.
	Recorded uint64
	// EpochID is another one than the view's if everything was written to a new file.
	EpochID EpochID
}

// Ledger has the current view and commits drafts. It is safe for concurrent use; readers
// never wait for writers.
type Ledger struct {
	committer Committer
	current   atomic.Pointer[View]
	turn      chan struct{} // capacity 1: held by an Update that was overtaken

	mu        sync.Mutex // held over a whole commit, the committer's call included
	followers []func(old, new *View)
}

// New returns a ledger with a current view.
func New(view *View, c Committer) *Ledger {
	l := &Ledger{committer: c, turn: make(chan struct{}, 1)}
	l.current.Store(view)
	return l
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
	return l.commit(ctx, d.apply(old.generation+1), &d.changes)
}

// date sets the generations of admission and change in the draft's records.
func (d *Draft) date(old *View) {
	for uid, p := range d.changes.Pods {
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

// commit makes next, which nobody else has yet, the next generation. mu must be held.
func (l *Ledger) commit(ctx context.Context, next *View, changes *Content) (*View, error) {
	old := l.View()
	next.generation = old.generation + 1
	next.facts.settle()
	c, err := l.committer.Commit(ctx, old, next, changes)
	if err != nil {
		return nil, err
	}
	next.recorded, next.epoch.ID = c.Recorded, c.EpochID
	l.current.Store(next)
	for _, f := range l.followers {
		f(old, next)
	}
	return next, nil
}
