package main

import (
	"cmp"
	"encoding/json"
	"maps"
	"slices"

	"github.com/berthd/berth/hack/conformance/vector"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/memory"
	"github.com/berthd/berth/managers/numa"
	"github.com/berthd/berth/managers/workload"
)

// memoryState is a recorded state. Reusable has what a pod's init containers hand
// on, by list of nodes and resource.
type memoryState struct {
	Nodes          map[int]memoryNode                     `json:"nodes,omitempty"`
	Assignments    map[string]map[string][]memoryBlock    `json:"assignments,omitempty"`
	PodAssignments map[string][]memoryBlock               `json:"pod_assignments,omitempty"`
	Reusable       map[string]map[numa.Mask]resourceBytes `json:"reusable"`
}

type resourceBytes map[string]uint64

type memoryNode struct {
	Assignments int                    `json:"assignments"`
	Cells       []int                  `json:"cells"`
	Memory      map[string]memoryTable `json:"memory"`
}

type memoryTable struct {
	Total          uint64 `json:"total"`
	SystemReserved uint64 `json:"system_reserved"`
	Allocatable    uint64 `json:"allocatable"`
	Reserved       uint64 `json:"reserved"`
	Free           uint64 `json:"free"`
}

// memoryBlock is a block of a container or pod, by type in lists.
type memoryBlock struct {
	NUMA vector.Mask `json:"numa"`
	Type string      `json:"type"`
	Size uint64      `json:"size"`
}

// with returns the state after adding claims. Tables and groups are the manager's. The number of
// blocks grows by the difference of the manager's. record is the pod with its new claims.
func (s memoryState) with(before, after []memory.NodeState, record *ledger.Pod, claims []ledger.Claim) memoryState {
	out, uid := s.clone(), record.UID()
	out.Reusable = map[string]map[numa.Mask]resourceBytes{uid: {}}
	for i, n := range after {
		node := memoryNode{s.Nodes[n.Node].Assignments + n.Blocks - before[i].Blocks, n.Group.IDs(), map[string]memoryTable{}}
		for _, r := range n.Resources {
			t := memoryTable{r.Total, r.SystemReserved, r.Allocatable, r.Held, r.Free}
			if was := s.Nodes[n.Node].Memory[r.Resource]; was.Allocatable == r.Allocatable {
				// In tables written by hand these two need not go with the rest.
				t.Total, t.SystemReserved = was.Total, was.SystemReserved
			}
			node.Memory[r.Resource] = t
		}
		out.Nodes[n.Node] = node
	}
	claims = slices.SortedStableFunc(slices.Values(claims), func(a, b ledger.Claim) int {
		return cmp.Compare(walkedAt(record, a.Owner.Container), walkedAt(record, b.Owner.Container))
	})
	for _, c := range claims {
		if len(c.Memory) == 0 {
			continue
		}
		block, name := blockOf(c), c.Owner.Container
		if name == "" {
			out.PodAssignments[uid] = append(out.PodAssignments[uid], block)
			continue
		}
		held := out.Assignments[uid]
		if _, whole := out.PodAssignments[uid]; !whole {
			shrink(held, &record.Pod, name, block)
		}
		put(out.Assignments, uid, name, append(held[name], block))
	}
	for key, bytes := range handedOnBy(record) {
		put(out.Reusable[uid], key.nodes, key.resource, bytes)
	}
	return out
}

// walkedAt is when a container has its turn; that of the pod as a whole is first.
func walkedAt(record *ledger.Pod, container string) int {
	for i, c := range record.Pod.Walk() {
		if c.Name == container {
			return i
		}
	}
	return -1
}

// clone copies the state; its maps are not nil.
func (s memoryState) clone() memoryState {
	out := memoryState{Nodes: map[int]memoryNode{}, Assignments: map[string]map[string][]memoryBlock{},
		PodAssignments: map[string][]memoryBlock{}}
	if err := json.Unmarshal([]byte(render(s)), &out); err != nil {
		panic(err)
	}
	return out
}

// shrink subtracts a new block from the blocks of the pod's earlier init containers on the same
// nodes. The reference records them so. In berth a claim keeps its size, and later claims
// determine the rest.
func shrink(held map[string][]memoryBlock, pod *workload.Pod, name string, block memoryBlock) {
	rest := block.Size
	for _, c := range pod.Walk() {
		if c.Name == name {
			return
		}
		if !c.Role.Feeds() {
			continue
		}
		for i := range held[c.Name] {
			if b := &held[c.Name][i]; b.Type == block.Type && b.NUMA == block.NUMA {
				n := min(b.Size, rest)
				b.Size -= n
				rest -= n
			}
		}
	}
}

// handedOnBy is what a pod's init containers still leave, as the ledger has it.
func handedOnBy(record *ledger.Pod) map[reuseKey]uint64 {
	out := map[reuseKey]uint64{}
	for _, c := range record.Claims {
		container := record.Pod.Container(c.Owner.Container)
		if container == nil || !container.Role.Feeds() {
			continue
		}
		for _, b := range c.Memory {
			left := record.ReusableMemory("", c.Resource, b.Nodes)
			if bytes := left.Total(); bytes > 0 {
				out[reuseKey{b.Nodes, c.Resource}] = bytes
			}
		}
	}
	return out
}

// without returns the state after a container was removed, by the reference's
// rule: a block is freed from its lowest node up, wherever it was counted.
func (s memoryState) without(uid, container string) memoryState {
	blocks, known := s.Assignments[uid][container]
	if !known {
		return s
	}
	out := s.clone()
	delete(out.Assignments[uid], container)
	last := len(out.Assignments[uid]) == 0
	if last {
		delete(out.Assignments, uid)
	}
	if whole, ok := s.PodAssignments[uid]; ok {
		if blocks = nil; last {
			blocks = whole
			delete(out.PodAssignments, uid)
		}
	}
	for _, b := range blocks {
		rest := b.Size
		for id := range b.NUMA.All() {
			node := out.Nodes[id]
			if node.Assignments--; node.Assignments == 0 {
				node.Cells = []int{id}
			}
			t := node.Memory[b.Type]
			n := min(t.Reserved, rest)
			t.Reserved, t.Free = t.Reserved-n, t.Free+n
			node.Memory[b.Type] = t
			out.Nodes[id] = node
			rest -= n
		}
	}
	return out
}

// differs compares with a recorded state. Reusable memory is compared only for the current pod:
// the reference deletes the others', which in berth follow from their claims.
func (s memoryState) differs(want memoryState, uid string) string {
	if len(s.Nodes) != len(want.Nodes) {
		return "nodes"
	}
	for id, node := range s.Nodes {
		w := want.Nodes[id]
		slices.Sort(w.Cells)
		switch {
		case node.Assignments != w.Assignments:
			return "number of blocks"
		case !slices.Equal(node.Cells, w.Cells):
			return "groups"
		case !maps.Equal(node.Memory, w.Memory):
			return "tables"
		}
	}
	switch {
	case !maps.EqualFunc(s.held(), want.held(), slices.Equal[[]memoryBlock]):
		return "assignments"
	}
	if uid != "" && !maps.Equal(s.handedOn(uid), want.handedOn(uid)) {
		return "what is handed on"
	}
	return ""
}

// differsInSums compares with a recorded state after releases that the ledger and the reference
// counted on different nodes. In the reference, undoing a rejected pod moves bytes of other pods
// between nodes. The sums of the groups are equal.
func (s memoryState) differsInSums(want memoryState) string {
	if !maps.Equal(s.groupSums(), want.groupSums()) {
		return s.differs(want, "")
	}
	level := memoryState{Nodes: maps.Clone(s.Nodes), Assignments: s.Assignments, PodAssignments: s.PodAssignments}
	for id, node := range level.Nodes {
		node.Memory = want.Nodes[id].Memory
		level.Nodes[id] = node
	}
	return level.differs(want, "")
}

// held are the blocks of every owner that has any.
func (s memoryState) held() map[ledger.Owner][]memoryBlock {
	out := map[ledger.Owner][]memoryBlock{}
	for uid, blocks := range s.PodAssignments {
		out[ledger.Owner{Pod: uid}] = blocks
	}
	for uid, containers := range s.Assignments {
		for name, blocks := range containers {
			out[ledger.Owner{Pod: uid, Container: name}] = blocks
		}
	}
	maps.DeleteFunc(out, func(_ ledger.Owner, blocks []memoryBlock) bool { return len(blocks) == 0 })
	return out
}

// groupSums adds up the held amounts by group and resource.
func (s memoryState) groupSums() map[reuseKey]uint64 {
	sums := map[reuseKey]uint64{}
	for _, node := range s.Nodes {
		for name, t := range node.Memory {
			sums[reuseKey{numa.Of(node.Cells...), name}] += t.Reserved
		}
	}
	return sums
}
