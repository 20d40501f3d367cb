package memory

import (
	"fmt"
	"math/bits"

	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/numa"
)

// FreePages counts what the kernel has free of a page size on a node at the moment
// (free_hugepages below /sys/devices/system/node/node<N>/hugepages; see
// Documentation/admin-guide/mm/hugetlbpage.rst).
type FreePages struct {
	Node           int
	SizeKiB, Pages uint64
}

// PageShortage means that a plan promises more huge pages than the kernel has
// free, although the usage table has enough: another program took them.
type PageShortage struct {
	Resource string
	Nodes    numa.Mask
	// Need is what the plan takes, Free what is free by the ledger before it,
	// Kernel what the kernel has free, or would have without the pods that are not in the view;
	// in bytes.
	Need, Free, Kernel uint64
}

// String returns a sentence with all numbers.
func (s PageShortage) String() string {
	return fmt.Sprintf("%s of %s are needed on NUMA nodes %s, where %s are free by the ledger and the kernel has %s",
		quantity(s.Need), s.Resource, s.Nodes, quantity(s.Free), quantity(s.Kernel))
}

// checkPages compares what a plan takes of huge pages, group by group, with what
// the kernel has free. present is the view at the moment at which it had these free,
// base the view without the plan and planned the one with it. Sizes and nodes that free
// does not mention count as none. Pages that were promised and never touched are free to
// the kernel too, so nothing found means that this pod can have its pages, not that all
// pods can.
func (m *Manager) checkPages(present, base, planned *ledger.View, free []FreePages) []PageShortage {
	now, before, after := m.table(present), m.table(base), m.table(planned)
	var out []PageShortage
	for _, c := range m.capacities {
		kernel, isPages := kernelFree(c.resource, free)
		if !isPages {
			continue
		}
		held, usage, left := now.free(c), before.free(c), after.free(c)
		for _, group := range after.everyGroup() {
			need := usage.sum(group) - left.sum(group)
			have := kernel.sum(group)
			if freed := usage.sum(group) - held.sum(group); freed > 0 {
				have = min(have+freed, c.total.sum(group))
			}
			if need > have {
				out = append(out, PageShortage{
					Resource: c.resource, Nodes: group,
					Need: uint64(need), Free: uint64(max(usage.sum(group), 0)), Kernel: uint64(have),
				})
			}
		}
	}
	return out
}

// everyGroup lists the groups of used nodes, those of one node included, by their
// lowest nodes.
func (t *table) everyGroup() []numa.Mask {
	var out []numa.Mask
	var seen numa.Mask
	for id := range t.used.All() {
		group := t.use.Groups[id]
		if seen.Contains(id) {
			continue
		}
		out = append(out, group)
		seen = seen.Union(group)
	}
	return out
}

// kernelFree adds up what is free of a resource by node; false if it is not huge
// pages.
func kernelFree(resource string, free []FreePages) (by amounts, isPages bool) {
	if resource == "memory" {
		return by, false
	}
	for _, f := range free {
		if f.Node < 0 || f.Node >= len(by) || hugePages(f.SizeKiB) != resource {
			continue
		}
		hi, bytes := bits.Mul64(f.Pages, min(f.SizeKiB, maxBytes/1024)*1024)
		if hi != 0 {
			bytes = maxBytes
		}
		by[f.Node] = int64(min(bytes, maxBytes))
	}
	return by, true
}
