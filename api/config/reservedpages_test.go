package config

import (
	"strings"
	"testing"

	"github.com/berthd/berth/managers/machine/machinetest"
	"github.com/berthd/berth/managers/managerset"
	"github.com/berthd/berth/managers/workload"
)

// TestReservedHugePages: huge pages are reserved of NUMA nodes alone, under both policies, and all managers agree on what is left.
func TestReservedHugePages(t *testing.T) {
	t.Parallel()
	const memories = "reserved: {system: {memory: 1Gi}, evictionHard: {}}\nmemory: {policy: Static, reserved: [{numaNode: 0, limits: {memory: 1Gi"
	m := machinetest.Build("1s2n4c1t,mem=4Gi,huge=2Mi:8,huge=1Gi:1")
	for name, row := range map[string]struct {
		text string
		// allocatable are the pages of 2 MiB of the node and of NUMA nodes 0 and 1, in MiB; of the policy None there are no such nodes.
		allocatable [3]int64
		want        string // of the error
	}{
		"none":           {memories + "}}]}", [3]int64{32, 16, 16}, ""},
		"on one":         {memories + ", hugepages-2Mi: 4Mi}}]}", [3]int64{28, 12, 16}, ""},
		"all":            {memories + ", hugepages-2Mi: 16Mi}}, {numaNode: 1, limits: {hugepages-2Mi: 16Mi}}]}", [3]int64{}, ""},
		"policy None":    {"memory: {reserved: [{numaNode: 1, limits: {hugepages-2Mi: 6Mi}}]}", [3]int64{26}, ""},
		"too many":       {memories + "}}, {numaNode: 1, limits: {hugepages-2Mi: 18Mi}}]}", [3]int64{}, `memory.reserved[1].limits["hugepages-2Mi"]: 18Mi are reserved, and NUMA node 1 has 16Mi`},
		"no such size":   {memories + ", hugepages-64Ki: 64Ki}}]}", [3]int64{}, `memory.reserved[0].limits["hugepages-64Ki"]: 64Ki are reserved, and NUMA node 0 has 0`},
		"no such node":   {"memory: {reserved: [{numaNode: 2, limits: {hugepages-2Mi: 2Mi}}]}", [3]int64{}, "NUMA node 2 does not exist"},
		"part of a page": {memories + ", hugepages-2Mi: 3Mi}}]}", [3]int64{}, `memory.reserved[0].limits["hugepages-2Mi"]: expected a whole number of pages of 2Mi`},
		"no size":        {memories + ", hugepages-large: 3Mi}}]}", [3]int64{}, "no valid page size"},
		"twice":          {memories + ", hugepages-2Mi: 2Mi}}, {numaNode: 0, limits: {hugepages-2Mi: 2Mi}}]}", [3]int64{}, "reserved twice"},
		"of the whole node": {strings.Replace(memories, "memory: 1Gi}", "memory: 1Gi, hugepages-2Mi: 4Mi}", 1) + "}}]}", [3]int64{},
			"huge pages are reserved by NUMA node, in memory.reserved"},
		"as the kubelet": {memories + ", hugepages-2Mi: 4Mi}}]}\nfeatures: {asKubelet: true}", [3]int64{},
			"the reservations of hugepages-2Mi by NUMA node are not equal"},
	} {
		c := Default()
		if err := c.ApplyBerth("test", []byte("apiVersion: "+APIVersion+"\nkind: "+Kind+"\n"+row.text)); err != nil {
			t.Fatal(err)
		}
		set, err := func() (*managerset.Set, error) {
			if err := c.Validate(); err != nil {
				return nil, err
			}
			if err := c.CheckReservedPages(m); err != nil {
				return nil, err
			}
			cfg, err := c.ManagerSet(m)
			if err != nil {
				return nil, err
			}
			return managerset.New(cfg, m)
		}()
		if err != nil || row.want != "" {
			if err == nil || row.want == "" || !strings.Contains(err.Error(), row.want) {
				t.Errorf("%s: %v, want %q", name, err, row.want)
			}
			continue
		}
		got := [3]int64{set.Node.Allocatable()["hugepages-2Mi"] >> 20}
		for _, n := range set.Rules.Memory {
			if n.Resource == "hugepages-2Mi" {
				got[1+n.Node] = int64(n.Allocatable >> 20)
			}
		}
		reserved := set.Node.Reservation()["hugepages-2Mi"]
		if got != row.allocatable || reserved != 32<<20-row.allocatable[0]<<20 || set.Node.Allocatable()["hugepages-1Gi"] != 2<<30 {
			t.Errorf("%s: %d MiB allocatable, want %d, and %s reserved", name, got, row.allocatable, workload.Memory.Text(reserved))
		}
	}
}

// TestReservedPagesThatAreGone: a machine that loses reserved pages while berthd runs has none for pods.
func TestReservedPagesThatAreGone(t *testing.T) {
	t.Parallel()
	c := Default()
	c.Memory.Policy, c.Memory.AllowUnreserved, c.Reserved.EvictionHard = "Static", true, map[string]string{}
	c.Memory.Reserved = []ReservedMemory{{NUMANode: 0, Limits: map[string]string{"hugepages-2Mi": "8Mi"}}}
	m := machinetest.Build("1s2n4c1t,mem=4Gi,huge=2Mi:2")
	cfg, err := c.ManagerSet(m)
	if err != nil {
		t.Fatal(err)
	}
	set, err := managerset.New(cfg, m)
	if err != nil {
		t.Fatal(err)
	}
	if got := set.Node.Allocatable()["hugepages-2Mi"]; got != 0 {
		t.Errorf("%d bytes are allocatable", got)
	}
	if w := set.Memory.Warnings(); len(w) != 1 || !strings.Contains(w[0], "NUMA node 0 has nothing of hugepages-2Mi") {
		t.Errorf("warnings %q", w)
	}
}

// TestHugePagesOfAKubelet: a kubelet with the policy Static refuses huge pages in its reservedMemory, and without it ignores them.
func TestHugePagesOfAKubelet(t *testing.T) {
	t.Parallel()
	const file = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\nreservedMemory: [{numaNode: 0, limits: {memory: 1Gi, hugepages-2Mi: 4Mi}}]\n"
	c := Default()
	if _, err := c.ApplyKubelet("k", []byte(file+"memoryManagerPolicy: Static\n")); err == nil ||
		!strings.Contains(err.Error(), `k: reservedMemory[0].limits["hugepages-2Mi"]: `) {
		t.Errorf("Static: %v", err)
	}
	c = Default()
	notes, err := c.ApplyKubelet("k", []byte(file))
	if err != nil || len(notes) != 1 || !strings.Contains(notes[0], "reservedMemory has no effect") {
		t.Errorf("%q, %v", notes, err)
	}
	if got := c.Memory.Reserved; len(got) != 1 || len(got[0].Limits) != 1 || got[0].Limits["memory"] != "1Gi" {
		t.Errorf("reserved %v", got)
	}
	// Node allocatable is that of the kubelet.
	if n, err := c.NodeConfig(); err != nil || len(n.ReservedPages) > 0 {
		t.Errorf("%v, %v", n.ReservedPages, err)
	}
}
