package ledger

import "context"

// The buckets of a journal. Together with the JSON shapes of the values they are
// the schema; see schema.go for keys and versions.
const (
	BucketMeta              = "meta"
	BucketPods              = "pods"
	BucketClaims            = "claims"
	BucketTraces            = "traces"
	BucketContainers        = "containers"
	BucketResources         = "resources"
	BucketLeases            = "leases"
	BucketExternalProviders = "outsiders"
	BucketUnknownLive       = "unknown-live-pods"
)

// Entry is one key of a bucket. In a batch a nil Value deletes the key.
type Entry struct {
	Bucket string
	Key    string
	Value  []byte
}

// Journal makes commits durable. Its life: Load once, then Commit any number of
// times from one goroutine at a time, then Close. After Commit returned nil the
// batch survives any crash; after an error none of it is visible to a later
// Load, except that an error which leaves the outcome unknown must be typed
// errdefs.Unavailable and makes every later Commit fail until the journal is
// opened again.
type Journal interface {
	// Load returns every entry, in any order.
	Load(ctx context.Context) ([]Entry, error)
	// Commit writes the batch as generation gen, all or nothing. Of several
	// entries for one key the last one counts; deleting a key that is not there
	// does nothing. A gen that is not above the last one is class Internal.
	Commit(ctx context.Context, gen uint64, batch []Entry) error
	// Close frees what the journal holds. Calls after it are errors.
	Close() error
}
