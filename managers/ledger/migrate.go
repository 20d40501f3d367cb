package ledger

import (
	"bytes"
	"cmp"
	"slices"

	"github.com/berthd/berth/managers/fault"
	"github.com/berthd/berth/managers/internal/jsontext"
)

// migration turns the entries of one schema version into those of the next. It
// may reuse the slice. The schema entry itself is not its business.
type migration func([]Entry) ([]Entry, error)

// migrations leads to schemaVersion, one element a version, the last one from
// schemaVersion-1. Version 1 is the first that was ever released.
var migrations = []migration{
	// Version 2 only has more that can be said.
	func(entries []Entry) ([]Entry, error) { return entries, nil },
	// So does version 3: who opens the ledger gives it an epoch's id. And it has other
	// names for two things.
	func(entries []Entry) ([]Entry, error) {
		for i, e := range entries {
			switch {
			case e.Bucket == "spared":
				entries[i] = renamed(e, BucketUnknownLive, e.Key)
			case e.Bucket == BucketMeta && e.Key == "doubt":
				entries[i] = renamed(e, BucketMeta, metaUncertain)
			}
		}
		return entries, nil
	},
}

// renamed puts a value under another name. A damaged one stays damaged.
func renamed(e Entry, bucket, key string) Entry {
	text, err := unseal(e)
	if err != nil {
		return Entry{Bucket: bucket, Key: key, Value: e.Value}
	}
	w := jsontext.New(len(e.Value))
	w.Raw(sealStart + noSum + sealMiddle)
	w.Raw(string(text))
	return endSeal(bucket, key, w)
}

// migrate leads from one version to another through the whole chain, whose last
// element ends at version to. Class Unsupported means that the chain does not
// lead there: the entries are too new, or older than anything that is known.
func migrate(entries []Entry, from, to int, chain []migration) ([]Entry, error) {
	if from > to {
		return nil, fault.Unsupportedf("open ledger: its schema has version %d, this berth knows versions up to %d; "+
			"run the newer berth, or move the file away to start empty", from, to)
	}
	oldest := to - len(chain)
	if from < oldest {
		return nil, fault.Unsupportedf("open ledger: its schema has version %d, this berth reads versions %d to %d", from, oldest, to)
	}
	entries = slices.Clone(entries)
	for version := from; version < to; version++ {
		var err error
		if entries, err = chain[version-oldest](entries); err != nil {
			return nil, fault.Corruptf("migrate from version %d: %w", version, err)
		}
	}
	schema, err := seal(BucketMeta, metaSchema, to)
	if err != nil {
		return nil, fault.Internalf("migrate: %w", err)
	}
	entries = slices.DeleteFunc(entries, func(e Entry) bool { return compareEntries(e, schema) == 0 })
	return append(entries, schema), nil
}

// compareEntries orders entries by bucket and key.
func compareEntries(a, b Entry) int {
	return cmp.Or(cmp.Compare(a.Bucket, b.Bucket), cmp.Compare(a.Key, b.Key))
}

// difference returns the batch that turns old into next, in order of buckets and
// keys.
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
	slices.SortFunc(changes, compareEntries)
	return changes
}
