package ledgerfile_test

import (
	"bytes"
	"encoding/binary"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"

	"go.etcd.io/bbolt"

	"github.com/berthd/berth/api/ledgerfile"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/ledger/journal"
	"github.com/berthd/berth/managers/machine/machinetest"
)

// create makes a file with a bucket, and returns how to commit to it.
func create(t *testing.T) (path string, commit func(n uint64)) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "ledger.db")
	db, err := bbolt.Open(path, 0o600, &bbolt.Options{NoSync: true, FreelistType: bbolt.FreelistMapType})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	return path, func(n uint64) {
		if err := db.Update(func(tx *bbolt.Tx) error {
			for _, bucket := range []string{"pods", "claims"} {
				b, err := tx.CreateBucketIfNotExists([]byte(bucket))
				if err != nil {
					return err
				}
				// Values of several pages, so that a commit takes many.
				for key := range byte(8) {
					if err := b.Put([]byte{'k', key}, bytes.Repeat(binary.BigEndian.AppendUint64(nil, n), 1500)); err != nil {
						return err
					}
				}
			}
			return nil
		}); err != nil {
			t.Error(err)
		}
	}
}

// state returns the number of the commit that all values are of.
func state(t *testing.T, entries []journal.Entry) (n uint64) {
	t.Helper()
	if len(entries) != 16 {
		t.Fatalf("%d entries, want 16", len(entries))
	}
	for i, e := range entries {
		for at := 0; at < len(e.Value); at += 8 {
			got := binary.BigEndian.Uint64(e.Value[at:])
			if i == 0 && at == 0 {
				n = got
			}
			if got != n {
				t.Fatalf("%s/%x has values of commits %d and %d", e.Bucket, e.Key, n, got)
			}
		}
	}
	return n
}

// TestReadDuringCommits: a reading has the state after one commit, while another goroutine
// commits without a pause, and the file stays as it is.
func TestReadDuringCommits(t *testing.T) {
	t.Parallel()
	path, commit := create(t)
	var last atomic.Uint64
	commit(1)
	last.Store(1)
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for n := uint64(2); ; n++ {
			select {
			case <-stop:
				return
			default:
				commit(n)
				last.Store(n)
			}
		}
	}()
	good, busy := 0, 0
	for good+busy < 100 || good == 0 && busy < 10_000 {
		before := last.Load()
		found, damage, err := ledgerfile.Read(t.Context(), path)
		switch {
		case errdefs.ClassOf(err) == errdefs.Unavailable:
			busy++
		case err != nil || damage != nil:
			t.Fatalf("damage %v, error %v", damage, err)
		default:
			good++
			if n := state(t, found.Entries); n < before || n > last.Load()+1 {
				t.Fatalf("commit %d, after %d and before %d", n, before, last.Load())
			}
		}
	}
	close(stop)
	<-done
	t.Logf("%d readings, %d gave up, %d commits", good, busy, last.Load())
	before, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	found, _, err := ledgerfile.Read(t.Context(), path)
	if err != nil || state(t, found.Entries) != last.Load() {
		t.Errorf("the last commit is not what is read: %v", err)
	}
	if after, err := os.ReadFile(path); err != nil || !bytes.Equal(before, after) {
		t.Errorf("reading has changed the file: %v", err)
	}
}

// TestReadDamaged: a damaged file gives what is whole in it, and the damage.
func TestReadDamaged(t *testing.T) {
	t.Parallel()
	entries, err := journal.Dump(ledger.Empty(ledger.Rules{Machine: machinetest.Build("4c")}))
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "ledger.db")
	db, err := bbolt.Open(path, 0o600, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := db.Update(func(tx *bbolt.Tx) error {
		for _, e := range entries {
			b, err := tx.CreateBucketIfNotExists([]byte(e.Bucket))
			if err != nil {
				return err
			}
			if err := b.Put([]byte(e.Key), e.Value); err != nil {
				return err
			}
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	data[8] ^= 1 // of the first meta page's header
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	found, damage, err := ledgerfile.Read(t.Context(), path)
	if err != nil || damage == nil || len(found.Entries) != len(entries) {
		t.Errorf("%d entries of %d, damage %v, error %v", len(found.Entries), len(entries), damage, err)
	}
	if err := os.WriteFile(path, []byte("no ledger"), 0o600); err != nil {
		t.Fatal(err)
	}
	if found, damage, err := ledgerfile.Read(t.Context(), path); err != nil || damage == nil || len(found.Entries) != 0 {
		t.Errorf("a text: %d entries, damage %v, error %v", len(found.Entries), damage, err)
	}
}
