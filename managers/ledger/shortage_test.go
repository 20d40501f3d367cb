package ledger

import "testing"

// TestShortageText: the nodes, the amounts, who holds them, and why the rest is not available.
func TestShortageText(t *testing.T) {
	t.Parallel()
	name := func(uid string) string { return map[string]string{"u-1": "shop/web"}[uid] }
	for _, row := range []struct {
		s    Shortage
		want string
	}{
		{Shortage{Resource: "cpu", Need: 4, Free: 2}, "cpu: 4 needed, 2 free"},
		{Shortage{Resource: "cpu", Nodes: "1", Need: 4, Free: 2, Held: 3, Holders: []Owner{{Pod: "u-1", Container: "app"}, {Pod: "u-1"}},
			MoreHolders: 2, Withheld: 1, Why: "reserved"},
			"cpu on NUMA node 1: 4 needed, 2 free, 3 held by shop/web/app, shop/web and 2 more, 1 reserved"},
		{Shortage{Resource: "a.com/gpu", Nodes: "0-1", Need: 2, Free: 1, Held: 1}, "a.com/gpu on NUMA nodes 0-1: 2 needed, 1 free, 1 held"},
		{Shortage{Resource: "memory", Nodes: "0", Need: 4, Holders: []Owner{{Pod: "u-1"}}}, "memory on NUMA node 0: 4 needed, 0 free, held by shop/web"},
		{Shortage{Resource: "a.com/nic", Nodes: "0,2", Need: 1, Why: "the plugin is away"},
			"a.com/nic on NUMA nodes 0,2: 1 needed, 0 free, the plugin is away"},
		{Shortage{Resource: "a.com/nic", Need: 1, Withheld: 3}, "a.com/nic: 1 needed, 0 free, 3 withheld"},
		{Shortage{Resource: "memory", Need: 6 << 30, Free: 5<<30 + 1, Held: 1536}, "memory: 6Gi needed, 5Gi free, 1.5Ki held"},
		// Rounded, both would be 5Gi.
		{Shortage{Resource: "memory", Need: 5<<30 + 1<<20, Free: 5 << 30}, "memory: 5121Mi needed, 5Gi free"},
		{Shortage{Resource: "hugepages-2Mi", Need: 4 << 20}, "hugepages-2Mi: 4Mi needed, 0 free"},
	} {
		if got := row.s.Text(name); got != row.want {
			t.Errorf("got  %s\nwant %s", got, row.want)
		}
	}
}
