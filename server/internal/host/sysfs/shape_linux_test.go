package sysfs

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/berthd/berth/hack/vm/job"
	"github.com/berthd/berth/hack/vm/shape"
	"github.com/berthd/berth/managers/machine"
	"github.com/berthd/berth/managers/numa"
)

// TestHostIsTheShape holds what is discovered in a virtual machine of hack/vm
// against what that machine was made of.
func TestHostIsTheShape(t *testing.T) {
	t.Parallel()
	name := os.Getenv(job.ShapeEnv)
	if name == "" {
		t.Skipf("%s names no shape: this is no virtual machine of hack/vm with -shape", job.ShapeEnv)
	}
	want, err := shape.Named(name)
	if err != nil {
		t.Fatal(err)
	}
	s, err := Host()
	if err != nil {
		t.Fatal(err)
	}
	m, err := machine.New(s)
	if err != nil {
		t.Fatal(err)
	}
	if len(m.Nodes()) != len(want.Nodes) {
		t.Fatalf("nodes %s, want %d", m.NodeMask(), len(want.Nodes))
	}
	for id, node := range want.Nodes {
		sameNode(t, m, id, node)
		for other := range want.Nodes {
			distance := 10
			if other != id {
				distance = want.Distance(min(id, other), max(id, other))
			}
			if got, ok := m.Distances().Between(id, other); !ok || got != distance {
				t.Errorf("distance from %d to %d is %d, want %d", id, other, got, distance)
			}
		}
		samePages(t, m, id, want.HugePages)
	}
	if m.NumCPUs() != want.CPUs() || m.NumSockets() != want.Sockets {
		t.Errorf("%d CPUs, %d sockets; want %d, %d", m.NumCPUs(), m.NumSockets(), want.CPUs(), want.Sockets)
	}
	// QEMU's AMD processors show no siblings when they are emulated.
	if !strings.HasPrefix(want.CPU, "EPYC") && m.NumCores() != want.Sockets*want.Dies*want.Cores {
		t.Errorf("%d cores, want %d", m.NumCores(), want.Sockets*want.Dies*want.Cores)
	}
}

// sameNode compares CPUs and memory. The kernel keeps some of the memory for
// itself, more of it on the first node and, with little memory, in proportion.
func sameNode(t *testing.T, m *machine.Topology, id int, want shape.Node) {
	t.Helper()
	if got := m.CPUsInNode(id); got != want.CPUs {
		t.Errorf("node %d has CPUs %q, want %q", id, got, want.CPUs)
	}
	got, ok := m.Node(id)
	most := uint64(want.MemoryMiB) << 20
	if least := most / 2; !ok || got.MemoryBytes > most || got.MemoryBytes < least {
		t.Errorf("node %d has %d bytes, want between %d and %d", id, got.MemoryBytes, least, most)
	}
	if without := most == 0; without && m.NodesOf(m.CPUsInNode(id)) != numa.Of(id) {
		t.Errorf("node %d without memory lost its CPUs", id)
	}
}

func samePages(t *testing.T, m *machine.Topology, id int, want []shape.HugePages) {
	t.Helper()
	kib := map[string]uint64{"2M": 2 << 10, "1G": 1 << 20}
	node, _ := m.Node(id)
	for _, w := range want {
		i := slices.IndexFunc(node.HugePages, func(h machine.HugePages) bool { return h.SizeKiB == kib[w.Size] })
		if i < 0 || node.HugePages[i].Count != uint64(w.PerNode[id]) {
			t.Errorf("node %d has pages %+v, want %d of %s", id, node.HugePages, w.PerNode[id], w.Size)
		}
	}
}
