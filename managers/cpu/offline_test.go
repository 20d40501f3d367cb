package cpu

import (
	"strings"
	"testing"

	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/ledger"
)

// Offline CPUs are not allocated, whole cores included; once they are back
// they are given again.
func TestOfflineCPUsAreNotGiven(t *testing.T) {
	t.Parallel()
	n := newNode(t, machines["A"], "0", "") // cores of CPUs i and i+4
	offline := func(list string) {
		t.Helper()
		topo, err := machines["A"].Without(set(list))
		if err != nil {
			t.Fatal(err)
		}
		if n.Manager, err = New(Config{Policy: PolicyStatic, Features: allFeatures, ReservedCPUs: set("0")}, topo); err != nil {
			t.Fatal(err)
		}
		if _, err := n.SetRules(t.Context(), ledger.Rules{Machine: topo, ReservedCPUs: n.Reserved()}); err != nil {
			t.Fatal(err)
		}
	}
	offline("1,5")
	if err := n.admit(pod("p", "c=2"), anywhere); err != nil {
		t.Fatal(err)
	}
	if got := n.held("p", "c"); got != "2,6" {
		t.Errorf("p got %s", got)
	}
	offline("1,3-5,7")
	if err := n.admit(pod("q", "c=1"), anywhere); err == nil {
		t.Errorf("q got %s", n.held("q", "c"))
	}
	offline("")
	if err := n.admit(pod("q", "c=2"), anywhere); err != nil || n.held("q", "c") != "1,5" {
		t.Errorf("q got %s, %v", n.held("q", "c"), err)
	}
	if shared := n.View().SharedCPUs(); shared != cpuset.Of(0, 3, 4, 7) {
		t.Errorf("shared are %s", shared)
	}
}

// TestReservedOffline: reserved CPUs that are offline stay reserved, those that are not there are
// refused. What an earlier state of the machine reserved of an amount is kept as long as one of
// them is online.
func TestReservedOffline(t *testing.T) {
	t.Parallel()
	topo, err := machines["A"].Without(set("0,5"))
	if err != nil {
		t.Fatal(err)
	}
	for name, tt := range map[string]struct {
		cfg               Config
		reserved, nothing string
	}{
		"listed":                    {cfg: Config{ReservedCPUs: set("0,4")}, reserved: "0,4"},
		"listed and not there":      {cfg: Config{ReservedCPUs: set("4,9")}, nothing: "reservedSystemCPUs"},
		"an amount":                 {cfg: Config{ReservedMilliCPU: 2000}, reserved: "1,4"},
		"kept":                      {cfg: Config{ReservedMilliCPU: 2000, KeptReserved: set("0,4")}, reserved: "0,4"},
		"kept, some are not there":  {cfg: Config{ReservedMilliCPU: 3000, KeptReserved: set("0,4,9")}, reserved: "0,4,9"},
		"kept, few are online":      {cfg: Config{ReservedMilliCPU: 8000, KeptReserved: set("0-7")}, reserved: "0-7"},
		"kept, less than wanted":    {cfg: Config{ReservedMilliCPU: 3000, KeptReserved: set("0,4")}, reserved: "0-1,4"},
		"kept, hardly any is left":  {cfg: Config{ReservedMilliCPU: 9000, KeptReserved: set("0,4")}, reserved: "0-4,6-7"},
		"listed, one was removed":   {cfg: Config{ReservedCPUs: set("4,9"), KeptReserved: set("4,9")}, reserved: "4,9"},
		"listed, and is back":       {cfg: Config{ReservedCPUs: set("4,7"), KeptReserved: set("4")}, reserved: "4,7"},
		"listed, all are offline":   {cfg: Config{ReservedCPUs: set("0,5"), KeptReserved: set("0,5")}, reserved: "0,5"},
		"none of the kept is there": {cfg: Config{ReservedMilliCPU: 1000, KeptReserved: set("0")}, reserved: "1"},
		"isolated too":              {cfg: Config{ReservedMilliCPU: 1000, AlsoReserved: set("5-7,30")}, reserved: "1,5-7"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			tt.cfg.Policy, tt.cfg.Features = PolicyStatic, allFeatures
			m, err := New(tt.cfg, topo)
			switch {
			case tt.nothing != "":
				if err == nil || !strings.Contains(err.Error(), tt.nothing) {
					t.Errorf("%v", err)
				}
			case err != nil || m.Reserved().String() != tt.reserved || m.Allocatable() != topo.CPUs().Minus(set(tt.reserved)):
				t.Errorf("%v, %v", m, err)
			}
		})
	}
}
