package ledger_test

import (
	"testing"

	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/ledger/ledgertest"
	"github.com/berthd/berth/managers/machine/machinetest"
)

// TestShortageText: the nodes, the amounts, who holds them, why the rest is not available, and whether the nodes could ever give it.
func TestShortageText(t *testing.T) {
	t.Parallel()
	l := ledgertest.New(t, ledger.Rules{Machine: machinetest.Build("2s4n2c1t")})
	if _, err := l.Update(t.Context(), func(d *ledger.Draft) error {
		pod := ledgertest.Pod("u-1", "app")
		pod.Pod.Namespace, pod.Pod.Name = "shop", "web"
		d.PutPod(pod)
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	for _, row := range []struct {
		s    ledger.Shortage
		want string
	}{
		{ledger.Shortage{Resource: "cpu", Need: 4, Free: 2}, "cpu: 4 needed, 2 free"},
		{ledger.Shortage{Resource: "cpu", Nodes: "1", Need: 4, Free: 2, Held: 3,
			Holders:     []ledger.Owner{{Pod: "u-1", Container: "app"}, {Pod: "u-1"}},
			MoreHolders: 2, Withheld: 1, Why: "reserved"},
			"cpu on NUMA node 1: 4 needed, 2 free, 3 held by shop/web/app, shop/web and 2 more, 1 reserved"},
		{ledger.Shortage{Resource: "a.com/gpu", Nodes: "0-1", Need: 2, Free: 1, Held: 1},
			"a.com/gpu on NUMA nodes 0-1: 2 needed, 1 free, 1 held"},
		{ledger.Shortage{Resource: "memory", Nodes: "0", Need: 4, Holders: []ledger.Owner{{Pod: "u-1"}}},
			"memory on NUMA node 0: 4 needed, 0 free, held by shop/web"},
		{ledger.Shortage{Resource: "a.com/nic", Nodes: "0,2", Need: 1, Why: "the plugin is away"},
			"a.com/nic on NUMA nodes 0,2: 1 needed, 0 free, the plugin is away"},
		{ledger.Shortage{Resource: "a.com/nic", Need: 1, Withheld: 3}, "a.com/nic: 1 needed, 0 free, 3 withheld"},
		{ledger.Shortage{Resource: "memory", Need: 6 << 30, Free: 5<<30 + 1, Held: 1536}, "memory: 6Gi needed, 5Gi free, 1.5Ki held"},
		// Rounded, both would be 5Gi.
		{ledger.Shortage{Resource: "memory", Need: 5<<30 + 1<<20, Free: 5 << 30}, "memory: 5121Mi needed, 5Gi free"},
		{ledger.Shortage{Resource: "hugepages-2Mi", Need: 4 << 20}, "hugepages-2Mi: 4Mi needed, 0 free"},
		{ledger.Shortage{Resource: "cpu", Nodes: "1", Need: 4, Held: 3, Holders: []ledger.Owner{{Pod: "u-1"}}},
			"cpu on NUMA node 1: 4 needed, 0 free, all 3 held by shop/web"},
		{ledger.Shortage{Resource: "cpu", Nodes: "1", Need: 4, Held: 1, Holders: []ledger.Owner{{Pod: "gone"}}},
			"cpu on NUMA node 1: 4 needed, 0 free, 1 held by gone"},
		{ledger.Shortage{Resource: "a.com/gpu", Nodes: "1", Need: 1, Structural: true},
			"a.com/gpu on NUMA node 1: 1 needed, none there; this can never fit on this NUMA node"},
		{ledger.Shortage{Resource: "cpu", Nodes: "0-1", Need: 8, Free: 5, Held: 1, Withheld: 2, Why: "reserved", Structural: true},
			"cpu on NUMA nodes 0-1: 8 needed, 5 free, 1 held, 2 reserved; this can never fit on these NUMA nodes"},
		{ledger.Shortage{Resource: "cpu", Nodes: "0-7", Need: 80, Free: 5, Structural: true},
			"cpu on NUMA nodes 0-7: 80 needed, 5 free; this can never fit on this machine"},
		{ledger.Shortage{Resource: "pods", Need: 1, Structural: true}, "pods: 1 needed, none there; this can never fit on this machine"},
	} {
		if got := row.s.Text(l.View()); got != row.want {
			t.Errorf("got  %s\nwant %s", got, row.want)
		}
	}
}
