package memory

import (
	"fmt"

	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/workload"
)

// Pool is a number of huge pages of one size on one NUMA node.
type Pool struct {
	Node           int
	SizeKiB, Pages uint64
}

// CheckPools refuses numbers of huge pages that the machine of a view cannot have, with class Invalid, and numbers below
// what pods have or what is reserved, with class Precondition. requested and reserved are the amounts of all pods and
// of the system, by resource. The fields of violations are those of "pools".
func CheckPools(view *ledger.View, pools []Pool, requested, reserved workload.Quantities) error {
	var vs errdefs.Violations
	if len(pools) == 0 {
		vs.Addf("pools", "expected at least one")
	}
	machine := view.Machine()
	// sums are the bytes of each resource on all nodes after the change, and more are those by which the
	// huge pages of a node grow.
	sums, more := map[workload.Resource]uint64{}, map[int]int64{}
	for _, n := range machine.Nodes() {
		for _, h := range n.HugePages {
			sums[workload.Resource(hugePages(h.SizeKiB))] += h.Count * h.SizeKiB << 10
		}
	}
	seen := map[[2]uint64]bool{}
	for i, p := range pools {
		field := func(name string) string { return fmt.Sprintf("pools[%d].%s", i, name) }
		n, ok := machine.Node(p.Node)
		if !ok {
			vs.Addf(field("numa_node"), "the machine has no NUMA node %d; it has %s", p.Node, machine.NodeMask())
			continue
		}
		was, sizes := uint64(0), ""
		known := false
		for _, h := range n.HugePages {
			sizes += " " + workload.Memory.Text(int64(h.SizeKiB<<10))
			if h.SizeKiB == p.SizeKiB {
				was, known = h.Count, true
			}
		}
		key := [2]uint64{uint64(p.Node), p.SizeKiB}
		switch {
		case !known:
			vs.Addf(field("page_size_bytes"), "NUMA node %d has no huge pages of this size; it has the sizes%s", p.Node, sizes)
		case seen[key]:
			vs.Addf(field("numa_node"), "NUMA node %d is twice among the pools of this page size", p.Node)
		case p.Pages > n.MemoryBytes/(p.SizeKiB<<10):
			vs.Addf(field("count"), "NUMA node %d has %d bytes of memory, room for %d such pages", p.Node, n.MemoryBytes,
				n.MemoryBytes/(p.SizeKiB<<10))
		default:
			resource := workload.Resource(hugePages(p.SizeKiB))
			sums[resource] = sums[resource] - was*p.SizeKiB<<10 + p.Pages*p.SizeKiB<<10
			more[p.Node] += int64(p.Pages*p.SizeKiB<<10) - int64(was*p.SizeKiB<<10)
		}
		seen[key] = true
	}
	if err := vs.Err("huge pages"); err != nil {
		return err
	}
	for _, p := range pools {
		resource := workload.Resource(hugePages(p.SizeKiB))
		if err := enoughOn(view, p, string(resource)); err != nil {
			return err
		}
		if needs := uint64(max(0, requested[resource])) + uint64(max(0, reserved[resource])); sums[resource] < needs {
			return errdefs.Preconditionf("all NUMA nodes together would have %s of %s, and pods have %s, and %s are reserved",
				quantity(sums[resource]), resource, quantity(uint64(max(0, requested[resource]))),
				quantity(uint64(max(0, reserved[resource]))))
		}
	}
	if err := memoryLeft(view, more); err != nil {
		return err
	}
	return allMemoryLeft(view, more, requested, reserved)
}

// memoryLeft refuses huge pages that take memory of a node which pods have, or which is reserved there. more are the bytes
// by which the huge pages of nodes grow.
func memoryLeft(view *ledger.View, more map[int]int64) error {
	held := view.MemoryUse().Held(string(workload.Memory))
	for _, m := range view.Rules().Memory {
		grow := more[m.Node]
		if m.Resource != string(workload.Memory) || grow <= 0 {
			continue
		}
		if free := m.Allocatable - min(m.Allocatable, held[m.Node]); uint64(grow) > free {
			return errdefs.Preconditionf("the huge pages would take %s more of NUMA node %d, which has %s of memory for pods, and pods have %s of it: remove pods, move them, or set fewer huge pages",
				quantity(uint64(grow)), m.Node, quantity(m.Allocatable), quantity(held[m.Node]))
		}
	}
	return nil
}

// allMemoryLeft refuses huge pages that take memory of all nodes together which pods request, or which is reserved.
func allMemoryLeft(view *ledger.View, more map[int]int64, requested, reserved workload.Quantities) error {
	has, known := ledger.PresentMemory(view.Machine(), workload.Memory)
	var left, grow int64
	for id := range view.Machine().NodeMask().All() {
		left += int64(min(has[id], maxBytes)) - more[id]
		grow += more[id]
	}
	pods, system := max(0, requested[workload.Memory]), max(0, reserved[workload.Memory])
	if known && grow > 0 && left < pods+system {
		return errdefs.Preconditionf("all NUMA nodes together would have %s of memory left, and pods request %s, and %s are reserved: remove pods, or set fewer huge pages",
			quantity(uint64(max(0, left))), quantity(uint64(pods)), quantity(uint64(system)))
	}
	return nil
}

// enoughOn refuses fewer huge pages than pods have on a node and are reserved there.
func enoughOn(view *ledger.View, p Pool, resource string) error {
	held := view.MemoryUse().Held(resource)[p.Node]
	var reserved uint64
	for _, m := range view.Rules().Memory {
		if m.Node == p.Node && m.Resource == resource {
			reserved = m.Total - min(m.Total, m.Allocatable)
		}
	}
	if bytes := p.Pages * p.SizeKiB << 10; bytes < held+reserved {
		return errdefs.Preconditionf("NUMA node %d would have %s of %s, and pods have %s there, and %s are reserved: remove pods, or move them",
			p.Node, quantity(bytes), resource, quantity(held), quantity(reserved))
	}
	return nil
}
