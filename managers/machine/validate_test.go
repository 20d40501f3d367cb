package machine_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/machine"
	"github.com/berthd/berth/managers/machine/machinetest"
	"github.com/berthd/berth/managers/numa"
)

func TestNewRefuses(t *testing.T) {
	t.Parallel()
	with := func(change func(s *machine.Snapshot)) machine.Snapshot {
		s := machinetest.Describe("2s2n2c2t,huge=2Mi:8")
		change(&s)
		return s
	}
	far, err := numa.NewDistances(map[int]map[int]int{0: {9: 20}})
	if err != nil {
		t.Fatal(err)
	}
	for _, row := range []struct {
		name     string
		snapshot machine.Snapshot
		field    string
		says     string
	}{
		{"nothing", machine.Snapshot{}, "cpus", "at least one"},
		{"version", with(func(s *machine.Snapshot) { s.Version = 2 }), "version", "expected 1"},
		{"CPU id too large", with(func(s *machine.Snapshot) { s.CPUs[3].ID = 8192 }), "cpus[3].id", "CPU id 8192 is outside 0..8191"},
		{"CPU id negative", with(func(s *machine.Snapshot) { s.CPUs[3].ID = -1 }), "cpus[3].id", "outside"},
		{"CPU twice", with(func(s *machine.Snapshot) { s.CPUs[3].ID = s.CPUs[1].ID }), "cpus[3].id", "already as cpus[1]"},
		{"core negative", with(func(s *machine.Snapshot) { s.CPUs[0].Core = -1 }), "cpus[0].core", "outside"},
		{"socket below -1", with(func(s *machine.Snapshot) { s.CPUs[0].Socket = -2 }), "cpus[0].socket", "outside"},
		{"die below -1", with(func(s *machine.Snapshot) { s.CPUs[0].Die = -2 }), "cpus[0].die", "outside"},
		{"cluster too large", with(func(s *machine.Snapshot) { s.CPUs[0].Cluster = 1 << 31 }), "cpus[0].cluster", "outside"},
		{"uncore too large", with(func(s *machine.Snapshot) { s.CPUs[0].Uncore = 1 << 31 }), "cpus[0].uncore", "outside"},
		{"kind", with(func(s *machine.Snapshot) { s.CPUs[0].Kind = 3 }), "cpus[0].kind", "no name"},
		{"node of a CPU too large", with(func(s *machine.Snapshot) { s.CPUs[0].Node = 64 }), "cpus[0].node",
			"NUMA node id 64 is outside 0..63"},
		{"node of a CPU negative", with(func(s *machine.Snapshot) { s.CPUs[0].Node = -1 }), "cpus[0].node", "outside"},
		{"node of a CPU not listed", with(func(s *machine.Snapshot) { s.CPUs[0].Node = 7 }), "cpus[0].node", "not listed"},
		{"node too large", with(func(s *machine.Snapshot) { s.Nodes[3].ID = 64 }), "nodes[3].id", "NUMA node id 64 is outside 0..63"},
		{"node twice", with(func(s *machine.Snapshot) { s.Nodes[3].ID = 0 }), "nodes[3].id", "listed twice"},
		{"core over sockets", with(func(s *machine.Snapshot) { s.CPUs[1].Socket = 1 }), "cpus[1].core", "share both"},
		{"core over nodes", with(func(s *machine.Snapshot) { s.CPUs[1].Node = 1 }), "cpus[1].core", "share both"},
		{"offline and online", with(func(s *machine.Snapshot) { s.Offline = cpuset.Of(4) }), "offline", "CPU 4 is offline"},
		{"memory overflow", with(func(s *machine.Snapshot) { s.Nodes[1].MemoryBytes = 1<<64 - 1 }), "nodes[1].memory_bytes", "exceeds"},
		{"page size 0", with(func(s *machine.Snapshot) { s.Nodes[0].HugePages[0].SizeKiB = 0 }), "nodes[0].huge_pages[0].size_kib",
			"outside"},
		{"page size too large", with(func(s *machine.Snapshot) { s.Nodes[0].HugePages[0].SizeKiB = 1 << 60 }),
			"nodes[0].huge_pages[0].size_kib", "outside"},
		{"pages overflow", with(func(s *machine.Snapshot) { s.Nodes[0].HugePages[0].Count = 1 << 50 }), "nodes[0].huge_pages[0].count",
			"exceed"},
		{"page size twice", with(func(s *machine.Snapshot) {
			s.Nodes[2].HugePages = append(s.Nodes[2].HugePages, s.Nodes[2].HugePages[0])
		}), "nodes[2].huge_pages[1].size_kib", "listed twice"},
		{"distances of unknown node", with(func(s *machine.Snapshot) { s.Distances = far }), "distances", "9"},
		{"count negative", with(func(s *machine.Snapshot) { s.Counts = &machine.Counts{Sockets: -1} }), "counts.sockets", "outside"},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			_, err := machine.New(row.snapshot)
			var refusal *errdefs.Error
			if !errors.As(err, &refusal) || refusal.Class != errdefs.Invalid || len(refusal.Fields) == 0 {
				t.Fatalf("error is %v, want one of class invalid with fields", err)
			}
			if first := refusal.Fields[0]; first.Field != row.field || !strings.Contains(first.Description, row.says) {
				t.Errorf("violation is %q, want field %s and a text with %q", first, row.field, row.says)
			}
		})
	}
}

// TestRecordedTables has what New takes only with counts: a table that was
// recorded elsewhere, with a core on two sockets.
func TestRecordedTables(t *testing.T) {
	t.Parallel()
	s := machinetest.Describe("2s2c2t", machinetest.Socket("0-1", 5), machinetest.Counts(machine.Counts{CPUs: 8, Cores: 4}))
	m, err := machine.New(s)
	if err != nil {
		t.Fatal(err)
	}
	if got := m.SocketsOf(m.CPUsInCore(0)); len(got) != 2 {
		t.Errorf("core 0 is on sockets %v, want two", got)
	}
}

func TestKind(t *testing.T) {
	t.Parallel()
	for _, kind := range []machine.Kind{machine.KindUnknown, machine.KindPerformance, machine.KindEfficient} {
		text, err := kind.MarshalText()
		if err != nil {
			t.Fatal(err)
		}
		var back machine.Kind
		if err := back.UnmarshalText(text); err != nil || back != kind || kind.String() != string(text) {
			t.Errorf("%s comes back as %s, %v", text, back, err)
		}
	}
	if _, err := machine.Kind(3).MarshalText(); err == nil || machine.Kind(3).String() != "Kind(3)" {
		t.Error("kind 3 has a name")
	}
	var k machine.Kind
	if err := k.UnmarshalText([]byte("fast")); err == nil {
		t.Error("kind fast was read")
	}
}
