package sysfs

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/machine"
)

// TestEdgeCases has one small tree for everything that machines do. What is
// wanted is written as "id:core/socket/node/uncore" for each CPU.
func TestEdgeCases(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		name   string
		tree   files
		cpus   string
		counts string // CPUs, cores, sockets, nodes with CPUs, uncores
		also   func(t *testing.T, m *machine.Topology)
	}{
		{
			name: "ids with gaps",
			tree: files{}.cpu(100, 8, 70, 6).cpu(7, 8, 70, 6).cpu(40, 0, 3, 6).memory(8, 4).set(nodePath(0), "distance",
				"10 20").set(nodePath(8), "distance", "30 10"),
			cpus:   "7:7/6/8/6 40:40/6/0/6 100:7/6/8/6",
			counts: "3 2 1 2 1",
			also: func(t *testing.T, m *machine.Topology) {
				if d, _ := m.Distances().Between(8, 0); d != 30 {
					t.Errorf("distance from 8 to 0 is %d, want 30", d)
				}
				if d, _ := m.Distances().Between(0, 8); d != 20 {
					t.Errorf("distance from 0 to 8 is %d, want 20", d)
				}
			},
		},
		{
			name: "SMT off by offlining the siblings",
			tree: files{}.cpu(0, 0, 0, 0).cpu(1, 0, 1, 0).set(nodePath(0), "cpu2", "", "cpu3",
				"").set(cpuPath(2), "online", "0").online("0-1", "0-3"),
			cpus:   "0:0/0/0/0 1:1/0/0/0",
			counts: "2 2 1 1 1",
			also: func(t *testing.T, m *machine.Topology) {
				if got := m.Offline().String(); got != "2-3" {
					t.Errorf("offline is %s, want 2-3", got)
				}
			},
		},
		{
			name:   "one sibling offline, its files still there",
			tree:   files{}.cpu(0, 0, 0, 0).cpu(1, 0, 1, 0).cpu(2, 0, 0, 0).cpu(3, 0, 1, 0).set("sys/devices/system/cpu", "online", "1-3"),
			cpus:   "1:1/0/0/0 2:2/0/0/0 3:1/0/0/0",
			counts: "3 2 1 1 1",
			also: func(t *testing.T, m *machine.Topology) {
				if got := m.Offline().String(); got != "0" {
					t.Errorf("offline is %s, want 0: without a list of present CPUs the directories count", got)
				}
			},
		},
		{
			name: "a CPU that is being added",
			tree: files{}.cpu(0, 0, 0, 0).cpu(1, 0, 1, 0).set(nodePath(0), "cpu2", "").
				set(cpuPath(2), "online", "1").online("0-2", "0-3"),
			cpus:   "0:0/0/0/0 1:1/0/0/0",
			counts: "2 2 1 1 1",
			also: func(t *testing.T, m *machine.Topology) {
				if got := m.Offline().String(); got != "2-3" {
					t.Errorf("offline is %s, want 2-3: CPU 2 has no core yet", got)
				}
			},
		},
		{
			name: "hybrid by kind of counters",
			tree: files{}.cpu(0, 0, 0, 0).cpu(1, 0, 0, 0).cpu(2, 0, 4, 0).cpu(3, 0, 5, 0).
				set("sys/devices/cpu_core", "cpus", "0-1").set("sys/devices/cpu_atom", "cpus", "2-3"),
			cpus:   "0:0/0/0/0/performance 1:0/0/0/0/performance 2:2/0/0/0/efficient 3:3/0/0/0/efficient",
			counts: "4 3 1 1 1",
		},
		{
			name: "hybrid by capacity",
			tree: files{}.cpu(0, 0, 0, 0).cpu(1, 0, 1, 0).cpu(2, 0, 2, 0).set(cpuPath(0), "cpu_capacity", "446").
				set(cpuPath(1), "cpu_capacity", "871").set(cpuPath(2), "cpu_capacity", "1024"),
			cpus:   "0:0/0/0/0/efficient 1:1/0/0/0/efficient 2:2/0/0/0/performance",
			counts: "3 3 1 1 1",
		},
		{
			name:   "equal capacities",
			tree:   files{}.cpu(0, 0, 0, 0).cpu(1, 0, 1, 0).set(cpuPath(0), "cpu_capacity", "1024").set(cpuPath(1), "cpu_capacity", "1024"),
			cpus:   "0:0/0/0/0 1:1/0/0/0",
			counts: "2 2 1 1 1",
		},
		{
			name: "two L3 groups in a node",
			tree: files{}.cpu(0, 0, 0, 0).cpu(1, 0, 1, 0).cpu(2, 0, 2, 0).cpu(3, 0, 3, 0).
				cache(0, 3, 3, 4, "3").cache(1, 3, 3, 4, "3").cache(2, 3, 3, 5, "c").cache(3, 3, 3, 5, "c"),
			cpus:   "0:0/0/0/4 1:1/0/0/4 2:2/0/0/5 3:3/0/0/5",
			counts: "4 4 1 1 2",
		},
		{
			name: "L3 is the node: the socket stands in",
			tree: files{}.cpu(0, 0, 0, 9).cpu(1, 0, 1, 9).cpu(2, 1, 2, 9).cpu(3, 1, 3, 9).
				cache(0, 3, 3, 4, "3").cache(1, 3, 3, 4, "3").cache(2, 3, 3, 5, "c").cache(3, 3, 3, 5, "c"),
			cpus:   "0:0/9/0/9 1:1/9/0/9 2:2/9/1/9 3:3/9/1/9",
			counts: "4 4 1 2 1",
		},
		{
			name: "L2 of several cores is no uncore, L4 beside a node's L3 is",
			tree: files{}.cpu(0, 0, 0, 0).cpu(1, 0, 1, 0).
				cache(0, 2, 2, 1, "f").cache(0, 3, 3, 4, "3").cache(0, 4, 4, 7, "f").
				cache(1, 2, 2, 1, "f").cache(1, 3, 3, 4, "3").cache(1, 4, 4, 7, "f"),
			cpus:   "0:0/0/0/7 1:1/0/0/7",
			counts: "2 2 1 1 1",
		},
		{
			name: "cores of different size see the same L3 differently",
			tree: files{}.cpu(0, 0, 0, 0).cpu(1, 0, 0, 0).cpu(2, 0, 1, 0).
				cache(0, 3, 3, 5, "7").cache(1, 3, 3, 5, "7").cache(2, 3, 3, 5, "7"),
			cpus:   "0:0/0/0/5 1:0/0/0/5 2:2/0/0/5",
			counts: "3 2 1 1 1",
		},
		{
			name: "a broken cache cuts off the cores after it, in the order of names",
			tree: files{}.cpu(0, 0, 0, 0).cpu(2, 0, 2, 0).cpu(10, 0, 10, 0).
				cache(0, 3, 3, 5, "1").cache(2, 3, 3, 5, "1").cache(10, 3, 3, 5, "x"),
			cpus:   "0:0/0/0/5 2:2/0/0/0 10:10/0/0/0",
			counts: "3 3 1 1 2",
			also: func(t *testing.T, m *machine.Topology) {
				if notes := m.Snapshot().Notes; len(notes) != 1 || !strings.Contains(notes[0], "caches from CPU 10 on") {
					t.Errorf("notes are %q, want one about CPU 10", notes)
				}
			},
		},
		{
			name:   "sockets across a node",
			tree:   files{}.cpu(0, 0, 0, 0).cpu(1, 0, 0, 1).cpu(2, 0, 0, 0).cpu(3, 0, 0, 1),
			cpus:   "0:0/0/0/0 1:1/1/0/1 2:0/0/0/0 3:1/1/0/1",
			counts: "4 2 2 1 2",
		},
		{
			name:   "nodes and sockets that do not nest",
			tree:   files{}.cpu(0, 0, 0, 0).cpu(1, 1, 1, 0).cpu(2, 0, 0, 1).cpu(3, 1, 1, 1),
			cpus:   "0:0/0/0/0 1:1/0/1/0 2:2/1/0/1 3:3/1/1/1",
			counts: "4 4 2 2 2",
		},
		{
			name:   "a core on two nodes is two cores",
			tree:   files{}.cpu(0, 0, 0, 0).cpu(1, 1, 0, 0),
			cpus:   "0:0/0/0/0 1:1/0/1/0",
			counts: "2 2 1 2 1",
		},
		{
			name: "nodes with memory only, with CPUs only, and with neither",
			tree: files{}.cpu(0, 0, 0, 0).memory(1, 2048).set(nodePath(2), "distance", "10 20 20").
				set(nodePath(1)+"/hugepages/hugepages-2048kB", "nr_hugepages", "1").set("proc", "meminfo", "MemTotal:    4096 kB"),
			cpus:   "0:0/0/0/0",
			counts: "1 1 1 1 1",
			also: func(t *testing.T, m *machine.Topology) {
				if got, want := fmt.Sprint(m.Nodes(), m.MemoryBytes()), "[{0 0 []} {1 2097152 [{2048 1}]} {2 0 []}] 4194304"; got != want {
					t.Errorf("nodes and memory are %s, want %s", got, want)
				}
			},
		},
		{
			name:   "a CPU without ids",
			tree:   files{}.cpu(0, 0, 0, 0).set(nodePath(0), "cpu1", "").set(cpuPath(1), "online", "1").online("0-1", "0-1"),
			cpus:   "0:0/0/0/0",
			counts: "1 1 1 1 1",
			also: func(t *testing.T, m *machine.Topology) {
				if notes := strings.Join(m.Snapshot().Notes, "\n"); !strings.Contains(notes, "CPU 1 is left out") ||
					!strings.Contains(notes, "CPUs 1 are online") {
					t.Errorf("notes do not mention CPU 1:\n%s", notes)
				}
			},
		},
		{
			name: "sockets as cpuinfo counts them",
			tree: files{}.cpu(0, 0, 0, 0).cpu(1, 0, 1, 0).
				set("proc", "cpuinfo", "processor\t: 0\nphysical id\t: 0\n\nprocessor\t: 1\nphysical id\t: 7\n"),
			cpus:   "0:0/0/0/0 1:1/0/0/0",
			counts: "2 2 2 1 1",
		},
		{
			name: "s390x: cores of two books, caches without numbers",
			tree: files{}.cpu(0, 0, 1, 0).cpu(1, 0, 1, 0).set(cpuPath(0)+"/topology", "book_id", "0", "drawer_id", "0").
				set(cpuPath(1)+"/topology", "book_id", "1", "drawer_id", "0").
				set(cpuPath(0)+"/cache/index0", "level", "3", "size", "1K", "type", "Unified", "shared_cpu_map", "1"),
			cpus:   "0:0/0/0/0 1:1/0/0/0",
			counts: "2 2 1 1 1",
		},
		{
			name:   "firmware that does not number packages",
			tree:   files{}.cpu(0, 0, 0, -1).cpu(1, 0, 1, -1),
			cpus:   "0:0/-1/0/-1 1:1/-1/0/-1",
			counts: "2 2 1 1 1",
		},
		{
			name: "no node directory: one package has the memory",
			tree: files{}.cpu(0, -1, 0, 0).cpu(1, -1, 1, 0).cpu(2, -1, 0, 0).online("0-1", "0-2").
				set("proc", "meminfo", "MemTotal: 64 kB").set("sys/kernel/mm/hugepages/hugepages-2048kB", "nr_hugepages", "3"),
			cpus:   "0:0/0/0/0 1:1/0/0/0",
			counts: "2 2 1 1 1",
			also: func(t *testing.T, m *machine.Topology) {
				if got, want := fmt.Sprint(m.Nodes()), "[{0 65536 [{2048 3}]}]"; got != want {
					t.Errorf("nodes are %s, want %s", got, want)
				}
			},
		},
		{
			name:   "no node directory: packages are nodes, without memory",
			tree:   files{}.cpu(0, -1, 0, 4).cpu(1, -1, 1, 2).cpu(2, -1, 0, 4).set("proc", "meminfo", "MemTotal: 64 kB"),
			cpus:   "0:0/4/4/4 1:1/2/2/2 2:0/4/4/4",
			counts: "3 2 2 2 2",
			also: func(t *testing.T, m *machine.Topology) {
				if got, want := fmt.Sprint(m.Nodes(), m.MemoryBytes()), "[{2 0 []} {4 0 []}] 65536"; got != want {
					t.Errorf("nodes are %s, want %s", got, want)
				}
			},
		},
		{
			name:   "no node directory: packages that cannot be nodes",
			tree:   files{}.cpu(0, -1, 0, 3180).cpu(1, -1, 1, 36),
			cpus:   "0:0/3180/1/3180 1:1/36/0/36",
			counts: "2 2 2 2 2",
		},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			m := row.tree.discover(t)
			if got := describeCPUs(m); got != row.cpus {
				t.Errorf("CPUs are %s\nwant     %s", got, row.cpus)
			}
			if got := fmt.Sprint(m.NumCPUs(), m.NumCores(), m.NumSockets(), m.NumNUMANodes(), m.NumUncores()); got != row.counts {
				t.Errorf("counts are %s, want %s", got, row.counts)
			}
			if row.also != nil {
				row.also(t, m)
			}
		})
	}
}

func describeCPUs(m *machine.Topology) string {
	var cpus []string
	for _, c := range m.Snapshot().CPUs {
		text := fmt.Sprintf("%d:%d/%d/%d/%d", c.ID, c.Core, c.Socket, c.Node, c.Uncore)
		if c.Kind != machine.KindUnknown {
			text += "/" + c.Kind.String()
		}
		cpus = append(cpus, text)
	}
	return strings.Join(cpus, " ")
}

// TestManyCPUs has a node of 192 CPUs, whose maps and lists need several words.
func TestManyCPUs(t *testing.T) {
	t.Parallel()
	f := files{}.online("0-191", "0-191").memory(0, 1)
	for id := range 192 {
		f.cpu(id, 0, id%96, 0)
		// Two L3 groups of 48 cores: CPUs 0-47 and 96-143, 48-95 and 144-191.
		shared := "0000ffff,ffffffff,00000000,0000ffff,ffffffff"
		if id%96 >= 48 {
			shared = "ffffffff,ffff0000,00000000,ffffffff,ffff0000,00000000"
		}
		f.cache(id, 3, 3, id%96/48, shared)
	}
	m := f.discover(t)
	if got := m.CPUsInUncore(1).String(); got != "48-95,144-191" {
		t.Errorf("uncore 1 has CPUs %s", got)
	}
	if got := m.CPUsInCore(95).String(); got != "95,191" || m.NumCores() != 96 {
		t.Errorf("core 95 has CPUs %s, there are %d cores", got, m.NumCores())
	}
}

func TestRefusedByTheModel(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		name string
		tree files
		says string
	}{
		{"node 64", files{}.cpu(0, 0, 0, 0).memory(64, 1).set(nodePath(64), "distance", "20 10"), "NUMA node id 64 is outside 0..63"},
		{"CPU on node 64", files{}.cpu(0, 64, 0, 0), "NUMA node id 64 is outside 0..63"},
		{"CPU 8192", files{}.cpu(8192, 0, 0, 0), "CPU id 8192 is outside 0..8191"},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			sys, proc := row.tree.trees()
			s, err := Discover(sys, proc)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := machine.New(s); err == nil || !strings.Contains(err.Error(), row.says) {
				t.Errorf("error is %v, want %q", err, row.says)
			}
		})
	}
}

// TestBadFiles has content that cannot be understood: the error names the file.
func TestBadFiles(t *testing.T) {
	t.Parallel()
	good := func() files {
		return files{}.cpu(0, 0, 0, 0).memory(0, 4).online("0", "0").set(nodePath(0), "distance", "10").
			set(nodePath(0)+"/hugepages/hugepages-2048kB", "nr_hugepages", "0").set("proc", "meminfo", "MemTotal: 4 kB", "cpuinfo", "")
	}
	good().discover(t)
	for _, row := range []struct{ file, content, says string }{
		{"sys/devices/system/cpu/online", "0-", `"0-"`},
		{"sys/devices/system/cpu/online", "0-9000", "9000"},
		{"sys/devices/system/cpu/present", "x", `"x"`},
		{"sys/devices/system/cpu/cpu0/topology/core_id", "zero", `"zero" is not a number`},
		{"sys/devices/system/cpu/cpu0/topology/core_id", "99999999999", "32 bits"},
		{"sys/devices/system/cpu/cpu0/topology/physical_package_id", "", `"" is not a number`},
		{"sys/devices/system/cpu/cpu0/topology/physical_package_id", "-2", "below -1"},
		{"sys/devices/system/node/node0/meminfo", "Node 0 MemFree: 4 kB", "no line MemTotal"},
		{"sys/devices/system/node/node0/meminfo", "Node 0 MemTotal: 99999999999999999999 kB", "not a possible size"},
		{"sys/devices/system/node/node0/distance", "10 far", `"far" is not a distance`},
		{"sys/devices/system/node/node0/hugepages/hugepages-2048kB/nr_hugepages", "-1", "not a number of pages"},
		{"proc/meminfo", "nothing", "no line MemTotal"},
	} {
		t.Run(row.file, func(t *testing.T) {
			t.Parallel()
			f := good()
			f[row.file] = row.content
			sys, proc := f.trees()
			_, err := Discover(sys, proc)
			if err == nil || errdefs.ClassOf(err) != errdefs.Corrupt || !strings.Contains(err.Error(), "/"+row.file) ||
				!strings.Contains(err.Error(), row.says) {
				t.Errorf("error is %v, want one of class corrupt with the file and %q", err, row.says)
			}
		})
	}
}

// TestProbe: the text differs if, and only if, the machine has to be read again.
func TestProbe(t *testing.T) {
	t.Parallel()
	const pages = "hugepages/hugepages-2048kB"
	nodes := func() files {
		return files{}.cpu(0, 0, 0, 0).cpu(1, 0, 1, 0).memory(0, 4).online("0-1", "0-1").set(nodePath(0)+"/"+pages, "nr_hugepages", "0").
			set("proc", "meminfo", "MemTotal: 64 kB")
	}
	packages := func() files {
		return files{}.cpu(0, -1, 0, 0).online("0", "0").set("sys/kernel/mm/"+pages, "nr_hugepages", "3").set("proc", "meminfo",
			"MemTotal: 64 kB")
	}
	text := func(f files) string {
		sys, proc := f.trees()
		text, err := Probe(sys, proc, cpuset.Of(0, 1))
		if err != nil {
			t.Error(err)
		}
		return text
	}
	for name, row := range map[string]struct {
		before, after files
		same          bool
	}{
		"nothing":                       {nodes(), nodes(), true},
		"a CPU goes offline":            {nodes(), nodes().online("0", "0-1"), false},
		"a CPU is removed":              {nodes().online("0", "0-1"), nodes().online("0", "0"), false},
		"memory":                        {nodes(), nodes().memory(0, 8), false},
		"pages":                         {nodes(), nodes().set(nodePath(0)+"/"+pages, "nr_hugepages", "1"), false},
		"a node":                        {nodes(), nodes().memory(1, 4), false},
		"memory of the whole":           {nodes(), nodes().set("proc", "meminfo", "MemTotal: 65 kB"), true}, // the nodes have theirs
		"without NUMA: nothing":         {packages(), packages(), true},
		"without NUMA: memory":          {packages(), packages().set("proc", "meminfo", "MemTotal: 65 kB"), false},
		"without NUMA: pages":           {packages(), packages().set("sys/kernel/mm/"+pages, "nr_hugepages", "2"), false},
		"without NUMA: no known memory": {packages(), files{}.cpu(0, -1, 0, 0).online("0", "0"), false},
		"a CPU gets its files":          {nodes().online("0-2", "0-2"), nodes().cpu(2, -1, 0, 0).online("0-2", "0-2"), false},
		"a CPU gets its core": {nodes().cpu(2, 0, -1, 0).online("0-2", "0-2"), nodes().cpu(2, 0, 1, 0).online("0-2", "0-2"),
			false},
		"a CPU gets its node": {nodes().cpu(2, -1, 1, 0).online("0-2", "0-2"), nodes().cpu(2, 0, 1, 0).online("0-2", "0-2"),
			false},
		"a CPU still lacks its files": {nodes().online("0-2", "0-2"), nodes().online("0-2", "0-2"), true},
	} {
		if got := text(row.before) == text(row.after); got != row.same {
			t.Errorf("%s: the text is the same: %t", name, got)
		}
	}
}

// TestCPUBeingAdded: a CPU that is online before the kernel reports its core counts as offline.
func TestCPUBeingAdded(t *testing.T) {
	t.Parallel()
	machine := func(core int) files {
		return files{}.cpu(0, 0, 0, 0).cpu(1, 0, core, 0).memory(0, 4).online("0-1", "0-1")
	}
	if m := machine(unknown).discover(t); m.CPUs() != cpuset.Of(0) || m.Offline() != cpuset.Of(1) {
		t.Errorf("without its core: CPUs %s, offline %s", m.CPUs(), m.Offline())
	}
	if m := machine(1).discover(t); m.CPUs() != cpuset.Of(0, 1) || !m.Offline().IsEmpty() {
		t.Errorf("with its core: CPUs %s, offline %s", m.CPUs(), m.Offline())
	}
	all := files{}.cpu(0, 0, unknown, 0).cpu(1, 0, unknown, 0).memory(0, 4).online("0-1", "0-1").discover(t)
	if all.CPUs() != cpuset.Of(0, 1) || all.NumCores() != 1 {
		t.Errorf("where no core is known: CPUs %s", all.CPUs())
	}
}

func TestNoCPUs(t *testing.T) {
	t.Parallel()
	for name, tree := range map[string]files{
		"empty trees":   {},
		"node, no CPUs": files{}.memory(0, 4),
		"nobody online": files{}.cpu(0, 0, 0, 0).online("", "0"),
		"no ids":        files{}.set(cpuPath(0), "online", "1"),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			sys, proc := tree.trees()
			if _, err := Discover(sys, proc); err == nil || !strings.Contains(err.Error(), "no online CPU") {
				t.Errorf("error is %v, want one about CPUs", err)
			}
		})
	}
}

func TestDistancesOfAnotherLength(t *testing.T) {
	t.Parallel()
	m := files{}.cpu(0, 0, 0, 0).cpu(1, 1, 1, 0).set(nodePath(0), "distance", "10 20 30").set(nodePath(1), "distance", "20 10").discover(t)
	if _, known := m.Distances().Between(0, 1); known {
		t.Error("a distance was taken from a list of another length")
	}
	if d, _ := m.Distances().Between(1, 0); d != 20 {
		t.Errorf("distance from 1 to 0 is %d, want 20", d)
	}
	if notes := m.Snapshot().Notes; len(notes) != 1 || !strings.Contains(notes[0], "3 numbers for 2 nodes") {
		t.Errorf("notes are %q", notes)
	}
}

// denied is a tree in which one file or folder cannot be read.
type denied struct {
	fstest.MapFS
	name string
}

func (d denied) Open(name string) (fs.File, error) {
	if name == d.name {
		return nil, &fs.PathError{Op: "open", Path: name, Err: fs.ErrPermission}
	}
	return d.MapFS.Open(name)
}

func (d denied) ReadFile(name string) ([]byte, error) {
	if name == d.name {
		return nil, &fs.PathError{Op: "open", Path: name, Err: fs.ErrPermission}
	}
	return d.MapFS.ReadFile(name)
}

func (d denied) ReadDir(name string) ([]fs.DirEntry, error) {
	if name == d.name {
		return nil, &fs.PathError{Op: "open", Path: name, Err: fs.ErrPermission}
	}
	return d.MapFS.ReadDir(name)
}

// TestUnreadable has files that are there and cannot be read, which is another
// matter than files that are not there.
func TestUnreadable(t *testing.T) {
	t.Parallel()
	tree := files{}.cpu(0, 0, 0, 0).memory(0, 4).online("0", "0").set(nodePath(0), "distance", "10").
		set(nodePath(0)+"/hugepages/hugepages-2048kB", "nr_hugepages", "0").set("proc", "meminfo", "MemTotal: 4 kB", "cpuinfo", "x")
	for _, name := range []string{
		"sys/devices/system/cpu", "sys/devices/system/cpu/online", "sys/devices/system/cpu/present",
		"sys/devices/system/cpu/cpu0/topology/core_id", "sys/devices/system/node", "sys/devices/system/node/node0",
		"sys/devices/system/node/node0/meminfo", "sys/devices/system/node/node0/distance",
		"sys/devices/system/node/node0/hugepages", "sys/devices/system/node/node0/hugepages/hugepages-2048kB/nr_hugepages",
		"proc/meminfo", "proc/cpuinfo",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			sys, proc := tree.trees()
			inSys, _ := strings.CutPrefix(name, "sys/")
			inProc, _ := strings.CutPrefix(name, "proc/")
			_, err := Discover(denied{sys, inSys}, denied{proc, inProc})
			if !errors.Is(err, fs.ErrPermission) || !strings.Contains(err.Error(), "/"+name) {
				t.Errorf("error is %v, want one about permission that names the file", err)
			}
		})
	}
}
