package sysfs

import (
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/machine"
	"github.com/berthd/berth/server/internal/kubeletnode/nodetest"
)

var update = flag.Bool("update", false, "write testdata/*.json anew")

// TestGoldenTrees discovers recorded trees and compares the whole machine.
func TestGoldenTrees(t *testing.T) {
	t.Parallel()
	names, err := filepath.Glob("testdata/*.tree")
	if err != nil || len(names) == 0 {
		t.Fatalf("no trees in testdata: %v", err)
	}
	for _, name := range names {
		t.Run(filepath.Base(name), func(t *testing.T) {
			t.Parallel()
			got, err := readTree(t, name).discover(t).Marshal()
			if err != nil {
				t.Fatal(err)
			}
			golden := strings.TrimSuffix(name, ".tree") + ".json"
			if *update {
				if err := os.WriteFile(golden, got, 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(golden)
			if err != nil {
				t.Fatal(err)
			}
			if string(got) != string(want) {
				t.Errorf("%s is out of date; got\n%s", golden, got)
			}
		})
	}
}

// digest summarizes the machine of a recording, read by other means.
type digest struct {
	Online string `json:"online"`
	Nodes  map[int]struct {
		CPUs      string            `json:"cpulist"`
		Distances []int             `json:"distance"`
		HugePages map[string]uint64 `json:"hugepages"`
		MemoryKiB uint64            `json:"memtotal_kB"`
	} `json:"nodes"`
	CPUs map[int]struct {
		Threads string `json:"core_cpus_list"`
		Die     int    `json:"die_id"`
		Socket  int    `json:"physical_package_id"`
	} `json:"cpus"`
}

func TestCapturedTrees(t *testing.T) {
	t.Parallel()
	dirs, err := filepath.Glob(filepath.Join(nodetest.Captures(t), "topologies", "*"))
	if err != nil || len(dirs) == 0 {
		t.Fatalf("no recorded machines: %v", err)
	}
	for _, dir := range dirs {
		t.Run(filepath.Base(dir), func(t *testing.T) {
			t.Parallel()
			var want digest
			readJSON(t, filepath.Join(dir, "topology.json"), &want)
			m := readArchive(t, filepath.Join(dir, "sysfs.tar.gz")).discover(t)
			compareDigest(t, m, want)
		})
	}
}

func compareDigest(t *testing.T, m *machine.Topology, want digest) {
	t.Helper()
	if notes := m.Snapshot().Notes; len(notes) > 0 {
		t.Errorf("notes: %q", notes)
	}
	if m.CPUs().String() != want.Online || m.NumCPUs() != m.CPUs().Len() {
		t.Errorf("%d CPUs: %s, want %s", m.NumCPUs(), m.CPUs(), want.Online)
	}
	for id, cpu := range want.CPUs {
		got, ok := m.CPU(id)
		if !ok || got.Socket != cpu.Socket || got.Die != cpu.Die || m.CPUsInCore(got.Core).String() != cpu.Threads {
			t.Errorf("CPU %d is %+v with siblings %s, want %+v", id, got, m.CPUsInCore(got.Core), cpu)
		}
	}
	ids := m.NodeMask().IDs()
	if len(ids) != len(want.Nodes) {
		t.Errorf("nodes are %v, want %d", ids, len(want.Nodes))
	}
	var total uint64
	for _, id := range ids {
		node, _ := m.Node(id)
		expect := want.Nodes[id]
		total += expect.MemoryKiB * 1024
		if got := m.CPUsInNode(id).String(); got != expect.CPUs || node.MemoryBytes != expect.MemoryKiB*1024 ||
			len(node.HugePages) != len(expect.HugePages) {
			t.Errorf("node %d has CPUs %s and %+v, want %+v", id, got, node, expect)
		}
		for _, pages := range node.HugePages {
			name := "hugepages-" + strconv.FormatUint(pages.SizeKiB, 10) + "kB"
			if count, ok := expect.HugePages[name]; !ok || count != pages.Count {
				t.Errorf("node %d has %d of %s, want %d", id, pages.Count, name, count)
			}
		}
		for position, distance := range expect.Distances {
			if got, known := m.Distances().Between(id, ids[position]); !known || got != distance {
				t.Errorf("distance from %d to %d is %d, want %d", id, ids[position], got, distance)
			}
		}
	}
	if m.MemoryBytes() != total {
		t.Errorf("the machine has %d bytes, its nodes %d", m.MemoryBytes(), total)
	}
}

// kubeletTopology is what the kubelet made of a machine.
type kubeletTopology struct {
	NumCPUs, NumCores, NumUncoreCache, NumSockets, NumNUMANodes int

	CPUDetails map[int]struct{ NUMANodeID, SocketID, CoreID, UncoreCacheID int }
}

// TestKubeletTopologies compares with what the kubelet made of the same trees.
func TestKubeletTopologies(t *testing.T) {
	t.Parallel()
	root := nodetest.Captures(t)
	runs, err := filepath.Glob(filepath.Join(root, "*", "run.json"))
	if err != nil || len(runs) == 0 {
		t.Fatalf("no recorded runs: %v", err)
	}
	for _, file := range runs {
		t.Run(filepath.Base(filepath.Dir(file)), func(t *testing.T) {
			t.Parallel()
			var run struct{ Shape string }
			readJSON(t, file, &run)
			var node struct {
				Starts []kubeletTopology `json:"cpu_topology"`
			}
			readJSON(t, filepath.Join(filepath.Dir(file), "node.json"), &node)
			m := readArchive(t, filepath.Join(root, "topologies", run.Shape, "sysfs.tar.gz")).discover(t)
			if compared := compareStarts(t, m, node.Starts); compared == 0 {
				t.Error("no start of the kubelet had the recorded CPUs")
			}
		})
	}
}

// compareStarts compares with every start that had all CPUs online; some runs
// took one away between two starts.
func compareStarts(t *testing.T, m *machine.Topology, starts []kubeletTopology) int {
	t.Helper()
	compared := 0
	for _, start := range starts {
		var b cpuset.Builder
		for id := range start.CPUDetails {
			b.Add(id)
		}
		if b.Set() != m.CPUs() {
			continue
		}
		compared++
		got := []int{m.NumCPUs(), m.NumCores(), m.NumUncores(), m.NumSockets(), m.NumNUMANodes()}
		want := []int{start.NumCPUs, start.NumCores, start.NumUncoreCache, start.NumSockets, start.NumNUMANodes}
		if !slices.Equal(got, want) {
			t.Errorf("CPUs, cores, uncores, sockets, nodes are %v, want %v", got, want)
		}
		for id, want := range start.CPUDetails {
			if got, _ := m.CPU(id); got.Node != want.NUMANodeID || got.Socket != want.SocketID || got.Core != want.CoreID ||
				got.Uncore != want.UncoreCacheID {
				t.Errorf("CPU %d is %+v, want %+v", id, got, want)
			}
		}
	}
	return compared
}

func readJSON(t *testing.T, file string, into any) {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(data, into); err != nil {
		t.Fatalf("%s: %v", file, err)
	}
}
