package store_test

import (
	"path/filepath"
	"testing"

	"github.com/berthd/berth/managers/ledger/journal"
	"github.com/berthd/berth/managers/ledger/ledgertest"
	"github.com/berthd/berth/server/internal/store"
)

func TestJournal(t *testing.T) {
	t.Parallel()
	ledgertest.RunJournal(t, func(t *testing.T) func() journal.Journal {
		path := filepath.Join(t.TempDir(), "state", "berth.db")
		return func() journal.Journal { return mustOpen(t, path, store.Options{}) }
	})
}

func mustOpen(t *testing.T, path string, o store.Options) *store.Store {
	t.Helper()
	s, err := store.Open(path, o)
	if err != nil {
		t.Fatal(err)
	}
	return s
}
