package store

import (
	"context"
	"errors"
	"runtime/debug"

	"go.etcd.io/bbolt"
	bbolterrors "go.etcd.io/bbolt/errors"

	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/ledger/journal"
)

// A reader of the history takes so many entries, or bytes, in one transaction: a commit that
// has to map a larger file waits for transactions of readers.
const (
	historyStep      = 128
	historyStepBytes = 1 << 20
)

// HistorySizes implements journal.HistoryStore.
func (s *Store) HistorySizes(ctx context.Context, each func(key string, size int)) error {
	return s.readHistory(ctx, func(tx *bbolt.Tx) error {
		b := tx.Bucket([]byte(journal.BucketHistory))
		if b == nil {
			return nil
		}
		return b.ForEach(func(key, value []byte) error {
			each(string(key), len(value))
			return nil
		})
	})
}

// ReadHistory implements journal.HistoryStore.
func (s *Store) ReadHistory(ctx context.Context, below string, each func(journal.Entry) bool) error {
	for buckets := []string{journal.BucketHistoryOpen, journal.BucketHistory}; ; buckets = buckets[len(buckets)-1:] {
		var step []journal.Entry
		if err := s.readHistory(ctx, func(tx *bbolt.Tx) error {
			size := 0
			for _, name := range buckets {
				if b := tx.Bucket([]byte(name)); b != nil {
					step, size = backwards(step, size, name, b, below)
				}
			}
			return nil
		}); err != nil {
			return err
		}
		for _, e := range step {
			if !each(e) {
				return nil
			}
			below = e.Key
		}
		if len(step) == 0 {
			return nil
		}
	}
}

// backwards adds entries of a bucket with keys below a key to a step, as many as it may have.
func backwards(step []journal.Entry, size int, name string, b *bbolt.Bucket, below string) ([]journal.Entry, int) {
	c := b.Cursor()
	var key, value []byte
	if below != "" {
		key, _ = c.Seek([]byte(below))
	}
	if key == nil {
		key, value = c.Last()
	} else {
		key, value = c.Prev()
	}
	for ; key != nil && len(step) < historyStep && size < historyStepBytes; key, value = c.Prev() {
		step = append(step, journal.Entry{Bucket: name, Key: string(key), Value: append([]byte{}, value...)})
		size += len(value)
	}
	return step, size
}

// readHistory calls read in a transaction. The file is mapped: a read
// of a part that another program has cut off is a fault, and ends as an error.
func (s *Store) readHistory(ctx context.Context, read func(*bbolt.Tx) error) (err error) {
	if err := ctx.Err(); err != nil {
		return err
	}
	db := s.reading.Load()
	if db == nil {
		return errdefs.Unavailablef("read the history in %s: it is closed", s.path)
	}
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if fault := recover(); fault != nil {
			err = errdefs.Corruptf("read the history in %s: the file is damaged: %v", s.path, fault)
		}
	}()
	err = db.View(read)
	if errors.Is(err, bbolterrors.ErrDatabaseNotOpen) {
		return errdefs.Unavailablef("read the history in %s: it is closed", s.path)
	}
	return err
}
