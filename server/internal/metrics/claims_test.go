package metrics_test

import (
	"testing"

	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/ledger/ledgertest"
	"github.com/berthd/berth/managers/machine/machinetest"
	"github.com/berthd/berth/managers/workload"
	"github.com/berthd/berth/server/internal/deviceplugin/registry"
	"github.com/berthd/berth/server/internal/metrics"
	"github.com/berthd/berth/server/internal/system"
)

// TestResourceClaims counts what claims may have and hold on each NUMA node, apart from pods.
func TestResourceClaims(t *testing.T) {
	t.Parallel()
	rules := ledger.Rules{Machine: machinetest.Build("2n2c,mem=1Gi"), ReservedCPUs: cpuset.Of(0, 2, 3), ClaimCPUs: cpuset.Of(2, 3)}
	for node := range 2 {
		n := ledger.NodeMemory{Node: node, Resource: "memory", Total: 1 << 30, Allocatable: 512 * mi}
		rules.Memory = append(rules.Memory, n)
		if n.Node == 1 {
			rules.ClaimMemory = append(rules.ClaimMemory, n)
		}
	}
	h := &fixture{set: metrics.New(), ledger: ledgertest.New(t, rules)}
	h.set.Start(system.Sources{
		View: h.ledger.View, Settings: func() system.Settings { return system.Settings{} },
		Sockets: func() []registry.Socket { return nil },
	})
	if _, err := h.ledger.Update(t.Context(), func(d *ledger.Draft) error {
		claim := ledgertest.With(ledgertest.Pod("claim", "claim"), ledgertest.Exclusive("claim", "3"),
			ledgertest.Memory("claim", "memory", "1", 128*mi))
		claim.Pod.ResourceClaim = &workload.ResourceClaim{Devices: []workload.ClaimDevice{{Node: 1}}}
		d.PutPod(claim)
		d.PutPod(ledgertest.With(ledgertest.Pod("pod", "c"), ledgertest.Exclusive("c", "1"), ledgertest.Memory("c", "memory", "1", 64*mi)))
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	h.expect(t,
		"berth_resource_claims 1",
		`berth_resource_claim_cpus{numa_node="1",state="held"} 1`, `berth_resource_claim_cpus{numa_node="1",state="free"} 1`,
		`berth_resource_claim_memory_bytes{numa_node="1",resource_name="memory",state="held"} 1.34217728e+08`,
		`berth_resource_claim_memory_bytes{numa_node="1",resource_name="memory",state="free"} 4.02653184e+08`,
	)
}
