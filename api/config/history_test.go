package config_test

import (
	"strings"
	"testing"

	"github.com/berthd/berth/api/config"
)

// TestHistoryLimits: what berthd keeps of the history can be read from bundles and ledger files.
func TestHistoryLimits(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		entries, bytes int
		wrong          string
	}{
		{0, 1 << 20, ""},
		{1_000_000, 256 << 20, ""},
		{-1, 1 << 20, "history.entries"},
		{1_000_001, 1 << 20, "history.entries"},
		{1, 1<<20 - 1, "history.bytes"},
		{1, 256<<20 + 1, "history.bytes"},
	} {
		c := config.Default()
		c.History = config.History{Entries: row.entries, Bytes: row.bytes}
		err := c.Validate()
		for _, field := range []string{"history.entries", "history.bytes"} {
			if got := err != nil && strings.Contains(err.Error(), field); got != (field == row.wrong) {
				t.Errorf("%d entries, %d bytes: %v, want %q", row.entries, row.bytes, err, row.wrong)
			}
		}
	}
}
