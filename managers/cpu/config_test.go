package cpu

import (
	"errors"
	"strings"
	"testing"

	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/machine/machinetest"
)

func TestReserved(t *testing.T) {
	t.Parallel()
	// The sets for 1, 2, 3, 4, 5, 9 and 10 reserved CPUs; "" is a refusal.
	counts := []int{1, 2, 3, 4, 5, 9, 10}
	for _, row := range []struct {
		machine, options string
		want             []string
	}{
		{"A", "", []string{"0", "0,4", "0-1,4", "0-1,4-5", "0-2,4-5", "", ""}},
		{"A", FullPCPUsOnly, []string{"0", "0,4", "0-1,4", "0-1,4-5", "0-2,4-5", "", ""}},
		{"A", PreferUncores, []string{"0", "0,4", "0-1,4", "0-1,4-5", "0-2,4-5", "", ""}},
		{"A", DistributeAcrossNUMA, []string{"0", "0,4", "0-1,4", "0-1,4-5", "0-2,4-5", "", ""}},
		{"A", DistributeAcrossCores, []string{"0", "0-1", "0-2", "0-3", "0-4", "", ""}},
		{"B", "", []string{"0", "0,8", "0-1,8", "0-1,8-9", "0-2,8-9", "0-4,8-11", "0-4,8-12"}},
		{"B", DistributeAcrossNUMA, []string{"0", "0,8", "0-1,8", "0-1,8-9", "0-2,8-9", "0-2,4-5,8-9,12-13", "0-2,4-6,8-9,12-13"}},
		{"B", DistributeAcrossNUMA + " " + FullPCPUsOnly, []string{"0", "0,8", "0-1,8", "0-1,8-9", "0-2,8-9", "0-4,8-11",
			"0-2,4-5,8-10,12-13"}},
		{"B", DistributeAcrossCores, []string{"0", "0-1", "0-2", "0-3", "0-3,8", "0-4,8-11", "0-5,8-11"}},
		{"C", "", []string{"0", "0,8", "0-1,8", "0-1,8-9", "0-2,8-9", "0-4,8-11", "0-4,8-12"}},
		{"C", DistributeAcrossNUMA, []string{"0", "0,8", "0-1,8", "0-1,8-9", "0-2,8,10", "0-5,8,10,12", "0-5,8-10,12"}},
	} {
		for i, n := range counts {
			m, err := New(Config{
				Policy: PolicyStatic, Options: optionMap(row.options), Features: allFeatures, ReservedMilliCPU: int64(n) * 1000,
			}, machines[row.machine])
			switch {
			case err != nil && row.want[i] != "":
				t.Errorf("%s with %q, %d: %v", row.machine, row.options, n, err)
			case err == nil && m.Reserved().String() != row.want[i]:
				t.Errorf("%s with %q, %d: got %q, want %q", row.machine, row.options, n, m.Reserved(), row.want[i])
			}
		}
	}
}

func TestNew(t *testing.T) {
	t.Parallel()
	static := func(change func(*Config)) Config {
		c := Config{Policy: PolicyStatic, ReservedMilliCPU: 500, Features: allFeatures}
		change(&c)
		return c
	}
	options := func(names string) Config {
		return static(func(c *Config) { c.Options = optionMap(names) })
	}
	for _, row := range []struct {
		name    string
		machine string
		config  Config
		// wrong is a part of the message, empty where the configuration is right.
		wrong string
	}{
		{"no policy is none", "B", Config{}, ""},
		{"none", "B", Config{Policy: PolicyNone}, ""},
		{"none with options", "B", Config{Policy: PolicyNone, Options: optionMap(FullPCPUsOnly)}, "takes no options"},
		{"unknown policy", "B", Config{Policy: "dynamic"}, "expected none or static"},
		{"half a CPU rounds up", "B", static(func(*Config) {}), ""},
		{"no reservation", "B", static(func(c *Config) { c.ReservedMilliCPU = 0 }), "the static policy needs reserved CPUs"},
		{"no reservation on purpose", "B", static(func(c *Config) { c.ReservedMilliCPU, c.AllowUnreserved = 0, true }), ""},
		{"negative reservation", "B", static(func(c *Config) { c.ReservedMilliCPU = -5000 }), "the static policy needs reserved CPUs"},
		{"more than there is", "B", static(func(c *Config) { c.ReservedMilliCPU = 17_000 }), "the machine has 16"},
		{"list", "B", static(func(c *Config) { c.ReservedMilliCPU, c.ReservedCPUs = 2000, set("1,9") }), ""},
		{"list alone", "B", static(func(c *Config) { c.ReservedMilliCPU, c.ReservedCPUs = 0, set("1,9") }), ""},
		{"list of another size", "B", static(func(c *Config) { c.ReservedCPUs = set("1,9") }), "expected 1 CPUs"},
		{"list of CPUs that are not there", "B", static(func(c *Config) { c.ReservedCPUs = set("20") }), `no CPUs "20"`},
		{"unknown option", "B", options("no-such-option"), "no such option"},
		{"bad value", "B", static(func(c *Config) { c.Options = map[string]string{FullPCPUsOnly: "on"} }), "expected true or false"},
		{"empty value", "B", static(func(c *Config) { c.Options = map[string]string{FullPCPUsOnly: ""} }), "expected true or false"},
		{"short value", "B", static(func(c *Config) { c.Options = map[string]string{FullPCPUsOnly: "T"} }), ""},
		{"alpha option without alpha", "B", static(func(c *Config) {
			c.Options, c.Features.AlphaOptions = optionMap(AlignBySocket), false
		}), "alpha option"},
		{"beta option without beta", "B", static(func(c *Config) {
			c.Options, c.Features.BetaOptions = optionMap(DistributeAcrossNUMA), false
		}), "beta option"},
		{"false still needs alpha", "B", static(func(c *Config) {
			c.Options, c.Features.AlphaOptions = map[string]string{AlignBySocket: "false"}, false
		}), "alpha option"},
		{"whole cores and by number", "B", options(FullPCPUsOnly + " " + DistributeAcrossCores), "cannot be used together"},
		{"nodes and by number", "B", options(DistributeAcrossNUMA + " " + DistributeAcrossCores), "cannot be used together"},
		{"caches and by number", "B", options(PreferUncores + " " + DistributeAcrossCores), "cannot be used together"},
		{"caches and nodes", "B", options(PreferUncores + " " + DistributeAcrossNUMA), "cannot be used together"},
		{"false does not count", "B", static(func(c *Config) {
			c.Options = map[string]string{PreferUncores: "1", DistributeAcrossNUMA: "0"}
		}), ""},
		{"sockets go with all", "C", options(AlignBySocket + " " + FullPCPUsOnly + " " + DistributeAcrossNUMA + " " + StrictReservation),
			""},
		{"sockets and one node only", "C", static(func(c *Config) {
			c.Options, c.TopologyPolicy = optionMap(AlignBySocket), singleNUMANode
		}), singleNUMANode},
		{"sockets within a node", "spanned", options(AlignBySocket), "one NUMA node per socket"},
	} {
		topo := machines[row.machine]
		if row.machine == "spanned" {
			topo = machinetest.Build("1n2s4c2t")
		}
		m, err := New(row.config, topo)
		var e *errdefs.Error
		switch {
		case row.wrong == "" && err != nil:
			t.Errorf("%s: %v", row.name, err)
		case row.wrong == "":
			if want := row.config.Policy; want != "" && m.Describe().Policy != want {
				t.Errorf("%s: got %q", row.name, m.Describe().Policy)
			}
		case err == nil || !strings.Contains(err.Error(), row.wrong):
			t.Errorf("%s: got %v, want %q", row.name, err, row.wrong)
		case !errors.As(err, &e) || e.Class != errdefs.Invalid || len(e.Fields) == 0:
			t.Errorf("%s: %#v has no class Invalid or no fields", row.name, err)
		}
	}
}

func TestAllocatable(t *testing.T) {
	t.Parallel()
	n := newNode(t, machines["B"], "0,8", StrictReservation)
	if n.Allocatable().String() != "1-7,9-15" || n.Reserved().String() != "0,8" || !n.StrictReservation() {
		t.Errorf("got %s, %s, %v", n.Allocatable(), n.Reserved(), n.StrictReservation())
	}
	if got := n.Describe().Options[StrictReservation]; got != "true" {
		t.Errorf("options: got %q", got)
	}
	none, err := New(Config{}, machines["B"])
	if err != nil || !none.Allocatable().IsEmpty() || !none.Reserved().IsEmpty() {
		t.Errorf("none: %v, %v", none, err)
	}
}
