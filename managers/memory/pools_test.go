package memory

import (
	"strings"
	"testing"

	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/ledger/ledgertest"
	"github.com/berthd/berth/managers/machine/machinetest"
	"github.com/berthd/berth/managers/numa"
	"github.com/berthd/berth/managers/workload"
)

// TestCheckPools: two nodes of 1 GiB each, with 64 huge pages of 2 MiB on node 0, of which a pod has 16 and the system 8.
// Pods have 512 MiB of memory on node 1.
func TestCheckPools(t *testing.T) {
	t.Parallel()
	const mi = uint64(1) << 20
	machine := machinetest.Build("2s1n2c", machinetest.Memory(0, 1<<30), machinetest.Memory(1, 1<<30), machinetest.HugePages(0, 2048, 64),
		machinetest.HugePages(1, 2048, 0))
	rules := ledger.Rules{Machine: machine, Memory: []ledger.NodeMemory{
		{Node: 0, Resource: "hugepages-2Mi", Total: 128 * mi, Allocatable: 112 * mi}, {Node: 1, Resource: "hugepages-2Mi"},
		{Node: 0, Resource: "memory", Total: 1 << 30, Allocatable: 896 * mi},
		{Node: 1, Resource: "memory", Total: 1 << 30, Allocatable: 1 << 30},
	}}
	d := ledger.NewDraft(ledgertest.New(t, rules).View())
	block := func(resource string, node int, bytes uint64) ledger.Claim {
		return ledger.Claim{Owner: ledger.Owner{Pod: "p", Container: "c"}, Provider: Name, Resource: resource,
			Memory: []ledger.Block{{Nodes: numa.Of(node), Bytes: bytes}}}
	}
	d.PutPod(ledgertest.With(ledgertest.Pod("p", "c"), block("hugepages-2Mi", 0, 32*mi), block("memory", 1, 512*mi)))
	requested := workload.Quantities{"hugepages-2Mi": int64(40 * mi)} // also of pods without pinned memory
	for name, tt := range map[string]struct {
		pools []Pool
		class errdefs.Class
		text  string
	}{
		"more":                 {[]Pool{{0, 2048, 100}}, 0, ""},
		"as many as there are": {[]Pool{{0, 2048, 64}}, 0, ""},
		"as few as possible":   {[]Pool{{0, 2048, 24}}, 0, ""},
		"fewer than pods have": {[]Pool{{0, 2048, 23}}, errdefs.Precondition,
			"NUMA node 0 would have 46Mi of hugepages-2Mi, and pods have 32Mi there, and 16Mi are reserved"},
		"fewer than all pods request": {[]Pool{{0, 2048, 27}}, errdefs.Precondition, "all NUMA nodes together would have 54Mi"},
		"those of another node count": {[]Pool{{0, 2048, 24}, {1, 2048, 100}}, 0, ""},
		"more than there is memory":   {[]Pool{{1, 2048, 513}}, errdefs.Invalid, "room for 512 such pages"},
		"memory that pods have": {[]Pool{{1, 2048, 257}}, errdefs.Precondition,
			"would take 514Mi more of NUMA node 1, which has 1Gi of memory for pods, and pods have 512Mi of it"},
		"the rest of the memory": {[]Pool{{1, 2048, 256}}, 0, ""},
		"no such node":           {[]Pool{{2, 2048, 1}}, errdefs.Invalid, "pools[0].numa_node: the machine has no NUMA node 2"},
		"no such size":           {[]Pool{{0, 4, 1}}, errdefs.Invalid, "it has the sizes 2Mi"},
		"a large size":           {[]Pool{{0, 1 << 62, 1}}, errdefs.Invalid, "pools[0].page_size_bytes"},
		"twice":                  {[]Pool{{0, 2048, 64}, {0, 2048, 65}}, errdefs.Invalid, "pools[1].numa_node: NUMA node 0 is twice"},
		"none":                   {nil, errdefs.Invalid, "expected at least one"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			reserved := workload.Quantities{}
			if name == "fewer than all pods request" {
				reserved["hugepages-2Mi"] = int64(16 * mi)
			}
			err := CheckPools(d.View(), tt.pools, requested, reserved)
			if tt.text == "" {
				if err != nil {
					t.Error(err)
				}
			} else if errdefs.ClassOf(err) != tt.class || !strings.Contains(err.Error(), tt.text) {
				t.Errorf("%v: %v", errdefs.ClassOf(err), err)
			}
		})
	}
}

// TestPoolsKeepMemory: two nodes of 10 GiB without huge pages.
func TestPoolsKeepMemory(t *testing.T) {
	t.Parallel()
	const gi = uint64(1) << 30
	m := machinetest.Build("2s1n2c", machinetest.Memory(0, 10*gi), machinetest.Memory(1, 10*gi), machinetest.HugePages(0, 2048, 0),
		machinetest.HugePages(1, 2048, 0))
	pinned := []ledger.NodeMemory{
		{Node: 0, Resource: "memory", Total: 10 * gi, Allocatable: 8 * gi},
		{Node: 1, Resource: "memory", Total: 10 * gi, Allocatable: 10 * gi},
	}
	gib := func(n uint64) workload.Quantities { return workload.Quantities{workload.Memory: int64(n * gi)} }
	for name, row := range map[string]struct {
		rules               []ledger.NodeMemory
		pages               uint64 // GiB on node 0
		requested, reserved workload.Quantities
		text                string
	}{
		"what is reserved on the node": {pinned, 9, nil, gib(2), "would take 9Gi more of NUMA node 0, which has 8Gi of memory for pods"},
		"what is not":                  {pinned, 8, nil, gib(2), ""},
		"what pods request anywhere":   {nil, 9, gib(12), nil, "would have 11Gi of memory left, and pods request 12Gi"},
		"what they do not":             {nil, 8, gib(12), nil, ""},
		"and what is reserved":         {nil, 8, gib(11), gib(2), "and 2Gi are reserved"},
		"fewer":                        {nil, 0, gib(30), nil, ""},
	} {
		v := ledgertest.New(t, ledger.Rules{Machine: m, Memory: row.rules}).View()
		err := CheckPools(v, []Pool{{0, 2048, row.pages * 512}}, row.requested, row.reserved)
		if row.text == "" && err != nil || row.text != "" && (errdefs.ClassOf(err) != errdefs.Precondition ||
			!strings.Contains(err.Error(), row.text)) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
