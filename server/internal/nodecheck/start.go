package nodecheck

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/berthd/berth/managers/cpu"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/ledger/kubelet"
	"github.com/berthd/berth/managers/machine"
	"github.com/berthd/berth/managers/memory"
	"github.com/berthd/berth/managers/numa"
	"github.com/berthd/berth/managers/topology"
	"github.com/berthd/berth/managers/workload"
)

// refused finds a configuration that cannot be used.
func refused(n *node) (out []found) {
	all := violations(n.Refused, "configuration")
	if n.Config != nil {
		whole, err := n.Config.NodeConfig()
		if err == nil {
			err = whole.Validate()
		}
		all = append(all, violations(err, "configuration")...)
	}
	for _, v := range all {
		object := kubeletField(v.Field)
		if !slices.ContainsFunc(out, func(f found) bool { return f.object == object && f.text == v.Description }) {
			out = append(out, found{object: object, text: v.Description})
		}
	}
	return out
}

// kubeletFields are the kubelet's names of fields, by the beginnings of berth's. The longer ones are first.
var kubeletFields = []struct{ berth, kubelet string }{
	{"cpu.policy", "cpuManagerPolicy"}, {"cpu.options", "cpuManagerPolicyOptions"},
	{"memory.policy", "memoryManagerPolicy"}, {"memory.reserved", "reservedMemory"},
	{"topology.policy", "topologyManagerPolicy"}, {"topology.scope", "topologyManagerScope"},
	{"topology.options", "topologyManagerPolicyOptions"},
	{"reserved.system", "systemReserved"}, {"reserved.kube", "kubeReserved"}, {"reserved.cpus", "reservedSystemCPUs"}, {"reserved.", ""},
	{"cgroups.driver", "cgroupDriver"}, {"cgroups.", ""}, {"node.", ""},
}

// kubeletField is the kubelet's name of a field.
func kubeletField(name string) string {
	for _, f := range kubeletFields {
		if rest, ok := strings.CutPrefix(name, f.berth); ok {
			return f.kubelet + rest
		}
	}
	return name
}

// damaged finds state files of some kinds that cannot be read.
func damaged(kinds ...kubelet.Kind) func(*node) []found {
	return func(n *node) (out []found) {
		for _, kind := range kinds {
			if err := n.Damaged[kind]; err != nil {
				out = append(out, found{n.path(kind), "the state file cannot be read", []string{err.Error()}})
			}
		}
		return out
	}
}

// options finds policies and options of them that the kubelet refuses.
func options(n *node) (out []found) {
	for _, v := range n.refusedCPU {
		out = append(out, found{object: v.Field, text: v.Description})
	}
	inTopology := func(v errdefs.Violation) bool { return strings.HasPrefix(v.Field, "topology.") }
	if tooManyNodes(n) != nil || slices.ContainsFunc(violations(n.Refused, ""), inTopology) {
		return out // the other checks have it
	}
	if _, err := topology.New(n.Config.TopologyConfig(), n.Machine.NodeMask(), n.Machine.Distances()); err != nil {
		out = append(out, found{object: "topologyManagerPolicyOptions", text: err.Error()})
	}
	return out
}

// tooManyNodes finds a machine with more NUMA nodes than the topology manager accepts.
func tooManyNodes(n *node) []found {
	nodes, option := n.Machine.NodeMask().Len(), n.Config.Topology.Options[topology.OptionMaxNodes]
	limit := topology.ReferenceMaxNodes
	if option != "" {
		if _, err := fmt.Sscan(option, &limit); err != nil {
			return nil // the options are wrong
		}
	}
	if n.Config.Topology.Policy == topology.None || nodes <= limit {
		return nil
	}
	set := "topologyManagerPolicyOptions has no " + topology.OptionMaxNodes
	if option != "" {
		set = fmt.Sprintf("%s is %s", topology.OptionMaxNodes, option)
	}
	return []found{{"topologyManagerPolicy", fmt.Sprintf("the machine has %d NUMA nodes, and the topology manager accepts %d", nodes, limit),
		[]string{fmt.Sprintf("topologyManagerPolicy is %s", n.Config.Topology.Policy), set}}}
}

// otherPolicy finds state files of another policy than the configuration's.
func otherPolicy(n *node) (out []found) {
	if n.CPU != nil && n.CPU.Policy != n.Config.CPU.Policy {
		out = append(out, differs("cpuManagerPolicy", n.Config.CPU.Policy, n.CPU.Policy, files[kubelet.CPU]))
	}
	if n.Memory != nil && n.Memory.Policy != n.Config.Memory.Policy {
		out = append(out, differs("memoryManagerPolicy", n.Config.Memory.Policy, n.Memory.Policy, files[kubelet.Memory]))
	}
	return out
}

func differs(field, is, was, file string) found {
	return found{field, "the state file is one of another policy",
		[]string{fmt.Sprintf("%s is %s", field, is), fmt.Sprintf("policyName in %s is %s", file, kubelet.Printable(was))}}
}

// goneCPUs finds CPUs of the state file that are not online.
func goneCPUs(n *node) (out []found) {
	if !n.static() {
		return nil
	}
	all := n.Machine.CPUs()
	gone := owned(n.CPU).Union(n.CPU.Shared).Minus(all)
	if gone.IsEmpty() {
		return nil
	}
	proof := []string{fmt.Sprintf("the machine has CPUs %s online", all)}
	if offline := gone.Intersect(n.Machine.Offline()); !offline.IsEmpty() {
		proof = append(proof, fmt.Sprintf("CPUs %s are offline", offline))
	}
	for _, h := range n.holders() {
		if set := h.set.Minus(all); !set.IsEmpty() {
			proof = append(proof, fmt.Sprintf("%s has CPUs %s", n.owner(h.pod, h.container), set))
		}
	}
	if set := n.CPU.Shared.Minus(all); !set.IsEmpty() {
		proof = append(proof, fmt.Sprintf("defaultCpuSet has CPUs %s", set))
	}
	return []found{{"CPUs " + gone.String(), "the state file has CPUs that the machine does not have online", proof}}
}

// offlineReserved finds CPUs of reservedSystemCPUs that are not online.
func offlineReserved(n *node) []found {
	reserved := n.Config.Reserved.CPUs
	gone := reserved.Minus(n.Machine.CPUs())
	if n.Config.CPU.Policy != cpu.PolicyStatic || gone.IsEmpty() {
		return nil
	}
	return []found{{"reservedSystemCPUs", fmt.Sprintf("CPUs %s are not online: the kubelet counts them as reserved, and finds them missing "+
		"in the shared pool when it starts with a state file", gone),
		[]string{fmt.Sprintf("reservedSystemCPUs is %s", reserved), fmt.Sprintf("the machine has CPUs %s online", n.Machine.CPUs())}}}
}

// otherReservation finds a CPU reservation that does not fit to the shared pool.
func otherReservation(n *node) []found {
	if !n.static() {
		return nil
	}
	reserved, strict := n.cpus.Reserved().Intersect(n.Machine.CPUs()), n.cpus.StrictReservation()
	proof := []string{fmt.Sprintf("the reserved CPUs are %s", reserved), fmt.Sprintf("defaultCpuSet is %s", n.CPU.Shared)}
	if both := reserved.Intersect(n.CPU.Shared); strict && !both.IsEmpty() {
		return []found{{"reservedSystemCPUs",
			fmt.Sprintf("CPUs %s are reserved strictly, and the state file has them in the shared pool", both), proof}}
	}
	missing := reserved.Minus(n.CPU.Shared)
	if strict || missing.IsEmpty() {
		return nil
	}
	for _, h := range n.holders() {
		if set := h.set.Intersect(missing); !set.IsEmpty() {
			proof = append(proof, fmt.Sprintf("%s has CPUs %s", n.owner(h.pod, h.container), set))
		}
	}
	return []found{{"reservedSystemCPUs", fmt.Sprintf("CPUs %s are reserved, and the state file does not have them in the shared pool", missing),
		proof}}
}

// sums finds a reservedMemory that does not add up.
func sums(n *node) (out []found) {
	if n.Config.Memory.Policy != memory.PolicyStatic {
		return nil
	}
	cfg, err := n.memoryConfig()
	if err == nil {
		_, err = memory.New(cfg, n.Machine)
	}
	for _, v := range violations(err, "reservedMemory") {
		if strings.HasPrefix(v.Field, "reservedMemory") {
			out = append(out, found{object: v.Field, text: v.Description})
		}
	}
	return out
}

// otherMemory finds NUMA nodes with other memory than the checkpoint has.
func otherMemory(n *node) (out []found) {
	if !n.staticMemory() {
		return nil
	}
	var listed numa.Mask
	for id := range n.Memory.Nodes {
		listed = listed.With(id)
	}
	nodes := []string{fmt.Sprintf("the machine has NUMA nodes %s, the memory checkpoint %s", n.Machine.NodeMask(), listed)}
	for id := range n.Machine.NodeMask().Minus(listed).All() {
		out = append(out, found{fmt.Sprintf("NUMA node %d", id), "the memory checkpoint does not have the node", nodes})
	}
	for id := range listed.All() {
		m, ok := n.Machine.Node(id)
		if !ok {
			out = append(out, found{fmt.Sprintf("NUMA node %d", id), "the memory checkpoint has a node that the machine does not have", nodes})
			continue
		}
		var proof []string
		has, tables := totals(m), n.Memory.Nodes[id].Tables
		names := slices.Sorted(maps.Keys(has))
		for resource := range tables {
			if _, ok := has[resource]; !ok {
				names = append(names, resource)
			}
		}
		slices.Sort(names)
		for _, resource := range names {
			if was := tables[resource].Total; was != has[resource] {
				proof = append(proof, fmt.Sprintf("%s: the machine has %d bytes, the checkpoint %d", kubelet.Printable(resource),
					has[resource], was))
			}
		}
		if proof != nil {
			out = append(out, found{fmt.Sprintf("NUMA node %d", id), "the machine has other memory than the memory checkpoint", proof})
		}
	}
	return out
}

// totals are the bytes of a NUMA node by resource.
func totals(m machine.Node) map[string]uint64 {
	out := map[string]uint64{string(workload.Memory): m.MemoryBytes}
	for _, p := range m.HugePages {
		out[string(workload.HugePagesOf(int64(p.SizeKiB<<10)))] = p.Count * p.SizeKiB << 10
	}
	return out
}

// memoryConfig is the memory manager's part of the configuration. What limits the pods does not belong to it.
func (n *node) memoryConfig() (memory.Config, error) {
	c := *n.Config
	c.Node.Enforce = nil
	return c.MemoryConfig(n.Machine)
}

// reservedOf are the bytes of reservedMemory by NUMA node and resource.
func (n *node) reservedOf() (map[int]map[string]uint64, bool) {
	cfg, err := n.memoryConfig()
	out := map[int]map[string]uint64{}
	for _, r := range cfg.Reserved {
		if out[r.Node] == nil {
			out[r.Node] = map[string]uint64{}
		}
		out[r.Node][string(r.Resource)] += r.Bytes
	}
	return out, err == nil
}

// otherReservedMemory finds a reservedMemory that is not the checkpoint's.
func otherReservedMemory(n *node) (out []found) {
	reserved, ok := n.reservedOf()
	if !ok || !n.staticMemory() {
		return nil
	}
	for _, id := range slices.Sorted(maps.Keys(n.Memory.Nodes)) {
		for _, resource := range slices.Sorted(maps.Keys(n.Memory.Nodes[id].Tables)) {
			if !n.Machine.NodeMask().Contains(id) {
				continue // another check has it
			}
			is, was := reserved[id][resource], n.Memory.Nodes[id].Tables[resource].SystemReserved
			if is != was {
				out = append(out, found{"reservedMemory", fmt.Sprintf("the reserved %s of NUMA node %d is not the memory checkpoint's",
					kubelet.Printable(resource), id), []string{fmt.Sprintf("reservedMemory has %s", bytesText(is)),
					fmt.Sprintf("systemReserved in the checkpoint is %s", bytesText(was))}})
			}
		}
	}
	return out
}

// miscounted finds tables of memory that do not follow from the blocks. What the checks of sizes and reservations find is left to them.
func miscounted(n *node) []found {
	reserved, ok := n.reservedOf()
	if !ok || !n.staticMemory() || otherMemory(n) != nil || otherReservedMemory(n) != nil {
		return nil
	}
	err := n.Memory.Check(n.Machine.Nodes(), reserved)
	if err == nil {
		return nil
	}
	return []found{{files[kubelet.Memory], "the counted memory is not the sum of what the containers have", []string{err.Error()}}}
}
