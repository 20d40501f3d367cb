package journal

import (
	"context"

	"github.com/berthd/berth/managers/errdefs"
)

// The buckets of a journal. The buckets and the JSON forms of the values are the schema;
// see schema.go for keys and versions.
const (
	BucketMeta              = "meta"
	BucketPods              = "pods"
	BucketClaims            = "claims"
	BucketTraces            = "traces"
	BucketContainers        = "containers"
	BucketResources         = "resources"
	BucketLeases            = "leases"
	BucketExternalProviders = "external-providers"
	BucketUnknownLive       = "unknown-live-pods"
	BucketHistory           = "history"
	BucketHistoryOpen       = "history-open"
)

// Entry is one key of a bucket. In a batch a nil Value deletes the key.
type Entry struct {
	Bucket string
	Key    string
	Value  []byte
}

// Journal stores commits. Load is called once, then Commit any number of times from one
// goroutine at a time, then Close. After Commit has returned nil, the batch survives any
// crash. After an error, a later Load does not return any of it. There is one exception: if
// an error leaves the outcome unknown, it is of class Unavailable, and every later Commit
// fails until the journal is opened again.
type Journal interface {
	// Load returns all entries, in any order.
	Load(ctx context.Context) ([]Entry, error)
	// Commit writes the batch as generation gen, all or nothing. Of several entries for one
	// key the last one counts; deleting a missing key has no effect. A gen that is not
	// above the last one is an error of class Internal. If ctx has ended before the write,
	// the error is that of ctx; once begun, the write does not depend on ctx.
	Commit(ctx context.Context, gen uint64, batch []Entry) error
	// Close releases the journal's resources. Later calls fail.
	Close() error
}

// HistoryStore is a Journal that keeps the buckets of the history: Load leaves them out, because
// the history is not part of the state.
type HistoryStore interface {
	Journal
	// HistorySizes yields the keys of BucketHistory with the sizes of their values, in order.
	HistorySizes(ctx context.Context, each func(key string, size int)) error
	// ReadHistory yields the entries of BucketHistoryOpen, then those of BucketHistory, of all
	// keys below a key (empty is above all), the greatest first, until each returns false.
	// Commits do not wait for each. An entry that a commit moves meanwhile is yielded once.
	ReadHistory(ctx context.Context, below string, each func(Entry) bool) error
}

// OfHistory returns whether a bucket belongs to the history.
func OfHistory(bucket string) bool { return bucket == BucketHistory || bucket == BucketHistoryOpen }

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
