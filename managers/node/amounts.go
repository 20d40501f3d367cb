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
	name    string
	amounts workload.Quantities
}

func (m *Manager) parts() []part {
	eviction := workload.Quantities{}
	for r, t := range m.cfg.EvictionHard {
		if have, ok := m.capacity[r]; ok {
			eviction[r] = t.of(have)
		}
	}
	return []part{
		{"systemReserved", m.cfg.SystemReserved},
		{"kubeReserved", m.cfg.KubeReserved},
		{"evictionHard", eviction},
	}
}

// Capacity is what the machine has, with the number of pods where that is
// bounded. The map is the caller's.
func (m *Manager) Capacity() workload.Quantities { return m.withPods(maps.Clone(m.capacity)) }

// Eviction is what the hard eviction thresholds keep, percentages worked out.
func (m *Manager) Eviction() workload.Quantities { return m.parts()[2].amounts }

// SystemReserved and KubeReserved are what is kept for each, with reserved CPUs
// counted as the system's.
func (m *Manager) SystemReserved() workload.Quantities { return maps.Clone(m.cfg.SystemReserved) }

// KubeReserved is described at SystemReserved.
func (m *Manager) KubeReserved() workload.Quantities { return maps.Clone(m.cfg.KubeReserved) }

// Reservation is what pods do not get: the sums of the system's, the agents' and
// eviction's parts, of the resources that the node has, without those of which
// nothing is reserved. Processes are left out, as in the kubelet.
func (m *Manager) Reservation() workload.Quantities {
	out := workload.Quantities{}
	for r := range m.capacity {
		for _, part := range m.parts() {
			if amount := part.amounts[r]; amount > 0 && r != PIDs {
				out[r] = workload.Sum(out[r], amount)
			}
		}
	}
	return out
}

// Absolute is what there is without the system's and the agents' parts, eviction
// not counted: what the QoS tiers share.
func (m *Manager) Absolute() workload.Quantities {
	out := m.Limit()
	delete(out, PIDs)
	return out
}

// Limit is what the cgroup of all pods may have when EnforcePods is asked for: as
// Absolute, with processes.
func (m *Manager) Limit() workload.Quantities {
	out := workload.Quantities{}
	for r, have := range m.capacity {
		out[r] = max(have-workload.Sum(m.cfg.SystemReserved[r], m.cfg.KubeReserved[r]), 0)
	}
	return out
}

// Allocatable is what a scheduler may give out, and what Fit admits up to: the
// capacity without the reservation; of memory also without all huge pages.
func (m *Manager) Allocatable() workload.Quantities {
	out := maps.Clone(m.capacity)
	delete(out, PIDs)
	for r, reserved := range m.Reservation() {
		out[r] = max(out[r]-reserved, 0)
	}
	for r, bytes := range m.capacity {
		if r.IsHugePages() {
			out[workload.Memory] = max(out[workload.Memory]-bytes, 0)
		}
	}
	return m.withPods(out)
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
