package machinetest

import (
	"iter"
	"slices"

	"github.com/berthd/berth/managers/machine"
)

// Hybrid is a client processor: 4 cores of 2 threads (CPUs 0-7, adjacent) and 4
// efficient cores of one thread (8-11). CPUsPerCore is 1, which is no core's
// size for half of them.
func Hybrid() *machine.Topology {
	return Build("1s12c", Named("hybrid"), Efficient("8-11"), func(s *machine.Snapshot) {
		for i := range s.CPUs[:8] {
			s.CPUs[i].Core = i / 2 * 2
		}
	})
}

// All yields one machine of every kind that is known to make trouble, each with
// a name of its own. The order is fixed.
func All() iter.Seq[*machine.Topology] {
	return slices.Values([]*machine.Topology{
		Build("1s4c2t", Named("SMT")),
		Build("1s4c2t,adjacent", Named("SMT, adjacent numbers")),
		Build("1s8c", Named("SMT off")),
		Build("2s1n4c8t", Named("SMT8, node ids 0 and 8"), NodeIDs(0, 8)),
		Build("2s2n2c2t", Named("two nodes a socket")),
		Build("2s4n32c2t,huge=2Mi:512,huge=1Gi:4", Named("512 CPUs")),
		Build("2s4n4l4c2t", Named("four L3 groups a node")),
		Build("1n2s4c2t", Named("one node over two sockets")),
		Build("2n2s2c2t", Named("two nodes of two sockets")),
		Build("2s2n4c", Named("sockets and nodes across each other"), Socket("0,2,4,6,8,10,12,14", 0), Socket("1,3,5,7,9,11,13,15", 1)),
		Hybrid(),
		Build("1s4c2t", Named("sibling offline"), Offline("7")),
		Build("2s1n4c2t", Named("first threads offline"), Offline("0-3")),
		Build("2s1n4c", Named("node without CPUs left"), Offline("4-7")),
		Build("2s1n6c2t", Named("uneven nodes"), Offline("6-9,18-21")),
		Build("2s1n4c2t", Named("CPU ids with gaps"), CPUIDs(func(id int) int { return id*3 + 100 })),
		Build("2s1n8c2m", Named("memory-only nodes")),
		Build("2s1n72c32m", Named("34 nodes, two with CPUs")),
		Build("3s1n4c", Named("node without memory"), Memory(1, 0)),
		Build("1s26c2t", Named("uneven L3 groups"),
			Uncore("0-7,26-33", 0), Uncore("8-15,34-41", 1), Uncore("16-21,42-47", 2), Uncore("22-25,48-51", 3)),
		Build("2s1n4c", Named("uncore id of one socket meets the other's id"), Uncore("0-1", 0), Uncore("2-3", 1), Uncore("4-7", 1)),
		Build("8s1c", Named("virtual machine with flat sockets")),
		Build("4c", Named("firmware without package ids"), Socket("0-3", -1), Uncore("0-3", -1)),
		Build("2s2n2c2t", Named("distances that are not symmetric"),
			Distances([]int{10, 12, 21, 31}, []int{12, 10, 31, 21}, []int{20, 30, 10, 12}, []int{30, 20, 12, 10})),
		Build("2s1n4c2t", Named("counts that disagree with the tables"),
			Counts(machine.Counts{CPUs: 16, Cores: 8, Sockets: 0, NUMANodes: 0, Uncores: 1})),
		Build("64n2c2t", Named("64 nodes")),
		Build("2s32n32c2t", Named("4096 CPUs on 64 nodes")),
	})
}
