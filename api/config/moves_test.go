package config

import (
	"strings"
	"testing"
)

// With a rate that is a mistake, as of a number of MiB, memory would move once in years.
func TestRateOfMoves(t *testing.T) {
	t.Parallel()
	for rate, ok := range map[uint64]bool{0: true, 100: false, 1<<20 - 1: false, 1 << 20: true} {
		c := Default()
		c.Moves.BytesPerSecond = rate
		if err := c.Validate(); (err == nil) != ok || err != nil && !strings.Contains(err.Error(), "moves.bytesPerSecond") {
			t.Errorf("rate %d: %v", rate, err)
		}
	}
}
