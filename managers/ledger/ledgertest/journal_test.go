package ledgertest_test

import (
	"testing"

	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/ledger/ledgertest"
)

func TestJournal(t *testing.T) {
	t.Parallel()
	ledgertest.RunJournal(t, func(*testing.T) func() ledger.Journal {
		j := ledgertest.NewJournal()
		return func() ledger.Journal {
			j = j.Reopen()
			return j
		}
	})
}
