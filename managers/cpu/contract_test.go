package cpu

import (
	"testing"

	"github.com/berthd/berth/managers/hint/hinttest"
	"github.com/berthd/berth/managers/machine/machinetest"
	"github.com/berthd/berth/managers/workload"
)

func TestContract(t *testing.T) {
	t.Parallel()
	for _, row := range []struct{ name, shape, options string }{
		{"plain", "2s4c2t", ""},
		{"whole cores", "2s2n2l4c2t", FullPCPUsOnly + " " + PreferUncores},
		{"spread over nodes", "2s4n4c2t", DistributeAcrossNUMA + " " + AlignBySocket + " " + StrictReservation},
		{"rules", "2s5n2c2t", DistributeAcrossCores},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			hinttest.Run(t, func() hinttest.Setup {
				n := newNode(t, machinetest.Build(row.shape), "0", row.options)
				if err := n.admit(pod("earlier", "init:i=2", "c=2"), on(1)); err != nil {
					t.Fatal(err)
				}
				return hinttest.Setup{Provider: n, View: n.View(), Pods: []*workload.Pod{
					pod("one", "c=2"),
					pod("reuse", "init:i=4", "sidecar:s=2", "a=2", "b=500m"),
					pod("huge", "c=1000"),
					pod("odd", "c=3"),
					whole(pod("whole", "init:i=2", "a=2", "b=2"), "4"),
				}}
			})
		})
	}
}
