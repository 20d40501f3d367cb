package store_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/ledger/ledgertest"
	"github.com/berthd/berth/server/internal/store"
)

// TestRefusedCommitIsNotKept: a commit that was written and could not be acknowledged
// does not stand beside the next ones, for which it was not checked whether they go
// together.
func TestRefusedCommitIsNotKept(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "state", "berth.db")
	s := mustOpen(t, path, store.Options{})
	defer func() { s.Close() }()
	l, _, _, err := s.OpenLedger(t.Context(), renewing(), noon)
	if err != nil {
		t.Fatal(err)
	}
	put := func(uid string) error {
		_, err := l.Update(t.Context(), func(d *ledger.Draft) error {
			d.PutPod(ledgertest.With(ledgertest.Pod(uid, "c"), ledgertest.Exclusive("c", "1")))
			return nil
		})
		return err
	}
	// The lock is gone, and cannot be taken again.
	if err := errors.Join(os.Remove(lock(path)), os.Mkdir(lock(path), 0o700)); err != nil {
		t.Fatal(err)
	}
	if err := put("refused"); err == nil {
		t.Fatal("a commit without a lock is acknowledged")
	}
	if err := os.Remove(lock(path)); err != nil {
		t.Fatal(err)
	}
	if err := put("kept"); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = mustOpen(t, path, store.Options{})
	again, _, damage, err := s.OpenLedger(t.Context(), renewing(), noon)
	if err != nil || damage != nil {
		t.Fatalf("restart: %v, damage %+v", err, damage)
	}
	ledgertest.SameView(t, again.View(), l.View())
}
