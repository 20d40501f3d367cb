package config

import (
	"fmt"
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/berthd/berth/managers/cpu"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/machine"
	"github.com/berthd/berth/managers/node"
	"github.com/berthd/berth/managers/workload"
)

// NodeConfig configures the node as a whole. Errors are of class Invalid
// and name the amount that cannot be read.
func (c Config) NodeConfig() (node.Config, error) {
	n := node.Config{
		Features:             c.WorkloadFeatures(),
		ReservedCPUs:         c.Reserved.CPUs,
		Enforce:              c.Node.Enforce,
		SystemReservedCgroup: c.Node.SystemReservedCgroup,
		KubeReservedCgroup:   c.Node.KubeReservedCgroup,
		MaxPods:              c.Node.MaxPods,
		PodsPerCore:          c.Node.PodsPerCore,
		NoPodCgroups:         !c.Cgroups.PerQOS,
		// A simulated machine's CPUs are not those of the tree.
		AllCPUs:   c.CPU.Policy == cpu.PolicyNone && c.Machine == "",
		MemoryQoS: c.Cgroups.MemoryQoS,
	}
	var err error
	if n.SystemReserved, n.SystemExcess, err = amounts("reserved.system", c.Reserved.System); err != nil {
		return n, err
	}
	if n.KubeReserved, n.KubeExcess, err = amounts("reserved.kube", c.Reserved.Kube); err != nil {
		return n, err
	}
	n.ReservedPages = c.reservedPages()
	n.EvictionHard, err = node.ParseEviction(c.Reserved.Eviction(),
		func(text string) (workload.Exact, error) { return amount(workload.Memory, text) })
	return n, err
}

// nodeOn is NodeConfig for a machine. If that is configured (OneIfNone) and no CPU is reserved, the core of the lowest CPU is.
func (c Config) nodeOn(m *machine.Topology) (node.Config, error) {
	n, err := c.NodeConfig()
	if err != nil || !c.Reserved.OneIfNone || c.CPU.Policy != cpu.PolicyStatic || !n.ReservedCPUs.IsEmpty() ||
		n.Reserved(workload.CPU) > 0 {
		return n, err
	}
	lowest, _ := m.CPUs().Min()
	first, _ := m.CPU(lowest) // a machine has a CPU
	n.ReservedCPUs, n.ReservedByDefault = m.CPUsInCore(first.Core), true
	return n, nil
}

// Eviction returns the thresholds that count: the kubelet's where none are given.
func (r Reserved) Eviction() map[string]string {
	if r.EvictionHard == nil {
		return node.DefaultEviction()
	}
	return r.EvictionHard
}

// amounts reads a list of reserved amounts, with what rounding put on them; field
// names it in errors.
func amounts(field string, given map[string]string) (out, excess workload.Quantities, err error) {
	out = make(workload.Quantities, len(given))
	var vs errdefs.Violations
	for _, name := range slices.Sorted(maps.Keys(given)) {
		n, err := amount(workload.Resource(name), given[name])
		if err != nil {
			vs.Addf(fmt.Sprintf("%s[%q]", field, name), "%v", err)
		}
		out[workload.Resource(name)] = n.Whole
		if n.Excess > 0 {
			if excess == nil {
				excess = workload.Quantities{}
			}
			excess[workload.Resource(name)] = n.Excess
		}
	}
	return out, excess, vs.Err("configuration")
}

// amount reads a quantity: of cpu in thousandths, of everything else in units.
func amount(name workload.Resource, text string) (workload.Exact, error) {
	q, err := resource.ParseQuantity(text)
	if err != nil {
		return workload.Exact{}, errdefs.Invalidf("%q: expected a quantity such as 500m or 1Gi", text)
	}
	d := q.AsDec()
	n, excess, ok := workload.RoundUp(name, d.UnscaledBig(), int(d.Scale()))
	if !ok || n < 0 {
		return workload.Exact{}, errdefs.Invalidf("%q: expected a quantity that is not negative and fits into 64 bits", text)
	}
	return workload.Exact{Whole: n, Excess: excess}, nil
}
