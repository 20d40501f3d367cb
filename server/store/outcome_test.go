package store

import (
	"errors"
	"path/filepath"
	"testing"

	"go.etcd.io/bbolt"

	"github.com/berthd/berth/managers/fault"
	"github.com/berthd/berth/managers/ledger"
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
	batch := []ledger.Entry{{Bucket: "pods", Key: "a", Value: []byte("1")}}
	if err := s.Commit(t.Context(), 1, batch); err != nil {
		t.Fatal(err)
	}
	var written int
	if err := s.db.View(func(tx *bbolt.Tx) error { written = tx.ID(); return nil }); err != nil {
		t.Fatal(err)
	}
	if err := s.failed(written+1, cause); fault.ClassOf(err) != fault.Unavailable || !errors.Is(err, cause) {
		t.Errorf("failed before the meta page: %v", err)
	}
	if err := s.Commit(t.Context(), 2, batch); err != nil {
		t.Errorf("commit after that: %v", err)
	}
	if err := s.failed(written+1, cause); fault.ClassOf(err) != fault.Unavailable || !errors.Is(err, cause) {
		t.Errorf("failed after the meta page: %v", err)
	}
	for range 2 {
		if err := s.Commit(t.Context(), 3, batch); fault.ClassOf(err) != fault.Unavailable || !errors.Is(err, cause) {
			t.Errorf("commit after an unknown outcome: %v", err)
		}
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
