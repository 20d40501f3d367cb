package nodecheck

import (
	"fmt"
	"slices"
	"strings"

	"github.com/berthd/berth/managers/cpu"
	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/ledger/kubelet"
	"github.com/berthd/berth/managers/machine"
	"github.com/berthd/berth/managers/memory"
	"github.com/berthd/berth/managers/topology"
	"github.com/berthd/berth/managers/workload"
)

// noHints finds a topology policy without anything to align.
func noHints(n *node) []found {
	c := n.Config
	if c.Topology.Policy == topology.None || c.CPU.Policy == cpu.PolicyStatic || c.Memory.Policy == memory.PolicyStatic {
		return nil
	}
	if n.Devices != nil && len(n.Devices.Registered)+len(n.Devices.Entries) > 0 || n.Damaged[kubelet.Device] != nil ||
		n.Unread[kubelet.Device] != nil {
		return nil
	}
	return []found{{"topologyManagerPolicy", fmt.Sprintf("the policy %s has no effect: no manager gives hints", c.Topology.Policy),
		[]string{"cpuManagerPolicy is " + c.CPU.Policy, "memoryManagerPolicy is " + c.Memory.Policy, "no device plugin has registered"}}}
}

// halfCore finds cores of which only a part is reserved, with full-pcpus-only.
func halfCore(n *node) []found {
	if n.cpus == nil || n.Config.CPU.Policy != cpu.PolicyStatic || n.Config.CPU.Options["full-pcpus-only"] != "true" {
		return nil
	}
	reserved := n.cpus.Reserved().Intersect(n.Machine.CPUs())
	var b cpuset.Builder
	cores := n.Machine.ByCore()
	for i := range cores.Len() {
		if rest := cores.CPUs(i).Minus(reserved); rest != cores.CPUs(i) {
			b.AddSet(rest)
		}
	}
	rest := b.Set()
	if rest.IsEmpty() {
		return nil
	}
	return []found{{"reservedSystemCPUs", fmt.Sprintf("CPUs %s can never be exclusive: with full-pcpus-only containers get whole cores, "+
		"and the other CPU of their core is reserved", rest), []string{fmt.Sprintf("the reserved CPUs are %s", reserved)}}}
}

// quota finds CPU quotas on exclusive CPUs.
func quota(n *node) []found {
	c := n.Config
	if c.CPU.Policy != cpu.PolicyStatic || !c.Cgroups.CPUCFSQuota || !c.Cgroups.QuotaWithExclusiveCPUs {
		return nil
	}
	proof := []string{"featureGates.DisableCPUQuotaWithExclusiveCPUs is false", "cpuCFSQuota is true"}
	if n.Unseen == "" && n.CPU != nil {
		limited := n.limited()
		if len(limited) == 0 {
			return nil
		}
		proof = append(proof, first(limited)...)
	}
	return []found{{"featureGates.DisableCPUQuotaWithExclusiveCPUs",
		"containers with exclusive CPUs have a CPU quota, so the kernel can stop them although nobody else runs on their CPUs",
		proof}}
}

// limited are the containers with CPUs of their own whose CPU time the kernel limits.
func (n *node) limited() (out []string) {
	for _, c := range n.busy() {
		if c.Quota && n.owns(c) {
			out = append(out, n.running(c)+" has a quota")
		}
	}
	return out
}

// owns reports whether a container has CPUs of its own: one without a known name if its CPUs are those of a container of its pod.
func (n *node) owns(c Running) bool {
	own := n.CPU.Containers[c.Pod]
	if name := n.Names[c.ID]; name != "" {
		_, ok := own[name]
		return ok
	}
	for _, set := range own {
		if set == c.CPUs {
			return true
		}
	}
	return false
}

// isolated finds CPUs of the shared pool that the kernel treats in a special way.
func isolated(n *node) (out []found) {
	pool, name := n.Machine.CPUs(), "containers run on all CPUs, because cpuManagerPolicy is none"
	if n.Config.CPU.Policy == cpu.PolicyStatic {
		if n.CPU == nil || !n.static() {
			return nil
		}
		pool, name = n.CPU.Shared, fmt.Sprintf("defaultCpuSet is %s", n.CPU.Shared)
	}
	for _, kind := range []struct {
		parameter, effect string
		cpus              cpuset.Set
	}{
		{"isolcpus", "the kernel does not balance load there, so threads of shared containers stay together on one CPU", n.Machine.Isolated()},
		{"nohz_full", "a CPU with several threads has the periodic tick, so nohz_full has no effect there", n.Machine.NoHZFull()},
	} {
		if both := pool.Intersect(kind.cpus); !both.IsEmpty() {
			out = append(out, found{kind.parameter, fmt.Sprintf("CPUs %s are in the shared pool: %s", both, kind.effect),
				[]string{fmt.Sprintf("%s has CPUs %s", kind.parameter, kind.cpus), name}})
		}
	}
	return out
}

// apart finds reserved CPUs that are all on a NUMA node without reserved memory.
func apart(n *node) []found {
	if n.cpus == nil || n.Config.CPU.Policy != cpu.PolicyStatic || n.Config.Memory.Policy != memory.PolicyStatic {
		return nil
	}
	nodes := n.Machine.NodesOf(n.cpus.Reserved())
	id, ok := nodes.Lowest()
	reserved, read := n.reservedOf()
	if !read || !ok || nodes.Len() != 1 || len(reserved) == 0 || reserved[id][string(workload.Memory)] > 0 {
		return nil
	}
	var elsewhere []string
	for node := range n.Machine.NodeMask().All() {
		if bytes := reserved[node][string(workload.Memory)]; bytes > 0 {
			elsewhere = append(elsewhere, fmt.Sprintf("NUMA node %d: %s", node, bytesText(bytes)))
		}
	}
	return []found{{"reservedMemory", fmt.Sprintf("the reserved CPUs are on NUMA node %d, and the reserved memory is not: the system uses "+
		"memory that is counted as the pods'", id),
		[]string{fmt.Sprintf("the reserved CPUs are %s", n.cpus.Reserved()), "reservedMemory: " + strings.Join(elsewhere, ", ")}}}
}

// unevenPages finds huge pages on only one of several NUMA nodes.
func unevenPages(n *node) (out []found) {
	if n.Config.Memory.Policy != memory.PolicyStatic {
		return nil
	}
	nodes := n.Machine.Nodes()
	nodes = slices.DeleteFunc(nodes, func(m machine.Node) bool { return m.MemoryBytes == 0 })
	if len(nodes) < 2 {
		return nil
	}
	for _, size := range n.Machine.HugePageSizesKiB() {
		var with []int
		for _, m := range nodes {
			for _, p := range m.HugePages {
				if p.SizeKiB == size && p.Count > 0 {
					with = append(with, m.ID)
				}
			}
		}
		resource := workload.HugePagesOf(int64(size << 10))
		if len(with) == 1 {
			out = append(out, found{string(resource), fmt.Sprintf("only NUMA node %d has such pages: each container that requests them is bound to it, "+
				"with all its memory", with[0]), []string{fmt.Sprintf("the machine has %d NUMA nodes with memory", len(nodes))}})
		}
	}
	return out
}

// unenforced finds a node whose pods are not limited to allocatable.
func unenforced(n *node) []found {
	enforce := n.Config.Node.Enforce
	if slices.Contains(enforce, "pods") {
		return nil
	}
	proof := []string{fmt.Sprintf("enforceNodeAllocatable is [%s]", strings.Join(enforce, ", "))}
	if !n.Config.Cgroups.PerQOS {
		proof = append(proof, "cgroupsPerQOS is false")
	}
	return []found{{"enforceNodeAllocatable",
		"pods together are not limited: they can use the memory that systemReserved and kubeReserved keep for the system", proof}}
}

// scattered finds free CPUs that are not together.
func scattered(n *node) []found {
	s := n.Scattered
	if s == nil || s.Possible == 0 {
		return nil
	}
	var proof []string
	for _, pod := range s.Moves {
		proof = append(proof, "pod "+pod+" would have to be elsewhere")
	}
	return []found{{"free CPUs", fmt.Sprintf("a pod on one NUMA node gets %d of the %d free CPUs; it could get %d", s.Fits, s.Free,
		s.Possible), proof}}
}
