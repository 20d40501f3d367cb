package metrics_test

import (
	"testing"

	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/ledger/ledgertest"
	"github.com/berthd/berth/managers/machine/machinetest"
	"github.com/berthd/berth/managers/workload"
	"github.com/berthd/berth/server/internal/deviceplugin/registry"
	"github.com/berthd/berth/server/internal/metrics"
	"github.com/berthd/berth/server/internal/system"
)

// TestReservedMemory: with the feature, the gauges have what is guaranteed.
func TestReservedMemory(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		tiered bool
		want   []string
	}{
		{tiered: true, want: []string{
			"kubelet_memory_qos_node_memory_min_bytes 1.048576e+06", "kubelet_memory_qos_node_memory_low_bytes 4096",
		}},
		{want: []string{"kubelet_memory_qos_node_memory_min_bytes 0", "kubelet_memory_qos_node_memory_low_bytes 0"}},
	} {
		h := &fixture{set: metrics.New(), ledger: ledgertest.New(t, ledger.Rules{Machine: machinetest.Build("4c")})}
		h.set.Start(system.Sources{
			View:     h.ledger.View,
			Settings: func() system.Settings { return system.Settings{MemoryQoS: true, TieredReservation: c.tiered} },
			Sockets:  func() []registry.Socket { return nil },
		})
		if _, err := h.ledger.Update(t.Context(), func(d *ledger.Draft) error {
			for class, bytes := range map[workload.QoSClass]int64{workload.Guaranteed: 1 << 20, workload.Burstable: 4096,
				workload.BestEffort: 0} {
				p := ledgertest.Pod(string(class), "c")
				p.QoS, p.Pod.QoS = class, class
				p.Pod.Containers[0].Requests = workload.Quantities{workload.Memory: bytes}
				d.PutPod(p)
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		h.expect(t, c.want...)
	}
}
