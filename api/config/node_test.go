package config

import (
	"testing"

	"k8s.io/apimachinery/pkg/api/resource"
	"pgregory.net/rapid"

	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/machine/machinetest"
	"github.com/berthd/berth/managers/memory"
	"github.com/berthd/berth/managers/node"
	"github.com/berthd/berth/managers/workload"
)

// kubeletSums adds up reservations and takes them from a capacity as the kubelet
// does: with exact quantities, and a value of what comes out.
func kubeletSums(capacity *resource.Quantity, parts ...string) (sum, rest resource.Quantity) {
	rest = capacity.DeepCopy()
	for _, part := range parts {
		if part != "" {
			sum.Add(resource.MustParse(part))
		}
	}
	rest.Sub(sum)
	if rest.Sign() < 0 {
		rest.Set(0)
	}
	return sum, rest
}

// TestReservationsAddUpAsTheKubeletsDo: whatever fractions are reserved.
func TestReservationsAddUpAsTheKubeletsDo(t *testing.T) {
	t.Parallel()
	m := machinetest.Build("1s16c,mem=64Gi")
	const cpus, memories = 16, 64 << 30
	check := func(t interface{ Fatalf(string, ...any) }, systemCPU, kubeCPU, system, kube, eviction string) {
		c := Default()
		c.CPU.Policy = "static"
		c.Reserved.System = map[string]string{"cpu": systemCPU, "memory": system}
		c.Reserved.Kube = map[string]string{"cpu": kubeCPU, "memory": kube}
		c.Reserved.EvictionHard = map[string]string{}
		if eviction != "" {
			c.Reserved.EvictionHard["memory.available"] = eviction
		}
		cfg, err := c.NodeConfig()
		if err != nil {
			t.Fatalf("%v", err)
		}
		n, err := node.New(cfg, node.Facts{Machine: m})
		reservedCPU, restCPU := kubeletSums(resource.NewQuantity(cpus, resource.DecimalSI), systemCPU, kubeCPU)
		reserved, rest := kubeletSums(resource.NewQuantity(memories, resource.BinarySI), system, kube, eviction)
		_, limit := kubeletSums(resource.NewQuantity(memories, resource.BinarySI), system, kube)
		if tooMuch := reserved.CmpInt64(memories) > 0 || reservedCPU.CmpInt64(cpus) > 0; tooMuch || err != nil {
			if !tooMuch || errdefs.ClassOf(err) != errdefs.Invalid {
				t.Fatalf("reserved %s of cpu and %s of memory: %v", &reservedCPU, &reserved, err)
			}
			return
		}
		manager, err := c.CPUConfig()
		if err != nil {
			t.Fatalf("%v", err)
		}
		onNodes, err := c.MemoryConfig(m)
		if err != nil {
			t.Fatalf("%v", err)
		}
		parts := uint64(0)
		for _, part := range []map[workload.Resource]uint64{onNodes.SystemReserved, onNodes.KubeReserved, onNodes.HardEviction} {
			parts += part[workload.Memory]
		}
		for what, row := range map[string][2]int64{
			"reservation of cpu":    {n.Reservation()[workload.CPU], reservedCPU.MilliValue()},
			"the CPU manager's":     {manager.ReservedMilliCPU, reservedCPU.MilliValue()},
			"allocatable cpu":       {n.Allocatable()[workload.CPU], restCPU.MilliValue()},
			"limit of cpu":          {n.Limit()[workload.CPU], restCPU.MilliValue()},
			"reservation of memory": {n.Reservation()[workload.Memory], reserved.Value()},
			"the memory manager's":  {int64(parts), reserved.Value()},
			"allocatable memory":    {n.Allocatable()[workload.Memory], rest.Value()},
			"limit of memory":       {n.Limit()[workload.Memory], limit.Value()},
		} {
			if row[0] != row[1] {
				t.Fatalf("%s: %d, the kubelet has %d (cpu %s and %s, memory %s, %s and %s)", what, row[0], row[1], systemCPU, kubeCPU,
					system, kube, eviction)
			}
		}
	}
	for _, row := range [][5]string{
		{"500m", "1", "1Gi", "500Mi", "100Mi"},
		{"0.5m", "0.5m", "1.1Gi", "1.1Gi", "1"},    // 2362232012.8 bytes, not 2362232014
		{"1.0005", "999.5m", "1.1Gi", "0.9Gi", ""}, // 2Gi to the byte
		{"0.1m", "0.1m", "0.1", "0.2", "0.3"},
		{"15.9999", "0.1m", "63.9Gi", "0.1Gi", ""}, // all that there is
		{"16", "0.1m", "1Gi", "1Gi", ""},           // too much by little
	} {
		check(t, row[0], row[1], row[2], row[3], row[4])
	}
	cpu := rapid.StringMatching(`[0-7](\.[0-9]{1,6})?|[0-9]{1,4}(\.[0-9]{1,3})?m`)
	bytes := rapid.StringMatching(`[0-9]{1,2}(\.[0-9]{1,9})?(Gi|G|Mi|Ki|k)?|[0-9]{1,9}\.[0-9]{1,9}|[0-9]{1,5}m`)
	rapid.Check(t, func(t *rapid.T) {
		check(t, cpu.Draw(t, "system cpu"), cpu.Draw(t, "kube cpu"), bytes.Draw(t, "system"), bytes.Draw(t, "kube"),
			bytes.Filter(func(s string) bool { q := resource.MustParse(s); return q.Sign() > 0 }).Draw(t, "eviction"))
	})
}

// TestFractionsReservedByNode: fractions that are reserved as a whole, and those that
// are reserved of the NUMA nodes, make whole bytes together.
func TestFractionsReservedByNode(t *testing.T) {
	t.Parallel()
	m := machinetest.Build("2s16c,mem=64Gi")
	for name, row := range map[string]struct {
		system, kube string
		nodes        []string
		equal        bool
	}{
		"of the whole":         {"1.1Gi", "0.9Gi", []string{"2148Mi"}, true},
		"of each":              {"1.1Gi", "1.1Gi", []string{"1.1Gi", "1226.4Mi"}, true},
		"of the nodes":         {"1Gi", "1Gi", []string{"1024.3Mi", "1123.7Mi"}, true},
		"a byte less of nodes": {"1Gi", "1Gi", []string{"1Gi", "1178599423"}, false},
	} {
		c := Default()
		c.Memory.Policy = memory.PolicyStatic
		for i, text := range row.nodes {
			c.Memory.Reserved = append(c.Memory.Reserved, ReservedMemory{NUMANode: int32(i), Limits: map[string]string{"memory": text}})
		}
		c.Reserved.System, c.Reserved.Kube = map[string]string{"memory": row.system}, map[string]string{"memory": row.kube}
		cfg, err := c.MemoryConfig(m)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := memory.New(cfg, m); (err == nil) != row.equal {
			t.Errorf("%s: %v", name, err)
		}
	}
}
