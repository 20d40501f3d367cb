package machine_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/machine"
)

func TestParseShape(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		shape                                string
		cpus, cores, sockets, nodes, uncores int
		core0, node0, socket0, allNodes      string
	}{
		{"2s4n32c2t", 512, 256, 2, 8, 2, "0,256", "0-31,256-287", "0-127,256-383", "0-7"},
		{"8c", 8, 8, 1, 1, 1, "0", "0-7", "0-7", "0"},
		{"1s4c2t,adjacent", 8, 4, 1, 1, 1, "0-1", "0-7", "0-7", "0"},
		{"2s2n4l8c2t", 256, 128, 2, 4, 16, "0,128", "0-31,128-159", "0-63,128-191", "0-3"},
		{"1n2s16c2t", 64, 32, 2, 1, 2, "0,32", "0-63", "0-15,32-47", "0"},
		{"2n2s2l2c", 16, 16, 4, 2, 8, "0", "0-7", "0-3", "0-1"},
		{"2s1n72c32m", 144, 144, 2, 2, 2, "0", "0-71", "0-71", "0-33"},
		{"64n1c", 64, 64, 1, 64, 1, "0", "0", "0-63", "0-63"},
		{"2s32n64c2t", 8192, 4096, 2, 64, 2, "0,4096", "0-63,4096-4159", "0-2047,4096-6143", "0-63"},
	} {
		t.Run(row.shape, func(t *testing.T) {
			t.Parallel()
			s, err := machine.ParseShape(row.shape)
			if err != nil {
				t.Fatal(err)
			}
			m, err := machine.New(s)
			if err != nil {
				t.Fatal(err)
			}
			counts := fmt.Sprint(m.NumCPUs(), m.NumCores(), m.NumSockets(), m.NumNUMANodes(), m.NumUncores())
			if want := fmt.Sprint(row.cpus, row.cores, row.sockets, row.nodes, row.uncores); counts != want {
				t.Errorf("CPUs, cores, sockets, nodes, uncores are %s, want %s", counts, want)
			}
			sets := fmt.Sprint(m.CPUsInCore(0), " ", m.CPUsInNode(0), " ", m.CPUsInSocket(0), " ", m.NodeMask())
			if want := strings.Join([]string{row.core0, row.node0, row.socket0, row.allNodes}, " "); sets != want {
				t.Errorf("core 0, node 0, socket 0, nodes are %s, want %s", sets, want)
			}
			if !m.Distances().Has(m.NodeMask()) {
				t.Error("a distance is missing")
			}
		})
	}
}

func TestParseShapeOptions(t *testing.T) {
	t.Parallel()
	s, err := machine.ParseShape("2s2n4c1m,mem=32Gi,huge=2Mi:512,huge=1Gi:4")
	if err != nil {
		t.Fatal(err)
	}
	node, memoryOnly := s.Nodes[1], s.Nodes[4]
	if got, want := fmt.Sprint(node), "{1 34359738368 [{2048 512} {1048576 4}]}"; got != want {
		t.Errorf("node 1 is %s, want %s", got, want)
	}
	if got, want := fmt.Sprint(memoryOnly), "{4 34359738368 []}"; got != want {
		t.Errorf("node 4 is %s, want %s", got, want)
	}
	var row []int
	for j := range 5 {
		d, _ := s.Distances.Between(0, j)
		row = append(row, d)
	}
	if got, want := fmt.Sprint(row), "[10 12 20 20 20]"; got != want {
		t.Errorf("distances of node 0 are %s, want %s", got, want)
	}
	if want := "simulated: 2 sockets of 2 NUMA nodes of 4 cores of 1 threads, and 1 memory-only nodes: 16 CPUs, 5 nodes in all"; s.Description != want {
		t.Errorf("description is %q, want %q", s.Description, want)
	}
}

func TestParseShapeRefuses(t *testing.T) {
	t.Parallel()
	for _, row := range []struct{ shape, says string }{
		{"", "cores is missing"},
		{"2s2n", "cores is missing"},
		{"c", "not a number and a letter"},
		{"4c2", "not a number and a letter"},
		{"s4c", "not a number and a letter"},
		{"4x", "not one of the letters"},
		{"4C", "not one of the letters"},
		{"0c", "outside 1..8192"},
		{"-4c", "not a number and a letter"},
		{"99999999999999999999c", "outside"},
		{"4c4c", "stands twice"},
		{"2t4c", "stands after t"},
		{"4c2s", "stands after c"},
		{"2s8192c", "more than 8192 CPUs"},
		{"8192s8192n8192l8192c8192t", "more than 8192 CPUs"},
		{"2s33n1c", "66 NUMA nodes"},
		{"1c64m", "65 NUMA nodes"},
		{"4c,", "not one of adjacent"},
		{"4c,fast", "not one of adjacent"},
		{"4c,mem=", "size"},
		{"4c,mem=4G", "size"},
		{"4c,mem=5000Ti", "size"},
		{"4c,mem=99999999999999999999", "size"},
		{"4c,huge=2Mi", "huge=SIZE:COUNT"},
		{"4c,huge=2Mi:x", "huge=SIZE:COUNT"},
		{"4c,huge=0:1", "huge=SIZE:COUNT"},
		{"4c,huge=100:1", "huge=SIZE:COUNT"},
		{"4c,huge=2Mi:1,huge=2Mi:2", "given twice"},
		{"4c,mem=1Gi,huge=1Gi:2", "need more than"},
		{"4c,huge=4096Ti:4294967295", "exceed"},
	} {
		t.Run(row.shape, func(t *testing.T) {
			t.Parallel()
			_, err := machine.ParseShape(row.shape)
			if err == nil || errdefs.ClassOf(err) != errdefs.Invalid || !strings.Contains(err.Error(), row.says) {
				t.Errorf("error is %v, want one of class invalid with %q", err, row.says)
			}
		})
	}
}

// FuzzParseShape checks that nothing panics, and that every machine that is
// built is valid.
func FuzzParseShape(f *testing.F) {
	for _, shape := range []string{"2s4n32c2t", "1n2s16c2t", "2s1n72c32m", "1s2l4c2t,adjacent,mem=32Gi,huge=2Mi:512,huge=1Gi:4"} {
		f.Add(shape)
	}
	f.Fuzz(func(t *testing.T, shape string) {
		s, err := machine.ParseShape(shape)
		if err != nil {
			return
		}
		if _, err := machine.New(s); err != nil {
			t.Fatalf("%q: %v", shape, err)
		}
	})
}

func ExampleParseShape() {
	s, _ := machine.ParseShape("2s4n32c2t")
	fmt.Println(s.Description)
	// Output: simulated: 2 sockets of 4 NUMA nodes of 32 cores of 2 threads: 512 CPUs, 8 nodes in all
}
