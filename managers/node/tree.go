package node

import (
	"fmt"
	"strconv"

	"github.com/berthd/berth/managers/cgroup"
	"github.com/berthd/berth/managers/workload"
)

// PodsNode gives the cgroup of all pods: weighed and limited by Limit where
// EnforcePods is requested, else by what the machine has. Its huge pages are the
// tiers' to limit: the kubelet writes them here too, and overwrites them within a
// minute. Without cgroups of pods it is the configured root, with what the machine has.
func (m *Manager) PodsNode(l cgroup.Layout) cgroup.Node {
	if m.cfg.NoPodCgroups {
		return cgroup.Node{Name: l.Root(), Values: m.values(m.capacity)}
	}
	amounts := m.capacity
	if m.cfg.Enforce.Has(EnforcePods) {
		amounts = m.Limit()
	}
	return cgroup.Node{Name: l.Pods(), Values: m.values(amounts)}
}

// ReservedNodes gives the reserved cgroups that the enforcement keys request, the
// system's first. Compressible keys give weights only. A name that the driver
// cannot reach is an error of class Invalid. Unlike the kubelet, huge pages are
// left as they are: a limit of zero would fail where a daemon holds some, and
// deny them to all daemons where none does.
func (m *Manager) ReservedNodes(driver cgroup.Driver) ([]cgroup.Node, error) {
	var nodes []cgroup.Node
	for _, reserved := range []struct {
		field, name, plain, compressible string
		amounts                          workload.Quantities
	}{
		{"systemReservedCgroup", m.cfg.SystemReservedCgroup, EnforceSystem, EnforceSystemCompressible, m.cfg.SystemReserved},
		{"kubeReservedCgroup", m.cfg.KubeReservedCgroup, EnforceKube, EnforceKubeCompressible, m.cfg.KubeReserved},
	} {
		amounts := reserved.amounts
		switch {
		case m.cfg.Enforce.Has(reserved.plain):
		case m.cfg.Enforce.Has(reserved.compressible):
			amounts = compressible(amounts)
		default:
			continue
		}
		if err := checkCgroup(reserved.name, driver); err != nil {
			return nil, fmt.Errorf("%s: %w", reserved.field, err)
		}
		values := m.values(amounts)
		if memory := amounts[workload.Memory]; m.cfg.MemoryQoS && memory > 0 {
			values.Unified = map[string]string{"memory.min": strconv.FormatInt(memory, 10)}
		}
		nodes = append(nodes, cgroup.Node{Name: driver.Parse(reserved.name), Values: values})
	}
	return nodes, nil
}

// compressible keeps the resources of which having too little only slows down.
func compressible(amounts workload.Quantities) workload.Quantities {
	if milli, ok := amounts[workload.CPU]; ok {
		return workload.Quantities{workload.CPU: milli}
	}
	return nil
}

// values turns amounts into what a cgroup holds. CPU is weighed, never limited.
func (m *Manager) values(amounts workload.Quantities) cgroup.Values {
	var v cgroup.Values
	if milli, ok := amounts[workload.CPU]; ok {
		shares := cgroup.SharesFromMilliCPU(milli)
		v.CPUShares = &shares
	}
	if bytes, ok := amounts[workload.Memory]; ok {
		v.MemoryBytes = &bytes
	}
	if pids, ok := amounts[PIDs]; ok {
		v.PIDs = &pids
	}
	if m.cfg.AllCPUs {
		v.CPUs = m.machine.CPUs()
	}
	return v
}
