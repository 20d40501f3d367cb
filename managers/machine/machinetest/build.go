// Package machinetest makes machines for tests and benchmarks.
//
// Build starts from a shape text (machine.ParseShape) and applies options, each
// one thing that real machines do and a shape cannot express: holes in the numbers,
// offline siblings, hybrid cores, odd caches. Everything here panics on a
// machine that machine.New refuses, since that is a mistake in the test.
//
// Invariant: equal arguments give equal machines.
//
// Other modules may import this package, and every release may change it.
package machinetest

import (
	"fmt"
	"slices"

	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/machine"
	"github.com/berthd/berth/managers/numa"
)

// Option changes the description of a made-up machine. Options are applied in
// the order they are given in.
type Option func(*machine.Snapshot)

// Build makes the machine of a shape text, changed by the options.
func Build(shape string, options ...Option) *machine.Topology {
	s := Describe(shape, options...)
	t, err := machine.New(s)
	if err != nil {
		panic(fmt.Sprintf("machinetest: build %s: %v", shape, err))
	}
	return t
}

// Describe is Build without the check, for tests of the check itself.
func Describe(shape string, options ...Option) machine.Snapshot {
	s, err := machine.ParseShape(shape)
	if err != nil {
		panic("machinetest: " + err.Error())
	}
	for _, option := range options {
		option(&s)
	}
	return s
}

// Named sets the name.
func Named(name string) Option {
	return func(s *machine.Snapshot) { s.Name = name }
}

// Memory sets the memory of one node, in bytes.
func Memory(node int, bytes uint64) Option {
	return onNode(node, func(n *machine.Node) { n.MemoryBytes = bytes })
}

// HugePages adds a page size to one node, or replaces its number of pages.
func HugePages(node int, sizeKiB, count uint64) Option {
	return onNode(node, func(n *machine.Node) {
		for i := range n.HugePages {
			if n.HugePages[i].SizeKiB == sizeKiB {
				n.HugePages[i].Count = count
				return
			}
		}
		n.HugePages = append(n.HugePages, machine.HugePages{SizeKiB: sizeKiB, Count: count})
	})
}

func onNode(id int, change func(*machine.Node)) Option {
	return func(s *machine.Snapshot) {
		i := slices.IndexFunc(s.Nodes, func(n machine.Node) bool { return n.ID == id })
		if i < 0 {
			panic(fmt.Sprintf("machinetest: the machine has no node %d", id))
		}
		change(&s.Nodes[i])
	}
}

// Offline takes CPUs offline. A core that loses its lowest thread gets another
// id, a core that loses all of them is gone, and a node may be left without CPUs.
func Offline(cpus string) Option {
	off := parse(cpus)
	return func(s *machine.Snapshot) {
		s.CPUs = slices.DeleteFunc(s.CPUs, func(c machine.CPU) bool { return off.Contains(c.ID) })
		s.Offline = s.Offline.Union(off)
		renameCores(s)
	}
}

// WithoutNodes takes nodes out of the machine, with their CPUs and their memory.
func WithoutNodes(ids ...int) Option {
	var gone numa.Mask
	for _, id := range ids {
		gone = gone.With(id)
	}
	return func(s *machine.Snapshot) {
		s.CPUs = slices.DeleteFunc(s.CPUs, func(c machine.CPU) bool { return gone.Contains(c.Node) })
		s.Nodes = slices.DeleteFunc(s.Nodes, func(n machine.Node) bool { return gone.Contains(n.ID) })
		s.Distances = s.Distances.Among(s.Distances.Nodes().Minus(gone))
	}
}

// NodeIDs gives the nodes, in ascending order, other ids: 0, 8 for a machine
// with a hole. Distances follow.
func NodeIDs(ids ...int) Option {
	return func(s *machine.Snapshot) {
		if len(ids) != len(s.Nodes) {
			panic(fmt.Sprintf("machinetest: %d node ids for %d nodes", len(ids), len(s.Nodes)))
		}
		renamed := make(map[int]int, len(ids))
		for i := range s.Nodes {
			renamed[s.Nodes[i].ID] = ids[i]
			s.Nodes[i].ID = ids[i]
		}
		for i := range s.CPUs {
			s.CPUs[i].Node = renamed[s.CPUs[i].Node]
		}
		rows := make(map[int]map[int]int, len(ids))
		for from, to := range renamed {
			rows[to] = make(map[int]int, len(ids))
			for from2, to2 := range renamed {
				if d, known := s.Distances.Between(from, from2); known {
					rows[to][to2] = d
				}
			}
		}
		s.Distances = distances(rows)
	}
}

// CPUIDs gives every online CPU another id. Cores are named again.
func CPUIDs(rename func(old int) int) Option {
	return func(s *machine.Snapshot) {
		for i := range s.CPUs {
			s.CPUs[i].ID = rename(s.CPUs[i].ID)
		}
		renameCores(s)
	}
}

// Distances replaces the distances: one row a node, in ascending order of ids.
func Distances(lists ...[]int) Option {
	return func(s *machine.Snapshot) {
		ids := make([]int, 0, len(s.Nodes))
		for _, n := range s.Nodes {
			ids = append(ids, n.ID)
		}
		rows := make(map[int]map[int]int, len(lists))
		for i, list := range lists {
			rows[ids[i]] = make(map[int]int, len(list))
			for j, d := range list {
				rows[ids[i]][ids[j]] = d
			}
		}
		s.Distances = distances(rows)
	}
}

// Uncore puts CPUs into one uncore.
func Uncore(cpus string, id int) Option {
	return onCPUs(cpus, func(c *machine.CPU) { c.Uncore = id })
}

// Socket moves CPUs to a socket.
func Socket(cpus string, id int) Option {
	return onCPUs(cpus, func(c *machine.CPU) { c.Socket = id })
}

// Efficient makes the given CPUs efficient cores and all others performance
// cores.
func Efficient(cpus string) Option {
	efficient := parse(cpus)
	return func(s *machine.Snapshot) {
		for i := range s.CPUs {
			s.CPUs[i].Kind = machine.KindPerformance
			if efficient.Contains(s.CPUs[i].ID) {
				s.CPUs[i].Kind = machine.KindEfficient
			}
		}
	}
}

// Counts replaces the counts that enter the averages.
func Counts(c machine.Counts) Option {
	return func(s *machine.Snapshot) { s.Counts = &c }
}

func onCPUs(cpus string, change func(*machine.CPU)) Option {
	set := parse(cpus)
	return func(s *machine.Snapshot) {
		for i := range s.CPUs {
			if set.Contains(s.CPUs[i].ID) {
				change(&s.CPUs[i])
			}
		}
	}
}

// renameCores gives every core the lowest id of the threads it has now.
func renameCores(s *machine.Snapshot) {
	lowest := make(map[int]int)
	for _, c := range s.CPUs {
		if id, ok := lowest[c.Core]; !ok || c.ID < id {
			lowest[c.Core] = c.ID
		}
	}
	for i := range s.CPUs {
		s.CPUs[i].Core = lowest[s.CPUs[i].Core]
	}
}

func parse(cpus string) cpuset.Set {
	set, err := cpuset.Parse(cpus)
	if err != nil {
		panic("machinetest: " + err.Error())
	}
	return set
}

func distances(rows map[int]map[int]int) numa.Distances {
	d, err := numa.NewDistances(rows)
	if err != nil {
		panic("machinetest: " + err.Error())
	}
	return d
}
