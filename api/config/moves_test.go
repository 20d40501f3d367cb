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

// Without the kernel's cgroups, as beside a kubelet, nothing shows where huge pages are.
func TestHugePagesWithoutCgroups(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		change func(c *Config)
		ok     bool
	}{
		"the kernel's tree": {func(*Config) {}, true},
		"a tree in memory":  {func(c *Config) { c.Cgroups.Tree = TreeMemory }, false},
		"beside a kubelet":  {func(c *Config) { _, _ = c.BesideKubelet() }, false},
		"a simulation":      {func(c *Config) { c.Cgroups.Tree, c.Machine = TreeMemory, "4c" }, true},
	} {
		c := Default()
		row.change(&c)
		if err := c.Validate(); err != nil {
			t.Fatal(err)
		}
		c.Moves.HugePages = true
		if err := c.Validate(); (err == nil) != row.ok || err != nil && !strings.Contains(err.Error(), "moves.hugePages") {
			t.Errorf("%s: %v", name, err)
		}
	}
}
