package managerset_test

import (
	"testing"
	"time"

	"github.com/berthd/berth/managers/cpu"
	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/device"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/fit"
	"github.com/berthd/berth/managers/hint"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/machine"
	"github.com/berthd/berth/managers/machine/machinetest"
	"github.com/berthd/berth/managers/managerset"
	"github.com/berthd/berth/managers/memory"
	"github.com/berthd/berth/managers/topology"
	"github.com/berthd/berth/managers/workload"
)

const mi = 1 << 20

// on makes a set whose policy names NUMA node 0.
func on(m *machine.Topology) (*managerset.Set, error) {
	return managerset.New(managerset.Config{
		CPU: cpu.Config{Policy: cpu.PolicyStatic, ReservedCPUs: cpuset.Of(0)},
		Memory: memory.Config{
			Policy: memory.PolicyStatic, Reserved: []memory.Reservation{{Node: 0, Resource: "memory", Bytes: 100 * mi}},
			SystemReserved: map[workload.Resource]uint64{"memory": 100 * mi},
		},
		Topology: topology.Config{Policy: topology.Restricted, Scope: hint.ContainerScope},
		Digest:   "one",
	}, m)
}

// TestSetOfThePast: a state of the past is on the machine of that time, with its CPUs, NUMA nodes and
// memory.
func TestSetOfThePast(t *testing.T) {
	t.Parallel()
	big, small := machinetest.Build("1s4n4c1t,mem=1Gi,huge=2Mi:8"), machinetest.Build("1s1n4c1t,mem=512Mi")
	for _, row := range [][2]*machine.Topology{{big, small}, {small, big}} {
		past, present := row[0], row[1]
		first, err := on(present)
		if err != nil {
			t.Fatal(err)
		}
		s := activate(t, first)
		view := ledger.Empty(ledger.Rules{Machine: past, ConfigDigest: "one", ReservedCPUs: cpuset.Of(0)})
		made := 0
		build := func() (*managerset.Set, error) { made++; return on(past) }
		set, err := s.At(view, build)
		if err != nil {
			t.Fatal(err)
		}
		for _, n := range fit.Nodes(view, set, device.NewInventory(nil, time.Time{}).Snapshot()) {
			for _, r := range n.Resources {
				if r.Held > 0 || !r.Aligned || r.Name == "memory" && r.Capacity != past.Nodes()[0].MemoryBytes {
					t.Errorf("node %d: %+v", n.ID, r)
				}
			}
		}
		if set.Bus == nil {
			t.Error("the set has no bus")
		}
		if again, err := s.At(view, build); err != nil || again != set || made != 1 {
			t.Errorf("another call makes the set anew: %d times, %v", made, err)
		}
		if err := s.SetExternal([]hint.Entry{{Provider: external{"nic"}, Mode: hint.Required}}); err != nil {
			t.Fatal(err)
		}
		if again, err := s.At(view, build); err != nil || again == set {
			t.Errorf("the set lacks a provider: %v", err)
		}
		for range 10 { // sets for other moments replace it
			other := ledger.Empty(ledger.Rules{Machine: machinetest.Build("2c", machinetest.Memory(0, 1<<30))})
			if _, err := s.At(other, func() (*managerset.Set, error) { return on(other.Machine()) }); err != nil {
				t.Fatal(err)
			}
		}
		made = 0
		if _, err := s.At(view, build); err != nil || made != 1 {
			t.Errorf("the set is kept for ever: made %d times, %v", made, err)
		}
		// The same machine needs no other set.
		for _, m := range []*machine.Topology{present, machinetest.Build(present.Snapshot().Name)} {
			same := ledger.Empty(ledger.Rules{Machine: m, ConfigDigest: "two"})
			got, err := s.At(same, func() (*managerset.Set, error) { t.Error("a set is made"); return on(m) })
			if err != nil || got != s.Of(first.Rules) {
				t.Errorf("the same machine: %v", err)
			}
		}
		// The policy of today may not fit the machine of that time.
		noNode := machinetest.Build("2c", machinetest.Memory(0, 1<<30), machinetest.NodeIDs(1))
		_, err = s.At(ledger.Empty(ledger.Rules{Machine: noNode}), func() (*managerset.Set, error) { return on(noNode) })
		if errdefs.ClassOf(err) != errdefs.Precondition {
			t.Errorf("another node: %v", err)
		}
	}
}
