package managerset_test

import (
	"fmt"
	"testing"

	"pgregory.net/rapid"

	"github.com/berthd/berth/managers/admission"
	"github.com/berthd/berth/managers/cpu"
	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/live"
	"github.com/berthd/berth/managers/machine/machinetest"
	"github.com/berthd/berth/managers/managerset"
	"github.com/berthd/berth/managers/memory"
	"github.com/berthd/berth/managers/workload"
)

// TestPublishedCPUsAreAdmitted: a claim gets as many CPUs of a NUMA node as are published for it, in steps of a core with
// full-pcpus-only, on machines with threads whose cores are cut by CPUs that are offline, reserved, or those of pods.
func TestPublishedCPUsAreAdmitted(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		var offline, claims cpuset.Builder
		for id := 1; id < 16; id++ { // CPU 0 is the system's
			switch rapid.SampledFrom([]string{"offline", "claims", "claims", "claims", "reserved"}).Draw(t, fmt.Sprint("CPU ", id)) {
			case "offline":
				offline.Add(id)
			case "claims":
				claims.Add(id)
			}
		}
		if claims.Set().IsEmpty() {
			t.Skip("no CPU")
		}
		m := machinetest.Build("2s4c2t", machinetest.Memory(0, 16*gibi), machinetest.Memory(1, 16*gibi),
			machinetest.Offline(offline.Set().String()))
		one := rapid.Bool().Draw(t, "one pool")
		set, err := divided(m, func(c *managerset.Config) {
			c.CPU.Options = map[string]string{cpu.FullPCPUsOnly: fmt.Sprint(rapid.Bool().Draw(t, "full cores"))}
			c.Memory.Reserved = c.Memory.Reserved[:2]
			c.Memory.SystemReserved = map[workload.Resource]uint64{workload.Memory: 10 * gibi}
			delete(c.Claims.Memory[0], "hugepages-1Gi")
			c.Claims.CPUs, c.CPU.ReservedCPUs = claims.Set(), claims.Set().Union(cpuset.Of(0))
			if one {
				c.CPU.ReservedCPUs = m.CPUs().Minus(claims.Set())
				c.Memory.Reserved = []memory.Reservation{{Node: 0, Resource: workload.Memory, Bytes: gibi},
					{Node: 1, Resource: workload.Memory, Bytes: gibi}}
				c.Memory.SystemReserved = map[workload.Resource]uint64{workload.Memory: 2 * gibi}
				c.Claims = &managerset.Claims{OnePool: true}
			}
		})
		if err != nil {
			t.Skip(err) // a NUMA node without CPUs for claims
		}
		trial := live.NewTrial(admission.Config{}, ledger.Empty(set.Rules), set.Bus, set.Topology).ForClaims(set.For)
		for i, cpus := range rapid.SliceOfN(rapid.IntRange(1, 3), 0, 3).Draw(t, "pods") {
			if _, err := trial.Admit(t.Context(), classic(fmt.Sprint("pod-", i), cpus, gibi)); err != nil {
				t.Fatal(err)
			}
		}
		for _, n := range set.ClaimNodes(trial.View()) {
			cpus := n.CPUs.Len() / n.Step * n.Step
			if cpus == 0 {
				continue
			}
			v, err := trial.Admit(t.Context(), claim(fmt.Sprint("claim-", n.Node), n.Node, cpus, gibi))
			if err != nil || v.Outcome != admission.Admitted {
				t.Errorf("NUMA node %d has CPUs %s for claims in steps of %d: %s %s, %v", n.Node, n.CPUs, n.Step, v.Reason, v.Message, err)
			}
		}
	})
}
