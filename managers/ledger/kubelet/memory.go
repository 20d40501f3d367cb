package kubelet

import (
	"fmt"
	"maps"
	"slices"

	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/machine"
	"github.com/berthd/berth/managers/numa"
	"github.com/berthd/berth/managers/workload"
)

// MemoryState is the content of memory_manager_state.
type MemoryState struct {
	// Format is what the state was read from: 1, 2 (1.36 with the gate
	// PodLevelResourceManagers) or 3 (since 1.37). Formats 2 and 3 have a place for Pods.
	Format int
	// Policy is "None" or "Static".
	Policy string
	// Nodes are the tables by NUMA node id; none before the first start.
	Nodes map[int]MemoryNode
	// Containers are the blocks of containers by pod uid and container name.
	Containers map[string]map[string][]MemoryBlock
	// Pods are the blocks of pods as a whole by pod uid. The blocks of their containers are parts
	// of them.
	Pods map[string][]MemoryBlock
}

// MemoryNode is a node in the file.
type MemoryNode struct {
	// Blocks is the number of blocks on the node (numberOfAssignments).
	Blocks int
	// Group are the nodes that are used together with this one (cells).
	Group numa.Mask
	// Tables by resource.
	Tables map[string]MemoryTable
}

// MemoryTable is a resource of a node in the file, in bytes. The kubelet subtracts without a
// check, so a negative amount is near 2^64.
type MemoryTable struct {
	Total, SystemReserved, Allocatable, Reserved, Free uint64
}

// MemoryBlock is an amount of a resource on some nodes.
type MemoryBlock struct {
	Nodes    numa.Mask
	Resource string
	Bytes    uint64
}

// Check reports whether the kubelet's static policy would accept the state, on a machine with
// these nodes and reserved bytes by node and resource. It places all blocks on empty tables and
// compares. The nodes, the numbers of blocks, the groups, the resources and their sizes must be
// equal. The sums of held and free bytes over each group must be equal. All errors are of class
// Precondition and name the first difference.
func (s *MemoryState) Check(nodes []machine.Node, reserved map[int]map[string]uint64) error {
	if len(s.Nodes) == 0 {
		if len(s.Containers) > 0 {
			return errdefs.Preconditionf("there are blocks of %d pods, and no tables", len(s.Containers))
		}
		return nil
	}
	expected, err := s.tables(nodes, reserved)
	if err != nil {
		return err
	}
	return s.compare(expected)
}

// tables places all blocks on the empty tables of a machine.
func (s *MemoryState) tables(nodes []machine.Node, reserved map[int]map[string]uint64) (map[int]MemoryNode, error) {
	out := emptyTables(nodes, reserved)
	for _, uid := range slices.Sorted(maps.Keys(s.Containers)) {
		if whole, ok := s.Pods[uid]; ok {
			if err := place(out, whole); err != nil {
				return nil, errdefs.Preconditionf("pod %s: %w", uid, err)
			}
			continue
		}
		for _, name := range slices.Sorted(maps.Keys(s.Containers[uid])) {
			if err := place(out, s.Containers[uid][name]); err != nil {
				return nil, errdefs.Preconditionf("pod %s, container %s: %w", uid, name, err)
			}
		}
	}
	return out, nil
}

// emptyTables are the tables of a machine without pods.
func emptyTables(nodes []machine.Node, reserved map[int]map[string]uint64) map[int]MemoryNode {
	out := make(map[int]MemoryNode, len(nodes))
	for _, node := range nodes {
		table := func(resource string, total, elsewhere uint64) MemoryTable {
			kept := reserved[node.ID][resource]
			free := total - kept - elsewhere
			return MemoryTable{Total: total, SystemReserved: kept, Allocatable: free, Free: free}
		}
		tables := map[string]MemoryTable{}
		var pages uint64
		for _, p := range node.HugePages {
			total := p.Count * p.SizeKiB * 1024
			name := string(workload.HugePagesOf(int64(p.SizeKiB * 1024)))
			tables[name] = table(name, total, 0)
			pages += total
		}
		tables[string(workload.Memory)] = table(string(workload.Memory), node.MemoryBytes, pages)
		out[node.ID] = MemoryNode{Group: numa.Of(node.ID), Tables: tables}
	}
	return out
}

// place charges blocks as the kubelet does: each node of a block gives its free bytes, from the
// lowest up.
func place(nodes map[int]MemoryNode, blocks []MemoryBlock) error {
	for _, b := range blocks {
		rest := b.Bytes
		for id := range b.Nodes.All() {
			node, known := nodes[id]
			if !known {
				return fmt.Errorf("a block of %s is on NUMA node %d, which does not exist", b.Resource, id)
			}
			t, known := node.Tables[b.Resource]
			if !known {
				return fmt.Errorf("a block is one of %s, which NUMA node %d does not have", b.Resource, id)
			}
			n := min(rest, t.Free)
			t.Reserved, t.Free = t.Reserved+n, t.Free-n
			rest -= n
			node.Tables[b.Resource] = t
			node.Blocks++
			node.Group = b.Nodes
			nodes[id] = node
		}
	}
	return nil
}

func (s *MemoryState) compare(expected map[int]MemoryNode) error {
	if len(s.Nodes) != len(expected) {
		return errdefs.Preconditionf("there are tables of %d NUMA nodes, and the machine has %d", len(s.Nodes), len(expected))
	}
	for _, id := range slices.Sorted(maps.Keys(s.Nodes)) {
		got, want := s.Nodes[id], expected[id]
		switch {
		case want.Tables == nil:
			return errdefs.Preconditionf("there is a table of NUMA node %d, which does not exist", id)
		case got.Blocks != want.Blocks:
			return errdefs.Preconditionf("NUMA node %d counts %d blocks and has %d", id, got.Blocks, want.Blocks)
		case got.Group != want.Group:
			return errdefs.Preconditionf("NUMA node %d is in group %s, and its blocks in %s", id, got.Group, want.Group)
		case !s.partition(got.Group):
			return errdefs.Preconditionf("NUMA node %d is in group %s, but a node of that group is in another group: a kubelet continues from this only by chance", id, got.Group)
		case len(got.Tables) != len(want.Tables):
			return errdefs.Preconditionf("NUMA node %d has tables of %d resources instead of %d", id, len(got.Tables), len(want.Tables))
		}
		for _, resource := range slices.Sorted(maps.Keys(got.Tables)) {
			t, w := got.Tables[resource], want.Tables[resource]
			held, free := sums(s.Nodes, got.Group, resource)
			wantHeld, wantFree := sums(expected, got.Group, resource)
			switch {
			case t.Total != w.Total || t.SystemReserved != w.SystemReserved || t.Allocatable != w.Allocatable:
				return errdefs.Preconditionf("NUMA node %d has of %s %d bytes, %d reserved and %d allocatable, instead of %d, %d and %d",
					id, resource, t.Total, t.SystemReserved, t.Allocatable, w.Total, w.SystemReserved, w.Allocatable)
			case held != wantHeld || free != wantFree:
				return errdefs.Preconditionf("of %s, NUMA nodes %s count %d bytes as held and %d as free, instead of %d and %d",
					resource, got.Group, held, free, wantHeld, wantFree)
			}
		}
	}
	return nil
}

// partition reports whether all nodes of a group have that group. Otherwise the kubelet's
// expected tables depend on its order of the pods, which is random (kubernetes#113035).
func (s *MemoryState) partition(group numa.Mask) bool {
	for id := range group.All() {
		if s.Nodes[id].Group != group {
			return false
		}
	}
	return true
}

// sums adds up the held and free bytes over a group.
func sums(nodes map[int]MemoryNode, group numa.Mask, resource string) (held, free uint64) {
	for id := range group.All() {
		t := nodes[id].Tables[resource]
		held, free = held+t.Reserved, free+t.Free
	}
	return held, free
}
