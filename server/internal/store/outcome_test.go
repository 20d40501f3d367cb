package store

import (
	"context"
	"errors"
	"path/filepath"
	"strconv"
	"sync"
	"testing"

	"go.etcd.io/bbolt"

	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/ledger/journal"
)

// A commit that failed before its meta page was written is forgotten; one whose
// meta page is there but could not be synced has an unknown outcome, and closes
// the store for commits until it is opened again.
func TestOutcome(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "berth.db")
	s, err := Open(path, Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { s.Close() }()
	cause := errors.New("input/output error")
	batch := []journal.Entry{{Bucket: "pods", Key: "a", Value: []byte("1")}}
	if err := s.Commit(t.Context(), 1, batch); err != nil {
		t.Fatal(err)
	}
	var written int
	if err := s.db.View(func(tx *bbolt.Tx) error { written = tx.ID(); return nil }); err != nil {
		t.Fatal(err)
	}
	if err := s.failed(written+1, cause); errdefs.ClassOf(err) != errdefs.Unavailable || !errors.Is(err, cause) {
		t.Errorf("failed before the meta page: %v", err)
	}
	if err := s.Commit(t.Context(), 2, batch); err != nil {
		t.Errorf("commit after that: %v", err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if err := s.Watch(ended); !errors.Is(err, context.Canceled) {
		t.Errorf("watched while all was well: %v", err)
	}
	if err := s.failed(written+1, cause); errdefs.ClassOf(err) != errdefs.Unavailable || !errors.Is(err, cause) {
		t.Errorf("failed after the meta page: %v", err)
	}
	for range 2 {
		if err := s.Commit(t.Context(), 3, batch); errdefs.ClassOf(err) != errdefs.Unavailable || !errors.Is(err, cause) {
			t.Errorf("commit after an unknown outcome: %v", err)
		}
	}
	if err := s.Watch(t.Context()); errdefs.ClassOf(err) != errdefs.Unavailable || !errors.Is(err, cause) {
		t.Errorf("watched: %v", err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if s, err = Open(path, Options{}); err != nil {
		t.Fatal(err)
	}
	if err := s.Commit(t.Context(), 3, batch); err != nil {
		t.Errorf("commit after opening again: %v", err)
	}
}

// Close waits for the commit under way, and what comes after it is refused.
func TestCloseDuringCommits(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "berth.db")
	begun := make(chan struct{})
	var once sync.Once
	s, err := Open(path, Options{Failpoint: func(point string) {
		if point == AfterPut {
			once.Do(func() { close(begun) })
		}
	}})
	if err != nil {
		t.Fatal(err)
	}
	committed := make(chan uint64)
	go func() {
		var last uint64
		for gen := uint64(1); ; gen++ {
			entry := journal.Entry{Bucket: "meta", Key: "generation", Value: strconv.AppendUint(nil, gen, 10)}
			if err := s.Commit(context.Background(), gen, []journal.Entry{entry}); err != nil {
				if errdefs.ClassOf(err) != errdefs.Unavailable {
					t.Error(err)
				}
				committed <- last
				return
			}
			last = gen
		}
	}()
	<-begun
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	last := <-committed
	if s, err = Open(path, Options{}); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = s.Close() }()
	entries, err := s.Load(t.Context())
	if err != nil || len(entries) != 1 || string(entries[0].Value) != strconv.FormatUint(last, 10) {
		t.Errorf("%v, %v; want generation %d", entries, err, last)
	}
}
