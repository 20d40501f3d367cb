package node

import (
	"maps"
	"math"
	"math/bits"

	"github.com/berthd/berth/managers/machine"
	"github.com/berthd/berth/managers/workload"
)

const milliPerCPU = 1000

// capacity lists what the node has: cpu in milli-CPU, memory and huge pages of
// every size in bytes, the number of processes, and ephemeral storage in bytes
// where that is counted.
func capacity(facts Facts) workload.Quantities {
	m := facts.Machine
	c := workload.Quantities{
		workload.CPU:    milliPerCPU * int64(m.NumCPUs()),
		workload.Memory: saturated(m.MemoryBytes(), 1),
	}
	for _, size := range m.HugePageSizesKiB() {
		c[hugePages(size)] = 0
	}
	for _, node := range m.Nodes() {
		for _, pages := range node.HugePages {
			r := hugePages(pages.SizeKiB)
			c[r] = workload.Sum(c[r], saturated(pages.Count, pages.SizeKiB<<10))
		}
	}
	if facts.MaxPIDs > 0 {
		c[PIDs] = facts.MaxPIDs
	}
	if facts.StorageBytes > 0 {
		c[workload.EphemeralStorage] = facts.StorageBytes
	}
	return c
}

// hugePages names the resource of a page size.
func hugePages(sizeKiB uint64) workload.Resource {
	return workload.Resource(workload.HugePagesPrefix + workload.Memory.Text(saturated(sizeKiB, 1<<10)))
}

// podCapacity is how many pods may be here: maxPods, and no more than podsPerCore
// for each CPU.
func (cfg *Config) podCapacity(m *machine.Topology) int64 {
	pods := cfg.MaxPods
	if cfg.PodsPerCore > 0 {
		perCores := saturated(uint64(m.NumCPUs()), uint64(cfg.PodsPerCore))
		if pods == 0 || perCores < pods {
			pods = perCores
		}
	}
	return pods
}

// part is one of the things that make up a reservation.
type part struct {
	name            string
	amounts, excess workload.Quantities
}

func (p part) at(r workload.Resource) workload.Exact {
	return workload.Exact{Whole: p.amounts[r], Excess: p.excess[r]}
}

func (m *Manager) parts() []part {
	eviction := part{"evictionHard", workload.Quantities{}, workload.Quantities{}}
	for r, t := range m.cfg.EvictionHard {
		if have, ok := m.capacity[r]; ok {
			amount := t.of(have)
			eviction.amounts[r], eviction.excess[r] = amount.Whole, amount.Excess
		}
	}
	return append(m.cfg.parts(), eviction)
}

// parts are those that need no machine.
func (cfg *Config) parts() []part {
	return []part{
		{"systemReserved", cfg.SystemReserved, cfg.SystemExcess},
		{"kubeReserved", cfg.KubeReserved, cfg.KubeExcess},
	}
}

// Reserved returns the sum of the system's and the agents' parts of a resource.
func (cfg *Config) Reserved(r workload.Resource) int64 { return together(r, cfg.parts()).Whole }

// reserved is what all parts of a resource are together.
func (m *Manager) reserved(r workload.Resource) workload.Exact { return together(r, m.parts()) }

func together(r workload.Resource, parts []part) (sum workload.Exact) {
	for _, part := range parts {
		sum = sum.Plus(part.at(r))
	}
	return sum
}

// without subtracts reservations from amounts. The rest of a unit counts
// for a whole one, and nothing is below zero, as in the kubelet.
func without(have int64, reserved workload.Exact) int64 {
	return max(workload.Exact{Whole: have}.Minus(reserved).Whole, 0)
}

// Parts returns what the system, the agents and eviction keep, each with what it adds to
// the sum of those before it: so they add up to Reservation, also where amounts were
// rounded that the kubelet adds as they are.
func (m *Manager) Parts() (system, agents, eviction workload.Quantities) {
	var out [3]workload.Quantities
	parts := m.parts()
	for i, part := range parts {
		out[i] = make(workload.Quantities, len(part.amounts))
		for r := range part.amounts {
			out[i][r] = together(r, parts[:i+1]).Whole - together(r, parts[:i]).Whole
		}
	}
	return out[0], out[1], out[2]
}

// Capacity returns what the machine has, with the number of pods where that is
// bounded. The map is the caller's.
func (m *Manager) Capacity() workload.Quantities { return m.withPods(maps.Clone(m.capacity)) }

// Eviction returns what the hard eviction thresholds keep, percentages worked out.
func (m *Manager) Eviction() workload.Quantities { return m.parts()[2].amounts }

// SystemReserved and KubeReserved are what is kept for each, with reserved CPUs
// and reserved huge pages counted as the system's.
func (m *Manager) SystemReserved() workload.Quantities { return maps.Clone(m.cfg.SystemReserved) }

// KubeReserved is described at SystemReserved.
func (m *Manager) KubeReserved() workload.Quantities { return maps.Clone(m.cfg.KubeReserved) }

// Reservation returns what pods do not get: the sums of the system's, the agents' and
// eviction's parts, of the resources that the node has, without those of which
// nothing is reserved. Processes are left out, as in the kubelet.
func (m *Manager) Reservation() workload.Quantities {
	out := workload.Quantities{}
	for r := range m.capacity {
		if sum := m.reserved(r).Whole; sum > 0 && r != PIDs {
			out[r] = sum
		}
	}
	return out
}

// SystemCgroupsLimit returns what the system containers (the cgroups of the system, the agent
// and the runtime) may have together. It is no CPU by definition: the kubelet adds up a
// number of each of them that nothing sets, since these cgroups are only weighed.
func (m *Manager) SystemCgroupsLimit() workload.Quantities {
	return workload.Quantities{workload.CPU: 0}
}

// Absolute is the capacity without the system's and the agents' parts, eviction
// not counted: what the QoS tiers share.
func (m *Manager) Absolute() workload.Quantities {
	out := m.Limit()
	delete(out, PIDs)
	return out
}

// Limit returns what the cgroup of all pods may have when EnforcePods is requested: as
// Absolute, with processes.
func (m *Manager) Limit() workload.Quantities {
	out := workload.Quantities{}
	for r, have := range m.capacity {
		out[r] = without(have, together(r, m.cfg.parts()))
	}
	return out
}

// Allocatable returns what a scheduler may allocate, and what Fit admits up to: the
// capacity without the reservation; of memory also without all huge pages. The map is
// the caller's.
func (m *Manager) Allocatable() workload.Quantities { return maps.Clone(m.allocatable) }

// unreserved is Allocatable without the pods.
func (m *Manager) unreserved() workload.Quantities {
	out := maps.Clone(m.capacity)
	delete(out, PIDs)
	for r, have := range out {
		out[r] = without(have, m.reserved(r))
	}
	for r, bytes := range m.capacity {
		if r.IsHugePages() {
			out[workload.Memory] = max(out[workload.Memory]-bytes, 0)
		}
	}
	return out
}

func (m *Manager) withPods(q workload.Quantities) workload.Quantities {
	if m.pods > 0 {
		q[Pods] = m.pods
	}
	return q
}

// saturated multiplies and stops at the end of int64.
func saturated(a, b uint64) int64 {
	hi, lo := bits.Mul64(a, b)
	if hi != 0 || lo > math.MaxInt64 {
		return math.MaxInt64
	}
	return int64(lo)
}
