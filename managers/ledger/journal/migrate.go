package journal

import (
	"bytes"
	"cmp"
	"slices"

	"github.com/berthd/berth/managers/errdefs"
)

// migration converts the entries of one schema version to the next. It may reuse the slice.
// It does not change the schema entry.
type migration func([]Entry) ([]Entry, error)

// migrations converts to schemaVersion, with one element for each earlier version.
var migrations []migration

// migrate converts entries from one version to another with the chain, whose last element
// ends at version to. An error of class Unsupported means that the chain does not apply:
// the entries are too new, or too old.
func migrate(entries []Entry, from, to int, chain []migration) ([]Entry, error) {
	if from > to {
		return nil, errdefs.Unsupportedf("open ledger: its schema has version %d, this berth reads versions up to %d; "+
			"run the newer berth, or move the file away to start empty", from, to)
	}
	oldest := to - len(chain)
	if from < oldest {
		return nil, errdefs.Unsupportedf("open ledger: its schema has version %d, this berth reads versions %d to %d", from, oldest, to)
	}
	entries = slices.Clone(entries)
	for version := from; version < to; version++ {
		var err error
		if entries, err = chain[version-oldest](entries); err != nil {
			return nil, errdefs.Corruptf("migrate from version %d: %w", version, err)
		}
	}
	schema, err := Seal(BucketMeta, metaSchema, to)
	if err != nil {
		return nil, errdefs.Internalf("migrate: %w", err)
	}
	entries = slices.DeleteFunc(entries, func(e Entry) bool { return CompareEntries(e, schema) == 0 })
	return append(entries, schema), nil
}

// CompareEntries orders entries by bucket and key.
func CompareEntries(a, b Entry) int {
	return cmp.Or(cmp.Compare(a.Bucket, b.Bucket), cmp.Compare(a.Key, b.Key))
}

// difference returns the batch that changes old to next, in the order of buckets and keys.
func difference(old, next []Entry) []Entry {
	was := make(map[[2]string][]byte, len(old))
	for _, e := range old {
		was[[2]string{e.Bucket, e.Key}] = e.Value
	}
	var changes []Entry
	for _, e := range next {
		at := [2]string{e.Bucket, e.Key}
		if value, ok := was[at]; !ok || !bytes.Equal(value, e.Value) {
			changes = append(changes, e)
		}
		delete(was, at)
	}
	for at := range was {
		changes = append(changes, Entry{Bucket: at[0], Key: at[1]})
	}
	slices.SortFunc(changes, CompareEntries)
	return changes
}
