package config_test

import (
	"testing"

	"github.com/berthd/berth/api/config"
	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/machine/machinetest"
	"github.com/berthd/berth/managers/managerset"
)

// TestReservedByNumberMayBeOffline: a CPU that is reserved by number goes off line; berthd follows, and
// a start works, too. After a removed CPU was added again, it is reserved again.
func TestReservedByNumberMayBeOffline(t *testing.T) {
	t.Parallel()
	c := config.Default()
	c.CPU.Policy, c.Reserved.CPUs = "static", cpuset.Of(0, 1)
	for name, row := range map[string]struct {
		off, kept string
	}{"a start": {"1", ""}, "a running berthd": {"1", "0-1"}, "was removed, and is back": {"", "0"}} {
		m := machinetest.Build("1s1n8c1t")
		if row.off != "" {
			m = machinetest.Build("1s1n8c1t", machinetest.Offline(row.off))
		}
		cfg, err := c.ManagerSet(m)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		cfg.CPU.KeptReserved, _ = cpuset.Parse(row.kept)
		set, err := managerset.New(cfg, m)
		if err != nil {
			t.Errorf("%s: %v", name, err)
		} else if got := set.Rules.ReservedCPUs.String(); got != "0-1" {
			t.Errorf("%s: %s are reserved", name, got)
		}
	}
}
