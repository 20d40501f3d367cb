package sysfs

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/machine"
	"github.com/berthd/berth/managers/numa"
)

// TestDiscoverDrawnTrees draws machines, writes their trees, and expects them
// back.
func TestDiscoverDrawnTrees(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		f, want := drawMachine(t)
		expected, err := machine.New(want)
		if err != nil {
			t.Fatal(err)
		}
		sys, proc := f.trees()
		s, err := Discover(sys, proc)
		if err != nil {
			t.Fatal(err)
		}
		got, err := machine.New(s)
		if err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(got.Snapshot(), expected.Snapshot()) {
			t.Fatalf("discovered\n%+v\nwant\n%+v", got.Snapshot(), expected.Snapshot())
		}
	})
}

// drawMachine draws a tree and returns its expected content.
func drawMachine(t *rapid.T) (files, machine.Snapshot) {
	f, s := files{}, machine.Snapshot{Version: machine.FormatVersion}
	ids := rapid.Permutation(idsUpTo(130)).Draw(t, "ids")
	take := func(n int) []int {
		taken := ids[:n]
		ids = ids[n:]
		return taken
	}
	nodes := rapid.SliceOfNDistinct(rapid.IntRange(0, numa.MaxNodes-1), 1, 4, rapid.ID[int]).Draw(t, "nodes")
	for i, node := range nodes {
		n := machine.Node{ID: node, MemoryBytes: 1024 * rapid.Uint64Range(0, 1<<30).Draw(t, "KiB")}
		s.MemoryBytes += n.MemoryBytes
		f.memory(node, int(n.MemoryBytes/1024))
		for _, size := range []uint64{2048, 1 << 20} {
			if rapid.Bool().Draw(t, "has size") {
				count := rapid.Uint64Range(0, 1000).Draw(t, "pages")
				n.HugePages = append(n.HugePages, machine.HugePages{SizeKiB: size, Count: count})
				f.set(fmt.Sprintf("%s/hugepages/hugepages-%dkB", nodePath(node), size), "nr_hugepages", strconv.FormatUint(count, 10))
			}
		}
		s.Nodes = append(s.Nodes, n)
		// The first node has CPUs, so that the machine has one.
		cores := rapid.IntRange(0, 6).Draw(t, "cores")
		if i == 0 {
			cores++
		}
		for core := range cores {
			drawCore(t, f, &s, node, cores, core, take(rapid.IntRange(1, 4).Draw(t, "threads")))
		}
	}
	s.Distances = drawDistances(t, f, nodes)

	var online cpuset.Set
	var cpuinfo strings.Builder
	for _, cpu := range s.CPUs {
		online = online.Union(cpuset.Of(cpu.ID))
		fmt.Fprintf(&cpuinfo, "processor\t: %d\nphysical id\t: %d\n\n", cpu.ID, cpu.Socket)
	}
	if rapid.Bool().Draw(t, "has physical ids") {
		f["proc/cpuinfo"] = cpuinfo.String()
	}
	s.Offline = cpuset.Of(take(rapid.IntRange(0, 4).Draw(t, "offline"))...)
	for id := range s.Offline.All() {
		f.set(cpuPath(id), "online", "0").set(nodePath(nodes[0]), fmt.Sprintf("cpu%d", id), "")
	}
	f.online(online.String(), online.Union(s.Offline).String())
	f.set("proc", "meminfo", fmt.Sprintf("MemTotal: %d kB", s.MemoryBytes/1024))
	return f, s
}

// drawCore adds one core. Its cache may be missing, the node's, or between.
func drawCore(t *rapid.T, f files, s *machine.Snapshot, node, cores, core int, threads []int) {
	socket := rapid.IntRange(0, 3).Draw(t, "socket")
	uncore := socket
	ofNode := cores * len(threads)
	level3, bits := rapid.Bool().Draw(t, "has L3"), ofNode
	id := rapid.IntRange(0, 9).Draw(t, "L3 id")
	if level3 && rapid.Bool().Draw(t, "L3 of a group") {
		bits = rapid.IntRange(1, 40).Filter(func(n int) bool { return n != ofNode }).Draw(t, "L3 CPUs")
		uncore = id
	}
	for _, thread := range threads {
		f.cpu(thread, node, core, socket).cache(thread, 0, 1, thread, "1").cache(thread, 1, 2, core, "3")
		if level3 {
			f.cache(thread, 2, 3, id, mapOf(bits))
		}
		f.set(cpuPath(thread)+"/topology", "die_id", "1", "cluster_id", "65535")
		s.CPUs = append(s.CPUs, machine.CPU{
			ID: thread, Core: slices.Min(threads), Socket: socket, Die: 1, Cluster: -1, Node: node, Uncore: uncore,
		})
	}
}

func drawDistances(t *rapid.T, f files, nodes []int) numa.Distances {
	sorted := slices.Sorted(slices.Values(nodes))
	rows := map[int]map[int]int{}
	for _, from := range sorted {
		var line []string
		rows[from] = map[int]int{}
		for _, to := range sorted {
			rows[from][to] = rapid.IntRange(10, 254).Draw(t, "distance")
			line = append(line, strconv.Itoa(rows[from][to]))
		}
		f.set(nodePath(from), "distance", strings.Join(line, " "))
	}
	d, err := numa.NewDistances(rows)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func idsUpTo(n int) []int {
	ids := make([]int, n)
	for id := range ids {
		ids[id] = id
	}
	return ids
}

// mapOf returns a CPU map with n bits, in words of 32.
func mapOf(n int) string {
	var words []string
	for ; n > 32; n -= 32 {
		words = append(words, "ffffffff")
	}
	return strings.Join(append(words, strconv.FormatUint(1<<n-1, 16)), ",")
}

// FuzzParsers checks that no content of a file makes a parser panic, and what
// the parsers promise about what they accept.
func FuzzParsers(f *testing.F) {
	f.Add("MemTotal:       16384 kB")
	f.Add("Node 0 MemTotal:       16384 kB\nNode 0 MemFree: 1 kB")
	f.Add("ffffffff,0000ffff")
	f.Add("10 21 17 28")
	f.Add("physical id\t: 0\nphysical id\t: 1\n")
	f.Fuzz(func(t *testing.T, text string) {
		if bytes, err := memTotal(text); err == nil && bytes%1024 != 0 {
			t.Errorf("MemTotal is %d bytes", bytes)
		}
		if n, err := countBits(text); err == nil && n > 4*len(text) {
			t.Errorf("%d bits in %d characters", n, len(text))
		}
		if list, err := parseDistances(text); err == nil && len(list) > 0 && slices.Min(list) < 0 {
			t.Errorf("a negative distance in %v", list)
		}
		if n := countSockets(text); n > strings.Count(text, "physical id") {
			t.Errorf("%d sockets", n)
		}
	})
}

// FuzzDiscover puts one arbitrary text into each file of a small machine.
func FuzzDiscover(f *testing.F) {
	names := slices.Sorted(maps.Keys(fuzzTree()))
	for i := range names {
		f.Add(i, "1\n")
		f.Add(i, "0-1,4\n")
	}
	f.Fuzz(func(t *testing.T, file int, content string) {
		if file < 0 || file >= len(names) {
			return
		}
		tree := fuzzTree()
		tree[names[file]] = content
		sys, proc := tree.trees()
		s, err := Discover(sys, proc)
		if err != nil {
			return
		}
		m, err := machine.New(s)
		if err != nil {
			return
		}
		if m.CPUs().IsEmpty() || !m.NodesOf(m.CPUs()).IsSubsetOf(m.NodeMask()) {
			t.Fatalf("CPUs %s on nodes %s", m.CPUs(), m.NodeMask())
		}
	})
}

func fuzzTree() files {
	return files{}.cpu(0, 0, 0, 0).cpu(1, 0, 0, 0).cpu(2, 1, 0, 1).cache(0, 3, 3, 0, "1").cache(1, 3, 3, 0, "1").
		memory(0, 4).memory(1, 4).online("0-2", "0-3").set(nodePath(0), "distance", "10 20").
		set(nodePath(0)+"/hugepages/hugepages-2048kB", "nr_hugepages", "7").
		set("sys/devices/cpu_core", "cpus", "0-1").set("sys/devices/cpu_atom", "cpus", "2").
		set("proc", "meminfo", "MemTotal: 8 kB", "cpuinfo", "physical id\t: 0\nphysical id\t: 1")
}
