package config_test

import (
	"strings"
	"testing"

	"github.com/berthd/berth/api/config"
	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/machine/machinetest"
	"github.com/berthd/berth/managers/managerset"
	"github.com/berthd/berth/managers/node"
	"github.com/berthd/berth/managers/workload"
)

// TestOneCoreIsReserved: without a reservation, the core of the lowest CPU stays shared, so that a kubelet's default
// configuration is one to start with. The scheduler counts its CPUs, which one sentence says.
func TestOneCoreIsReserved(t *testing.T) {
	t.Parallel()
	for shape, row := range map[string]struct {
		change   func(c *config.Config)
		machine  machinetest.Option
		want     string
		sentence string // a part of what is said about a scheduler that counts all CPUs
	}{
		"1s1n4c1t": {want: "0",
			sentence: "CPUs 0 stay shared (reserved.oneIfNone): the scheduler counts 4 of cpu as allocatable, and 3 can be exclusive"},
		"1s1n4c2t": {want: "0,4",
			sentence: "CPUs 0,4 stay shared (reserved.oneIfNone): the scheduler counts 8 of cpu as allocatable, and 6 can be exclusive"},
		"1s1n1c2t": {want: "0-1", sentence: "and 0 can be exclusive"},
		"1s1n1c1t": {want: "0", sentence: "and 0 can be exclusive"},
		"2s2n2c1t": {machine: machinetest.Offline("0"), want: "1", sentence: "CPUs 1 stay shared"},
		"1s1n2c1t": {change: func(c *config.Config) {
			// Cgroups of the kubelet's reservations, without an amount.
			c.Node.SystemReservedCgroup, c.Node.KubeReservedCgroup = "/system", "/runtime"
		}, want: "0", sentence: "CPUs 0 stay shared"},
		"1s1n8c1t": {change: func(c *config.Config) { c.Reserved.CPUs = cpuset.Of(2, 3) }, want: "2-3",
			sentence: "give berthd the kubelet's reservations"},
	} {
		c := config.Default()
		_, _ = c.BesideKubelet()
		c.CPU.Policy, c.Reserved.OneIfNone = "static", true
		if row.change != nil {
			row.change(&c)
		}
		m := machinetest.Build(shape)
		if row.machine != nil {
			m = machinetest.Build(shape, row.machine)
		}
		if err := c.Validate(); err != nil {
			t.Errorf("%s: %v", shape, err)
		}
		cfg, err := c.ManagerSet(m)
		if err != nil {
			t.Errorf("%s: %v", shape, err)
			continue
		}
		set, err := managerset.New(cfg, m)
		if err != nil {
			t.Errorf("%s: %v", shape, err)
			continue
		}
		if got := set.Rules.ReservedCPUs.String(); got != row.want {
			t.Errorf("%s: %s are reserved, want %s", shape, got, row.want)
		}
		n, err := node.New(cfg.Node, node.Facts{Machine: m})
		if err != nil {
			t.Fatal(err)
		}
		said := n.Excess(workload.Quantities{workload.CPU: int64(m.NumCPUs()) * 1000})
		if len(said) != 1 || !strings.Contains(said[0], row.sentence) {
			t.Errorf("%s: %q, want one sentence with %q", shape, said, row.sentence)
		}
		if said := n.Excess(workload.Quantities{workload.CPU: n.Allocatable()[workload.CPU]}); len(said) != 0 {
			t.Errorf("%s: %q about a scheduler that counts the same", shape, said)
		}
	}
}

// TestNothingIsReservedUnasked: the static policy needs a reservation, and the error names the flag that gives one.
func TestNothingIsReservedUnasked(t *testing.T) {
	t.Parallel()
	for policy, fails := range map[string]bool{"static": true, "none": false} {
		c := config.Default()
		c.CPU.Policy = policy
		m := machinetest.Build("1s1n4c1t")
		cfg, err := c.ManagerSet(m)
		if err != nil {
			t.Fatal(err)
		}
		set, err := managerset.New(cfg, m)
		if (err != nil) != fails || fails && !strings.Contains(err.Error(), "--reserve-one-if-none") {
			t.Errorf("policy %s: %v", policy, err)
		}
		if err == nil && !set.Rules.ReservedCPUs.IsEmpty() {
			t.Errorf("policy %s: %s are reserved", policy, set.Rules.ReservedCPUs)
		}
	}
}
