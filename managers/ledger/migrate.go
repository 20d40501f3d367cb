package ledger

import (
	"bytes"
	"cmp"
	"slices"

	"github.com/berthd/berth/managers/errdefs"
)

// migration converts the entries of one schema version to the next. It may reuse the slice.
// It does not change the schema entry.
type migration func([]Entry) ([]Entry, error)

// migrations converts to schemaVersion; there is one element for each earlier version.
// Version 1 was the first released version.
var migrations = []migration{
	// Version 2 only has additional fields.
	func(entries []Entry) ([]Entry, error) { return entries, nil },
	toVersion3,
	// Version 4 has a history, which begins with the first commit.
	func(entries []Entry) ([]Entry, error) { return entries, nil },
	// Version 5 has the machine, which is not known before. No released version wrote a resource claim before; one of a
	// build in between has no devices, and is not prepared again before it is unprepared.
	func(entries []Entry) ([]Entry, error) { return entries, nil },
}

// toVersion3 adds the counts of pods and the sums of their claims, and renames buckets and
// keys. It keeps damaged values, which the decoder reports. The caller sets the id of the
// epoch.
func toVersion3(entries []Entry) ([]Entry, error) {
	claims := map[string][]storedClaim{} // by the pod's uid
	pods, unknown := 0, 0
	for _, e := range entries {
		switch e.Bucket {
		case BucketPods:
			pods++
		case "spared":
			unknown++
		case BucketClaims:
			var c Claim
			if open(e, &c) == nil {
				claims[c.Owner.Pod] = append(claims[c.Owner.Pod], storedClaim{c, e})
			}
		}
	}
	next := make([]Entry, 0, len(entries))
	for _, e := range entries {
		changed, err := version3(e, storedGeneration{Pods: pods, Unknown: unknown}, claims)
		if err != nil {
			return nil, err
		}
		next = append(next, changed)
	}
	return next, nil
}

// version3 converts one entry.
func version3(e Entry, counts storedGeneration, claims map[string][]storedClaim) (Entry, error) {
	bucket, key := e.Bucket, e.Key
	var value any
	switch {
	case bucket == "spared":
		return renamed(e, BucketUnknownLive, key), nil
	case bucket == BucketMeta && key == "doubt":
		return renamed(e, BucketMeta, metaUncertain), nil
	case bucket == BucketMeta && key == metaGeneration:
		value = new(storedGeneration)
	case bucket == BucketPods:
		value = &storedPod{Pod: &Pod{}}
	default:
		return e, nil
	}
	if open(e, value) != nil {
		return e, nil
	}
	switch v := value.(type) {
	case *storedGeneration:
		v.Pods, v.Unknown = counts.Pods, counts.Unknown
		value = *v
	case *storedPod:
		v.ClaimsSum = sumOf(claims[v.UID()]).String()
	}
	return seal(bucket, key, value)
}

// renamed moves a value to another key. A damaged value stays damaged.
func renamed(e Entry, bucket, key string) Entry {
	text, err := unseal(e)
	if err != nil {
		return Entry{Bucket: bucket, Key: key, Value: e.Value}
	}
	return sealText(bucket, key, text)
}

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
	schema, err := seal(BucketMeta, metaSchema, to)
	if err != nil {
		return nil, errdefs.Internalf("migrate: %w", err)
	}
	entries = slices.DeleteFunc(entries, func(e Entry) bool { return compareEntries(e, schema) == 0 })
	return append(entries, schema), nil
}

// compareEntries orders entries by bucket and key.
func compareEntries(a, b Entry) int {
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
	slices.SortFunc(changes, compareEntries)
	return changes
}
