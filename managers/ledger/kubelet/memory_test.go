package kubelet_test

import (
	"strings"
	"testing"

	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/ledger/kubelet"
	"github.com/berthd/berth/managers/machine"
	"github.com/berthd/berth/managers/numa"
)

const gi = 1 << 30

// memoryNodes are two nodes with 4 GiB; the first has a page of 1 GiB.
func memoryNodes() []machine.Node {
	return []machine.Node{
		{ID: 0, MemoryBytes: 4 * gi, HugePages: []machine.HugePages{{SizeKiB: gi / 1024, Count: 1}}},
		{ID: 1, MemoryBytes: 4 * gi},
	}
}

// memoryState is what a kubelet has written that reserved 1 GiB on node 1 and
// admitted 5 GiB on both, a release having moved what is counted to node 1.
func memoryState() *kubelet.MemoryState {
	group := numa.Of(0, 1)
	return &kubelet.MemoryState{
		Nodes: map[int]kubelet.MemoryNode{
			0: {Blocks: 1, Group: group, Tables: map[string]kubelet.MemoryTable{
				"memory":        {Total: 4 * gi, Allocatable: 3 * gi, Reserved: 2 * gi, Free: gi},
				"hugepages-1Gi": {Total: gi, Allocatable: gi, Free: gi},
			}},
			1: {Blocks: 1, Group: group, Tables: map[string]kubelet.MemoryTable{
				"memory": {Total: 4 * gi, SystemReserved: gi, Allocatable: 3 * gi, Reserved: 3 * gi},
			}},
		},
		Containers: map[string]map[string][]kubelet.MemoryBlock{"pod": {"c": {{Nodes: group, Resource: "memory", Bytes: 5 * gi}}}},
	}
}

func TestCheckMemory(t *testing.T) {
	t.Parallel()
	table := func(s *kubelet.MemoryState, node int, change func(*kubelet.MemoryTable)) {
		m := s.Nodes[node].Tables["memory"]
		change(&m)
		s.Nodes[node].Tables["memory"] = m
	}
	node := func(s *kubelet.MemoryState, id int, change func(*kubelet.MemoryNode)) {
		n := s.Nodes[id]
		change(&n)
		s.Nodes[id] = n
	}
	for _, row := range []struct {
		name   string
		change func(*kubelet.MemoryState)
		want   string // piece of the error, empty for none
	}{
		{"as written", func(*kubelet.MemoryState) {}, ""},
		{"before the first start", func(s *kubelet.MemoryState) { *s = kubelet.MemoryState{} }, ""},
		{"no tables", func(s *kubelet.MemoryState) { s.Nodes = nil }, "no tables"},
		{"a pod as a whole", func(s *kubelet.MemoryState) {
			s.Pods = map[string][]kubelet.MemoryBlock{"pod": s.Containers["pod"]["c"]}
			s.Containers["pod"]["d"] = []kubelet.MemoryBlock{{Nodes: 1, Resource: "memory", Bytes: gi}}
		}, ""},
		{"node gone", func(s *kubelet.MemoryState) {
			s.Containers = nil
			node(s, 1, func(n *kubelet.MemoryNode) { s.Nodes[2] = *n })
			delete(s.Nodes, 1)
			node(s, 0, func(n *kubelet.MemoryNode) { n.Blocks, n.Group = 0, numa.Of(0) })
			table(s, 0, func(m *kubelet.MemoryTable) { m.Reserved, m.Free = 0, 3*gi })
		}, "NUMA node 2, which does not exist"},
		{"one node more", func(s *kubelet.MemoryState) { s.Nodes[5] = kubelet.MemoryNode{} }, "3 NUMA nodes"},
		{"a page moved", func(s *kubelet.MemoryState) {
			table(s, 0, func(m *kubelet.MemoryTable) { m.Total += 4096 })
		}, "NUMA node 0 has of memory"},
		{"bytes lost", func(s *kubelet.MemoryState) {
			table(s, 1, func(m *kubelet.MemoryTable) { m.Reserved -= gi })
		}, "NUMA nodes 0-1 count"},
		{"a resource unknown", func(s *kubelet.MemoryState) { delete(s.Nodes[0].Tables, "hugepages-1Gi") },
			"tables of 1 resources instead of 2"},
		{"wrong count", func(s *kubelet.MemoryState) { node(s, 0, func(n *kubelet.MemoryNode) { n.Blocks++ }) },
			"counts 2 blocks and has 1"},
		{"wrong group", func(s *kubelet.MemoryState) { node(s, 0, func(n *kubelet.MemoryNode) { n.Group = numa.Of(0) }) },
			"in group 0, and its blocks in 0-1"},
		{"block on no node", func(s *kubelet.MemoryState) {
			s.Containers["pod"]["c"][0].Nodes = numa.Of(0, 3)
		}, "pod pod, container c: a block of memory is on NUMA node 3"},
		{"block of nothing", func(s *kubelet.MemoryState) {
			s.Containers["pod"]["c"][0].Resource = "hugepages-2Mi"
		}, "hugepages-2Mi, which NUMA node 0 does not have"},
		{"node in two groups", func(s *kubelet.MemoryState) {
			s.Containers["pod2"] = map[string][]kubelet.MemoryBlock{"c": {{Nodes: numa.Of(0), Resource: "memory"}}}
			node(s, 0, func(n *kubelet.MemoryNode) { n.Blocks, n.Group = 2, numa.Of(0) })
			table(s, 0, func(m *kubelet.MemoryTable) { m.Reserved, m.Free = 3*gi, 0 })
			table(s, 1, func(m *kubelet.MemoryTable) { m.Reserved, m.Free = 2*gi, gi })
		}, "only by chance"},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			s := memoryState()
			row.change(s)
			err := s.Check(memoryNodes(), map[int]map[string]uint64{1: {"memory": gi}})
			switch {
			case err == nil && row.want != "":
				t.Errorf("no error, want %q", row.want)
			case err != nil && (row.want == "" || !strings.Contains(err.Error(), row.want) || errdefs.ClassOf(err) != errdefs.Precondition):
				t.Errorf("got %v, want %q", err, row.want)
			}
		})
	}
}
