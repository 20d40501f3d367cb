package machine_test

import (
	"slices"
	"testing"

	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/machine"
	"github.com/berthd/berth/managers/machine/machinetest"
	"github.com/berthd/berth/managers/numa"
)

// TestCounts has the machines on which the reference's averages are known,
// odd ones included.
func TestCounts(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		name                                    string
		machine                                 *machine.Topology
		cpus, cores, sockets, nodes, uncores    int
		cpusPerCore, cpusPerSocket, cpusPerUnco int
	}{
		{"SMT", machinetest.Build("1s4c2t"), 8, 4, 1, 1, 1, 2, 8, 8},
		{"SMT off", machinetest.Build("1s8c"), 8, 8, 1, 1, 1, 1, 8, 8},
		{"two L3 groups in a node", machinetest.Build("1s2l4c2t"), 16, 8, 1, 1, 2, 2, 16, 8},
		{"L3 is the node", machinetest.Build("2s2n2c2t"), 16, 8, 2, 4, 2, 2, 8, 8},
		{"node over two sockets", machinetest.Build("1n2s4c2t"), 16, 8, 2, 1, 2, 2, 8, 8},
		{"nodes over sockets over nodes", machinetest.Build("2s2n2c", machinetest.Socket("0,2,4,6", 0), machinetest.Socket("1,3,5,7", 1)),
			8, 8, 2, 4, 2, 1, 4, 4},
		{"hybrid", machinetest.Hybrid(), 12, 8, 1, 1, 1, 1, 12, 12},
		{"sibling offline", machinetest.Build("1s4c2t", machinetest.Offline("7")), 7, 4, 1, 1, 1, 1, 7, 7},
		{"memory-only nodes", machinetest.Build("2s1n4c2m"), 8, 8, 2, 2, 2, 1, 4, 4},
		{"given counts", machinetest.Build("1s4c", machinetest.Counts(machine.Counts{CPUs: 9, Cores: 4, Uncores: 2})), 9, 4, 0, 0, 2, 2,
			0, 4},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			m := row.machine
			got := []int{m.NumCPUs(), m.NumCores(), m.NumSockets(), m.NumNUMANodes(), m.NumUncores(), m.CPUsPerCore(), m.CPUsPerSocket(),
				m.CPUsPerUncore()}
			want := []int{row.cpus, row.cores, row.sockets, row.nodes, row.uncores, row.cpusPerCore, row.cpusPerSocket, row.cpusPerUnco}
			if !slices.Equal(got, want) {
				t.Errorf("counts and averages are %v, want %v", got, want)
			}
		})
	}
}

func TestTables(t *testing.T) {
	t.Parallel()
	m := machinetest.Build("2s2n2c2t1m",
		machinetest.NodeIDs(0, 8, 16, 17, 63), machinetest.Offline("0,12"), machinetest.HugePages(8, 1<<20, 3),
		machinetest.HugePages(8, 2048, 0))

	check := func(what string, got, want any) {
		t.Helper()
		if got != want {
			t.Errorf("%s is %v, want %v", what, got, want)
		}
	}
	check("CPUs", m.CPUs().String(), "1-11,13-15")
	check("offline", m.Offline().String(), "0,12")
	check("nodes", m.NodeMask().String(), "0,8,16-17,63")
	check("nodes with CPUs", m.CPUNodeMask().String(), "0,8,16-17")
	check("CPUs of node 0", m.CPUsInNode(0).String(), "1,8-9")
	check("CPUs of the memory-only node", m.CPUsInNode(63).String(), "")
	check("CPUs of no node", m.CPUsInNode(64).String()+m.CPUsInNode(-1).String()+m.CPUsInNode(5).String(), "")
	check("CPUs of two nodes", m.CPUsInNodes(numa.Of(8, 17, 40)).String(), "2-3,6-7,10-11,14-15")
	check("CPUs of one node and one without", m.CPUsInNodes(numa.Of(8, 63)).String(), "2-3,10-11")
	check("CPUs of all nodes", m.CPUsInNodes(^numa.Mask(0)), m.CPUs())
	check("CPUs of no nodes", m.CPUsInNodes(0), cpuset.Set{})
	check("the core that lost CPU 0", m.CPUsInCore(8).String(), "8")
	check("a core", m.CPUsInCore(1).String(), "1,9")
	check("no core", m.CPUsInCore(0).String(), "")
	check("a socket", m.CPUsInSocket(1).String(), "4-7,13-15")
	check("an uncore", m.CPUsInUncore(1), m.CPUsInSocket(1))
	check("nodes of CPUs", m.NodesOf(cpuset.Of(1, 7, 500)).String(), "0,17")
	check("nodes of no CPUs", m.NodesOf(cpuset.Set{}), numa.Mask(0))
	check("siblings", m.ByCore().Cover(cpuset.Of(1, 2, 8, 400)).String(), "1-2,8-10")
	if got := m.SocketsOf(cpuset.Of(1, 4)); !slices.Equal(got, []int{0, 1}) {
		t.Errorf("sockets are %v, want 0 and 1", got)
	}
	if got := m.HugePageSizesKiB(); !slices.Equal(got, []uint64{2048, 1 << 20}) {
		t.Errorf("page sizes are %v", got)
	}
	check("memory", m.MemoryBytes(), uint64(5*64<<30))

	cpu, ok := m.CPU(13)
	check("CPU 13", cpu, machine.CPU{ID: 13, Core: 5, Socket: 1, Cluster: -1, Node: 16, Uncore: 1})
	check("CPU 13 is there", ok, true)
	for _, id := range []int{-1, 0, 12, 16, 1 << 20} {
		if _, ok := m.CPU(id); ok {
			t.Errorf("CPU %d is there", id)
		}
		if i := m.ByNode().Index(id); i != -1 {
			t.Errorf("CPU %d is in group %d", id, i)
		}
	}
	node, ok := m.Node(8)
	check("node 8 is there", ok, true)
	if want := []machine.HugePages{{SizeKiB: 2048}, {SizeKiB: 1 << 20, Count: 3}}; !slices.Equal(node.HugePages, want) {
		t.Errorf("huge pages of node 8 are %v, want %v", node.HugePages, want)
	}
	if _, ok := m.Node(1); ok {
		t.Error("node 1 is there")
	}
	if d, known := m.Distances().Between(0, 8); d != 12 || !known {
		t.Errorf("distance from 0 to 8 is %d, %v, want 12", d, known)
	}
}

// TestNegativeIDs has a machine whose firmware does not number packages.
func TestNegativeIDs(t *testing.T) {
	t.Parallel()
	m := machinetest.Build("4c", machinetest.Socket("0-3", -1), machinetest.Uncore("0-3", -1))
	if got := m.CPUsInSocket(-1); got != m.CPUs() {
		t.Errorf("socket -1 has CPUs %s", got)
	}
	if got := m.Sockets(); !slices.Equal(got, []int{-1}) {
		t.Errorf("sockets are %v", got)
	}
}

func TestNodesFromCPUs(t *testing.T) {
	t.Parallel()
	m, err := machine.New(machine.Snapshot{CPUs: []machine.CPU{{ID: 3, Core: 3, Node: 5}, {ID: 1, Core: 1, Node: 2}}})
	if err != nil {
		t.Fatal(err)
	}
	if got := m.NodeMask().String(); got != "2,5" {
		t.Errorf("nodes are %s, want those of the CPUs", got)
	}
	if got := m.ByCore().IDs(); !slices.Equal(got, []int{1, 3}) {
		t.Errorf("cores are %v, want them in ascending order", got)
	}
}

// TestImmutable changes everything that a Topology hands out.
func TestImmutable(t *testing.T) {
	t.Parallel()
	m := machinetest.Build("2s2n2c2t,huge=2Mi:8", machinetest.Counts(machine.Counts{CPUs: 16}))
	before, err := m.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	s := m.Snapshot()
	s.CPUs[0].Node, s.Nodes[0].ID, s.Nodes[0].HugePages[0].Count, s.Counts.CPUs = 9, 9, 9, 9
	m.Nodes()[1].HugePages[0].Count = 9
	node, _ := m.Node(2)
	node.HugePages[0].Count = 9
	m.ByCore().IDs()[0], m.HugePageSizesKiB()[0] = 9, 9
	after, err := m.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	if string(before) != string(after) || m.ByCore().IDs()[0] != 0 || m.HugePageSizesKiB()[0] != 2048 {
		t.Error("a change of what was handed out changed the machine")
	}
}

func TestFingerprint(t *testing.T) {
	t.Parallel()
	base := machinetest.Build("2s2n2c2t")
	// Pinned: after a change every stored ledger counts as one of another machine.
	if got, want := base.Fingerprint(), "4d48ac7dadd1bc1d18734641b9ed294e"; got != want {
		t.Errorf("fingerprint is %s, want %s", got, want)
	}
	for name, same := range map[string]*machine.Topology{
		"memory":     machinetest.Build("2s2n2c2t", machinetest.Memory(1, 12345)),
		"huge pages": machinetest.Build("2s2n2c2t,huge=2Mi:8"),
		"name":       machinetest.Build("2s2n2c2t", machinetest.Named("x")),
		"distances":  machinetest.Build("2s2n2c2t", machinetest.Distances()),
		"kinds":      machinetest.Build("2s2n2c2t", machinetest.Efficient("0")),
	} {
		if same.Fingerprint() != base.Fingerprint() {
			t.Errorf("%s: the fingerprint changes", name)
		}
	}
	for name, other := range map[string]*machine.Topology{
		"CPU offline":      machinetest.Build("2s2n2c2t", machinetest.Offline("15")),
		"numbering":        machinetest.Build("2s2n2c2t,adjacent"),
		"memory-only node": machinetest.Build("2s2n2c2t1m"),
		"node ids":         machinetest.Build("2s2n2c2t", machinetest.NodeIDs(0, 1, 2, 4)),
		"uncore":           machinetest.Build("2s2n2c2t", machinetest.Uncore("0-1,8-9", 7)),
		"socket":           machinetest.Build("2s2n2c2t", machinetest.Socket("0-1,8-9", 7)),
	} {
		if other.Fingerprint() == base.Fingerprint() {
			t.Errorf("%s: the fingerprint stays the same", name)
		}
	}
}
