package store

import (
	"context"
	"errors"
	"runtime/debug"

	"go.etcd.io/bbolt"
	bbolterrors "go.etcd.io/bbolt/errors"

	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/ledger"
)

// A reader of the history takes so many entries, or bytes, in one transaction: a commit that
// has to map a larger file waits for transactions of readers.
const (
	historyStep      = 128
	historyStepBytes = 1 << 20
)

// HistorySizes implements ledger.HistoryStore.
func (s *Store) HistorySizes(ctx context.Context, each func(key string, size int)) error {
	return s.readHistory(ctx, func(b *bbolt.Bucket) error {
		return b.ForEach(func(key, value []byte) error {
			each(string(key), len(value))
			return nil
		})
	})
}

// ReadHistory implements ledger.HistoryStore.
func (s *Store) ReadHistory(ctx context.Context, below string, each func(ledger.Entry) bool) error {
	for {
		var step []ledger.Entry
		if err := s.readHistory(ctx, func(b *bbolt.Bucket) error {
			bytes := 0
			c := b.Cursor()
			key, _ := c.Seek([]byte(below))
			var value []byte
			if key == nil {
				key, value = c.Last()
			} else {
				key, value = c.Prev()
			}
			for ; key != nil && len(step) < historyStep && bytes < historyStepBytes; key, value = c.Prev() {
				step = append(step, ledger.Entry{Bucket: ledger.BucketHistory, Key: string(key), Value: append([]byte{}, value...)})
				bytes += len(value)
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

// readHistory calls read in a transaction, if there is a history. The file is mapped: a read
// of a part that another program has cut off is a fault, and ends as an error.
func (s *Store) readHistory(ctx context.Context, read func(*bbolt.Bucket) error) (err error) {
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
	err = db.View(func(tx *bbolt.Tx) error {
		if b := tx.Bucket([]byte(ledger.BucketHistory)); b != nil {
			return read(b)
		}
		return nil
	})
	if errors.Is(err, bbolterrors.ErrDatabaseNotOpen) {
		return errdefs.Unavailablef("read the history in %s: it is closed", s.path)
	}
	return err
}
