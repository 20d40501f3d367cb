package main

import (
	"fmt"
	"maps"
	"math"
	"slices"

	"github.com/berthd/berth/hack/conformance/vector"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/machine"
	"github.com/berthd/berth/managers/memory"
	"github.com/berthd/berth/managers/numa"
	"github.com/berthd/berth/managers/workload"
)

// memorySetup is what all cases of the static memory policy are set up with.
type memorySetup struct {
	Gates   vector.Gates `json:"gates"`
	Machine struct {
		Nodes []vector.Node `json:"nodes"`
	} `json:"machine"`
	Reserved map[int]map[string]uint64 `json:"reserved"`
}

// memoryBench is a manager and an empty ledger on a machine.
type memoryBench struct {
	*memory.Manager
	base *ledger.View
}

// bench builds the manager. Some of the reference's own tests have hand-written tables that do
// not match their machine, or have no machine. The machine is then derived from the tables'
// allocatable amounts.
func (s memorySetup) bench(state memoryState, asKubelet bool) (*memoryBench, error) {
	if len(s.Machine.Nodes) > 0 {
		b, err := s.build(s.Machine.Nodes, s.Reserved, asKubelet)
		if err != nil || state.wrapped() || state.allocatable(b.State(b.base)) {
			return b, err
		}
	}
	nodes, reserved := state.machine()
	return s.build(nodes, reserved, asKubelet)
}

// wrapped reports whether an allocatable amount is negative.
func (s memoryState) wrapped() bool {
	for _, node := range s.Nodes {
		for _, t := range node.Memory {
			if t.Allocatable > math.MaxInt64 {
				return true
			}
		}
	}
	return false
}

// allocatable reports whether the state has the nodes and allocatable amounts of
// the manager.
func (s memoryState) allocatable(nodes []memory.NodeState) bool {
	for _, n := range nodes {
		node, known := s.Nodes[n.Node]
		if !known || len(node.Memory) != len(n.Resources) {
			return false
		}
		for _, r := range n.Resources {
			if node.Memory[r.Resource].Allocatable != r.Allocatable {
				return false
			}
		}
	}
	return len(nodes) == len(s.Nodes)
}

func (s memorySetup) build(nodes []vector.Node, reserved map[int]map[string]uint64, asKubelet bool) (*memoryBench, error) {
	topo, err := memoryMachine(nodes)
	if err != nil {
		return nil, err
	}
	m, err := s.manager(reserved, topo, asKubelet)
	if err != nil {
		return nil, err
	}
	return &memoryBench{Manager: m, base: ledger.Empty(ledger.Rules{Machine: topo})}, nil
}

// manager builds the manager. The recordings have only reservations by node. The reservation of
// the whole machine is their sum.
func (s memorySetup) manager(reserved map[int]map[string]uint64, topo *machine.Topology, asKubelet bool) (*memory.Manager, error) {
	cfg := memory.Config{
		Policy:          memory.PolicyStatic,
		SystemReserved:  map[workload.Resource]uint64{},
		AllowUnreserved: true,
		Features:        s.Gates.Features(),
		AsKubelet:       asKubelet,
	}
	for node, limits := range reserved {
		for name, bytes := range limits {
			if bytes > 0 {
				r := workload.Resource(name)
				cfg.Reserved = append(cfg.Reserved, memory.Reservation{Node: node, Resource: r, Bytes: bytes})
				cfg.SystemReserved[r] += bytes
			}
		}
	}
	return memory.New(cfg, topo)
}

// memoryMachine is a machine with the memory of the recorded nodes, and one CPU.
func memoryMachine(nodes []vector.Node) (*machine.Topology, error) {
	return machine.New(machine.Snapshot{
		CPUs:  []machine.CPU{{Node: nodes[0].ID}},
		Nodes: vector.Nodes(nodes),
	})
}

// machine returns the nodes and reservations that lead to the state's tables; one
// node without anything if it has none.
func (s memoryState) machine() (nodes []vector.Node, reserved map[int]map[string]uint64) {
	reserved = map[int]map[string]uint64{}
	if len(s.Nodes) == 0 {
		return []vector.Node{{}}, reserved
	}
	for _, id := range slices.Sorted(maps.Keys(s.Nodes)) {
		node := vector.Node{ID: id}
		reserved[id] = map[string]uint64{}
		for name, t := range s.Nodes[id].Memory {
			reserved[id][name] = t.SystemReserved
			node.Memory += t.Allocatable + t.SystemReserved
			if size, err := workload.HugePageSize(workload.Resource(name)); err == nil {
				pages := (t.Allocatable + t.SystemReserved) / uint64(size)
				node.HugePages = append(node.HugePages, vector.Pages{PageSizeKiB: uint64(size) / 1024, NumPages: pages})
				node.Memory -= t.SystemReserved + t.Allocatable - pages*uint64(size)
			}
		}
		nodes = append(nodes, node)
	}
	return nodes, reserved
}

const (
	// usage is a pod that holds what a recorded state counts.
	usage = "usage"
	// nothing is a resource of which only the block counts, not its bytes.
	nothing = "nothing"
)

// view returns the state as a view in which next, if it holds nothing yet, is the
// container that is to come.
func (b *memoryBench) view(s memoryState, pod *workload.Pod, next string) *ledger.View {
	records := seeded(pod)
	s.seed(records, pod, next)
	return records.on(b.base)
}

// seed adds the claims of the state.
//
// A recorded state has tables and blocks. After releases the tables do not follow from the
// blocks, because the reference frees from the lowest node, wherever the bytes were counted.
// Therefore a separate pod holds the amounts of the tables, on their nodes. The blocks keep their
// size and nodes but count for nothing. The exception is memory that the pod's init containers
// leave for reuse, which counts for the first of them with such a block. A state that leaves more
// than they hold is a mistake of the recording or of this function: it panics, and the case fails.
func (s memoryState) seed(records seed, pod *workload.Pod, next string) {
	handed := map[reuseKey]uint64{}
	if _, holds := s.Assignments[pod.UID][next]; next != "" && !holds {
		handed = s.handedOn(pod.UID)
	}
	counted := map[int]map[string]uint64{}
	add := func(uid, container string, blocks []memoryBlock) {
		if uid == pod.UID && blocks != nil && len(blocks) == 0 {
			// The reference notes even that a container has nothing.
			records.hold(uid, container, memoryClaim(nothing, ledger.Block{}))
		}
		for _, block := range blocks {
			lowest, _ := block.NUMA.Lowest()
			parts := []ledger.Part{{Node: lowest}}
			key := reuseKey{block.NUMA.Mask, block.Type}
			if c := pod.Container(container); uid == pod.UID && c != nil && c.Role.Feeds() && handed[key] > 0 {
				parts = s.spread(key, handed[key])
				delete(handed, key)
				for _, p := range parts {
					put(counted, p.Node, block.Type, counted[p.Node][block.Type]+p.Bytes)
				}
			}
			records.hold(uid, container, memoryClaim(block.Type, ledger.Block{Nodes: block.NUMA.Mask, Bytes: block.Size, Parts: parts}))
		}
	}
	for uid, blocks := range s.PodAssignments {
		add(uid, "", blocks)
	}
	for uid, containers := range s.Assignments {
		for _, name := range slices.Sorted(maps.Keys(containers)) {
			add(uid, name, containers[name])
		}
	}
	if len(handed) > 0 {
		panic(fmt.Sprintf("pod %s has handed on what none of its init containers holds: %v", pod.UID, handed))
	}
	s.keepUsage(records, counted)
}

func memoryClaim(resource string, b ledger.Block) ledger.Claim {
	return ledger.Claim{Provider: memory.Name, Resource: resource, Memory: []ledger.Block{b}}
}

// reuseKey is where an amount is handed on: on exactly these nodes.
type reuseKey struct {
	nodes    numa.Mask
	resource string
}

// handedOn is what the state has as reusable for a pod.
func (s memoryState) handedOn(uid string) map[reuseKey]uint64 {
	out := map[reuseKey]uint64{}
	for nodes, amounts := range s.Reusable[uid] {
		for resource, bytes := range amounts {
			if bytes > 0 {
				out[reuseKey{nodes, resource}] = bytes
			}
		}
	}
	return out
}

// spread divides an amount among nodes where the tables count so much, from the
// lowest up.
func (s memoryState) spread(key reuseKey, bytes uint64) []ledger.Part {
	parts := []ledger.Part{}
	for id := range key.nodes.All() {
		n := min(bytes, s.Nodes[id].Memory[key.resource].Reserved)
		parts = append(parts, ledger.Part{Node: id, Bytes: n})
		bytes -= n
	}
	parts[len(parts)-1].Bytes += bytes
	return parts
}

// keepUsage makes a pod hold the amounts of the tables that are not counted yet, with the tables'
// groups. An amount on a node without blocks, whose origin the reference has lost, is held on no
// nodes.
func (s memoryState) keepUsage(records seed, counted map[int]map[string]uint64) {
	for _, id := range slices.Sorted(maps.Keys(s.Nodes)) {
		node := s.Nodes[id]
		container := fmt.Sprint("node", id)
		var group numa.Mask
		if node.Assignments > 0 {
			group = numa.Of(node.Cells...)
			records.hold(usage, container, memoryClaim(nothing, ledger.Block{Nodes: group, Parts: []ledger.Part{{Node: id}}}))
		}
		for _, name := range slices.Sorted(maps.Keys(node.Memory)) {
			if bytes := node.Memory[name].Reserved - counted[id][name]; bytes > 0 {
				records.hold(usage, container, memoryClaim(name, ledger.Block{
					Nodes: group, Bytes: bytes, Parts: []ledger.Part{{Node: id, Bytes: bytes}},
				}))
			}
		}
	}
}

func (b *memoryBench) planned(s memoryState, before, after *ledger.View, owner ledger.Owner, claims []ledger.Claim,
	refusal error) (memoryResult, memoryState) {
	record, _ := after.Pod(owner.Pod)
	res := memoryResult{OK: refusal == nil, Error: memoryError(refusal), Blocks: blocksOf(record, owner.Container)}
	return res, s.with(b.State(before), b.State(after), record, claims)
}

func (b *memoryBench) removed(s memoryState, pod *workload.Pod, container string) (memoryResult, memoryState) {
	return memoryResult{OK: true}, s.without(pod.UID, container)
}

func blockOf(c ledger.Claim) memoryBlock {
	return memoryBlock{NUMA: vector.Mask{Mask: c.Memory[0].Nodes, Named: true}, Type: c.Resource, Size: c.Memory[0].Bytes}
}

// blocksOf returns what an owner holds, by resource.
func blocksOf(record *ledger.Pod, container string) []memoryBlock {
	var out []memoryBlock
	for _, c := range record.Claims {
		if c.Owner.Container == container && c.Memory != nil && c.Resource != nothing {
			out = append(out, blockOf(c))
		}
	}
	return out
}
