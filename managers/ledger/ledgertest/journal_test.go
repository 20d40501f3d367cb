package ledgertest_test

import (
	"testing"

	"github.com/berthd/berth/managers/ledger/journal"
	"github.com/berthd/berth/managers/ledger/ledgertest"
)

func TestJournal(t *testing.T) {
	t.Parallel()
	ledgertest.RunJournal(t, func(*testing.T) func() journal.Journal {
		j := ledgertest.NewJournal()
		return func() journal.Journal {
			j = j.Reopen()
			return j
		}
	})
}
