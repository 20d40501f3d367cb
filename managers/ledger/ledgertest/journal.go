package ledgertest

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"sync"

	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/ledger/journal"
)

// Journal is a journal.Journal in memory. The zero value is not ready; use
// NewJournal. It is safe for concurrent use.
type Journal struct {
	mu       sync.Mutex
	content  *content
	closed   bool
	broken   error // outcome unknown: every later commit fails
	failures map[int]failure
	commits  int
	last     uint64
}

// content is what survives a crash.
type content struct {
	entries map[[2]string][]byte
}

// failure is what happens to a commit: err is returned, after the write or
// instead of it.
type failure struct {
	err   error
	wrote bool
}

// NewJournal returns an empty journal.
func NewJournal() *Journal {
	return &Journal{content: &content{entries: map[[2]string][]byte{}}}
}

// Reopen returns a new handle on the same content, as after a crash of the
// process that had the old one. The old handle is closed.
func (j *Journal) Reopen() *Journal {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.closed = true
	return &Journal{content: j.content}
}

// FailNext lets the n-th commit from now on (1 is the next one) fail with err
// and write nothing.
func (j *Journal) FailNext(n int, err error) { j.failAt(n, failure{err: err}) }

// LoseNext lets the n-th commit from now on write and then report err, as a disk
// that dies while it syncs: the outcome is unknown to the caller, and every
// later commit of this handle fails.
func (j *Journal) LoseNext(n int, err error) { j.failAt(n, failure{err: err, wrote: true}) }

func (j *Journal) failAt(n int, f failure) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.failures == nil {
		j.failures = map[int]failure{}
	}
	j.failures[j.commits+n] = f
}

// Commits returns the number of commits of this handle.
func (j *Journal) Commits() int {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.commits
}

// Alter changes the stored value of a key, as damage does. A nil result deletes
// the key, the key need not exist.
func (j *Journal) Alter(bucket, key string, change func(value []byte) []byte) {
	j.mu.Lock()
	defer j.mu.Unlock()
	at := [2]string{bucket, key}
	if value := change(slices.Clone(j.content.entries[at])); value != nil {
		j.content.entries[at] = value
	} else {
		delete(j.content.entries, at)
	}
}

// Load implements journal.Journal; the entries are in order of buckets and keys.
func (j *Journal) Load(ctx context.Context) ([]journal.Entry, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if err := j.usable(ctx); err != nil {
		return nil, err
	}
	var entries []journal.Entry
	for _, at := range slices.SortedFunc(maps.Keys(j.content.entries), func(a, b [2]string) int {
		return cmp.Or(cmp.Compare(a[0], b[0]), cmp.Compare(a[1], b[1]))
	}) {
		if !journal.OfHistory(at[0]) {
			entries = append(entries, journal.Entry{Bucket: at[0], Key: at[1], Value: slices.Clone(j.content.entries[at])})
		}
	}
	return entries, nil
}

// history returns the entries of a bucket of the history, in order.
func (j *Journal) history(ctx context.Context, bucket string) (all []journal.Entry, err error) {
	if err := j.usable(ctx); err != nil {
		return nil, err
	}
	for at, value := range j.content.entries {
		if at[0] == bucket {
			all = append(all, journal.Entry{Bucket: at[0], Key: at[1], Value: slices.Clone(value)})
		}
	}
	slices.SortFunc(all, func(a, b journal.Entry) int { return cmp.Compare(a.Key, b.Key) })
	return all, nil
}

// HistorySizes implements journal.HistoryStore.
func (j *Journal) HistorySizes(ctx context.Context, each func(key string, size int)) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	all, err := j.history(ctx, journal.BucketHistory)
	for _, e := range all {
		each(e.Key, len(e.Value))
	}
	return err
}

// ReadHistory implements journal.HistoryStore.
func (j *Journal) ReadHistory(ctx context.Context, below string, each func(journal.Entry) bool) error {
	j.mu.Lock()
	closed, err := j.history(ctx, journal.BucketHistory)
	open, err2 := j.history(ctx, journal.BucketHistoryOpen)
	j.mu.Unlock()
	for _, e := range slices.Backward(slices.Concat(closed, open)) {
		if (below == "" || e.Key < below) && !each(e) {
			break
		}
	}
	return cmp.Or(err, err2)
}

// Commit implements journal.Journal.
func (j *Journal) Commit(ctx context.Context, gen uint64, batch []journal.Entry) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	if err := j.usable(ctx); err != nil {
		return err
	}
	if j.broken != nil {
		return errdefs.Unavailablef("an earlier commit has an unknown outcome: %w", j.broken)
	}
	if gen <= j.last {
		return errdefs.Internalf("commit generation %d after %d", gen, j.last)
	}
	j.commits++
	f, fails := j.failures[j.commits]
	if fails && !f.wrote {
		return f.err
	}
	for _, e := range batch {
		at := [2]string{e.Bucket, e.Key}
		if e.Value == nil {
			delete(j.content.entries, at)
		} else {
			j.content.entries[at] = slices.Clone(e.Value)
		}
	}
	j.last = gen
	if fails {
		j.broken = f.err
		return errdefs.Unavailablef("commit generation %d, outcome unknown: %w", gen, f.err)
	}
	return nil
}

// Close implements journal.Journal.
func (j *Journal) Close() error {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.closed = true
	return nil
}

// usable reports why a call cannot be served. The lock is held.
func (j *Journal) usable(ctx context.Context) error {
	if j.closed {
		return errdefs.Unavailablef("the journal is closed")
	}
	return ctx.Err()
}
