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

// Beside a kubelet, nothing shows where huge pages are.
func TestHugePagesBesideAKubelet(t *testing.T) {
	t.Parallel()
	for beside, ok := range map[string]bool{"": true, Kubelet: false} {
		c := Default()
		if beside != "" {
			c.BesideKubelet()
		}
		if err := c.Validate(); err != nil {
			t.Fatal(err)
		}
		c.Moves.HugePages = true
		if err := c.Validate(); (err == nil) != ok || err != nil && !strings.Contains(err.Error(), "moves.hugePages") {
			t.Errorf("beside %q: %v", beside, err)
		}
	}
}
