package machine_test

import (
	"reflect"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/machine"
	"github.com/berthd/berth/managers/machine/machinetest"
	"github.com/berthd/berth/managers/numa"
)

// drawSnapshot draws a valid machine: ids with gaps, groups that do not nest,
// nodes without CPUs, everything in any order.
func drawSnapshot(t *rapid.T) machine.Snapshot {
	nodeIDs := rapid.SliceOfNDistinct(rapid.IntRange(0, numa.MaxNodes-1), 1, 8, rapid.ID[int]).Draw(t, "nodes")
	socketIDs := rapid.SliceOfNDistinct(rapid.IntRange(-1, 300), 1, 4, rapid.ID[int]).Draw(t, "sockets")
	cpuIDs := rapid.SliceOfNDistinct(rapid.OneOf(rapid.IntRange(0, 70), rapid.IntRange(0, cpuset.MaxCPUs-1)), 1, 40,
		rapid.ID[int]).Draw(t, "cpus")
	s := machine.Snapshot{Version: machine.FormatVersion}
	for rest := cpuIDs; len(rest) > 0; {
		threads := rest[:min(rapid.IntRange(1, 4).Draw(t, "threads"), len(rest))]
		rest = rest[len(threads):]
		node := rapid.SampledFrom(nodeIDs).Draw(t, "node")
		socket := rapid.SampledFrom(socketIDs).Draw(t, "socket")
		for _, id := range threads {
			s.CPUs = append(s.CPUs, machine.CPU{
				ID: id, Core: slices.Min(threads), Socket: socket, Die: -1, Cluster: -1, Node: node,
				Uncore: rapid.IntRange(-1, 5).Draw(t, "uncore"),
				Kind: rapid.SampledFrom([]machine.Kind{machine.KindUnknown, machine.KindPerformance,
					machine.KindEfficient}).Draw(t, "kind"),
			})
		}
	}
	for _, id := range nodeIDs {
		node := machine.Node{ID: id, MemoryBytes: rapid.Uint64Range(0, 1<<40).Draw(t, "memory")}
		for _, size := range rapid.SliceOfNDistinct(rapid.Uint64Range(1, 1<<21), 0, 3, rapid.ID[uint64]).Draw(t, "sizes") {
			node.HugePages = append(node.HugePages, machine.HugePages{SizeKiB: size, Count: rapid.Uint64Range(0, 1<<20).Draw(t, "count")})
		}
		s.Nodes = append(s.Nodes, node)
	}
	for _, id := range rapid.SliceOfDistinct(rapid.IntRange(0, 90), rapid.ID[int]).Draw(t, "offline") {
		if !slices.Contains(cpuIDs, id) {
			s.Offline = s.Offline.Union(cpuset.Of(id))
		}
	}
	return s
}

// naive answers from the list of CPUs, by looking at all of them.
func naive(s machine.Snapshot, match func(machine.CPU) bool) cpuset.Set {
	var ids []int
	for _, cpu := range s.CPUs {
		if match(cpu) {
			ids = append(ids, cpu.ID)
		}
	}
	return cpuset.Of(ids...)
}

func TestTablesAgreeWithList(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		s := drawSnapshot(t)
		m, err := machine.New(s)
		if err != nil {
			t.Fatal(err)
		}
		if got := m.CPUs(); got != naive(s, func(machine.CPU) bool { return true }) || got.Len() != m.NumCPUs() {
			t.Fatalf("CPUs are %s", got)
		}
		for _, level := range []struct {
			name string
			key  func(machine.CPU) int
			by   *machine.Partition
			of   func(int) cpuset.Set
			num  int
		}{
			{"core", func(c machine.CPU) int { return c.Core }, m.ByCore(), m.CPUsInCore, m.NumCores()},
			{"socket", func(c machine.CPU) int { return c.Socket }, m.BySocket(), m.CPUsInSocket, m.NumSockets()},
			{"node", func(c machine.CPU) int { return c.Node }, m.ByNode(), m.CPUsInNode, m.NumNUMANodes()},
			{"uncore", func(c machine.CPU) int { return c.Uncore }, m.ByUncore(), m.CPUsInUncore, m.NumUncores()},
		} {
			checkLevel(t, s, level.name, level.key, level.by, level.of)
			if level.num != level.by.Len() {
				t.Fatalf("%s: counted %d, grouped %d", level.name, level.num, level.by.Len())
			}
		}
		for _, cpu := range s.CPUs {
			if got, ok := m.CPU(cpu.ID); !ok || got != cpu {
				t.Fatalf("CPU %d is %+v, want %+v", cpu.ID, got, cpu)
			}
		}
		nodes := numa.Mask(rapid.Uint64().Draw(t, "mask"))
		if got, want := m.CPUsInNodes(nodes), naive(s, func(c machine.CPU) bool { return nodes.Contains(c.Node) }); got != want {
			t.Fatalf("CPUs of nodes %s are %s, want %s", nodes, got, want)
		}
	})
}

func checkLevel(t *rapid.T, s machine.Snapshot, name string, key func(machine.CPU) int, by *machine.Partition, of func(int) cpuset.Set) {
	if !slices.IsSorted(by.IDs()) {
		t.Fatalf("%s: ids %v are not sorted", name, by.IDs())
	}
	var all cpuset.Set
	for i := range by.Len() {
		id := by.ID(i)
		want := naive(s, func(c machine.CPU) bool { return key(c) == id })
		if by.CPUs(i) != want || of(id) != want || by.Of(id) != want || by.Size(i) != want.Len() || want.IsEmpty() {
			t.Fatalf("%s %d has CPUs %s, of size %d, want %s", name, id, by.CPUs(i), by.Size(i), want)
		}
		all = all.Union(want)
	}
	for _, cpu := range s.CPUs {
		if i := by.Index(cpu.ID); i < 0 || by.ID(i) != key(cpu) {
			t.Fatalf("%s of CPU %d is group %d", name, cpu.ID, i)
		}
	}
	set := cpuset.Of(rapid.SliceOf(rapid.IntRange(0, 100)).Draw(t, "set")...)
	var covered cpuset.Set
	for i := range by.Touched(set) {
		if !by.CPUs(i).Overlaps(set) {
			t.Fatalf("%s %d is not touched by %s", name, by.ID(i), set)
		}
		covered = covered.Union(by.CPUs(i))
	}
	if !set.Intersect(all).IsSubsetOf(covered) || by.Cover(set) != covered {
		t.Fatalf("%s: %s covers %s, touches %s", name, set, by.Cover(set), covered)
	}
}

func TestMarshalAgrees(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		m, err := machine.New(drawSnapshot(t))
		if err != nil {
			t.Fatal(err)
		}
		data, err := m.Marshal()
		if err != nil {
			t.Fatal(err)
		}
		back, err := machine.Load(data)
		if err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(m, back) {
			t.Fatalf("another machine came back from\n%s", data)
		}
	})
}

// TestNamedMachines checks that each named machine has its own name.
func TestNamedMachines(t *testing.T) {
	t.Parallel()
	seen := make(map[string]bool)
	for m := range machinetest.All() {
		name := m.Snapshot().Name
		if name == "" || seen[name] {
			t.Errorf("the name %q stands twice or is empty", name)
		}
		seen[name] = true
	}
}
