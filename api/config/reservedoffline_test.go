package config_test

import (
	"testing"

	"github.com/berthd/berth/api/config"
	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/machine"
	"github.com/berthd/berth/managers/machine/machinetest"
	"github.com/berthd/berth/managers/managerset"
)

// TestReservedByNumberMayBeOffline: a CPU that is reserved by number goes offline; berthd follows, and
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

// TestReservedForTheKernelsSettings: CPUs that the kernel isolates or runs without a tick are reserved only if the configuration
// requests it, beside the list and beside the amount.
func TestReservedForTheKernelsSettings(t *testing.T) {
	t.Parallel()
	m := machinetest.Build("1s1n8c1t", func(s *machine.Snapshot) {
		s.Isolated, s.NoHZFull = cpuset.Of(4, 5), cpuset.Of(5, 6, 9)
	})
	for name, row := range map[string]struct {
		change func(r *config.Reserved)
		want   string
	}{
		"neither":            {func(*config.Reserved) {}, "0"},
		"isolated":           {func(r *config.Reserved) { r.IsolatedCPUs = true }, "0,4-5"},
		"without ticks":      {func(r *config.Reserved) { r.NoHZFullCPUs = true }, "0,5-6"},
		"both":               {func(r *config.Reserved) { r.IsolatedCPUs, r.NoHZFullCPUs = true, true }, "0,4-6"},
		"one, beside a list": {func(r *config.Reserved) { r.OneIfNone = true }, "0"},
		"one, beside an amount": {func(r *config.Reserved) {
			r.CPUs, r.OneIfNone, r.Kube = cpuset.Set{}, true, map[string]string{"cpu": "1500m"}
		}, "0-1"},
		"one, beside a zero": {func(r *config.Reserved) {
			r.CPUs, r.OneIfNone, r.Kube = cpuset.Set{}, true, map[string]string{"cpu": "0"}
		}, "0"},
		"one, and nothing else":    {func(r *config.Reserved) { r.CPUs, r.OneIfNone = cpuset.Set{}, true }, "0"},
		"one, beside the isolated": {func(r *config.Reserved) { r.CPUs, r.OneIfNone, r.IsolatedCPUs = cpuset.Set{}, true, true }, "0,4-5"},
		"and an amount": {func(r *config.Reserved) {
			r.CPUs, r.NoHZFullCPUs, r.System = cpuset.Set{}, true, map[string]string{"cpu": "1"}
		}, "0,5-6"},
	} {
		c := config.Default()
		c.CPU.Policy, c.Reserved.CPUs = "static", cpuset.Of(0)
		row.change(&c.Reserved)
		cfg, err := c.ManagerSet(m)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		set, err := managerset.New(cfg, m)
		if err != nil {
			t.Errorf("%s: %v", name, err)
		} else if got := set.Rules.ReservedCPUs.String(); got != row.want {
			t.Errorf("%s: %s are reserved, want %s", name, got, row.want)
		}
	}
}
