package machine_test

import (
	"encoding/json"
	"reflect"
	"testing"

	"pgregory.net/rapid"

	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/machine"
	"github.com/berthd/berth/managers/machine/machinetest"
)

// TestCompare: node 0 has CPUs 0-1 and 4-5, node 1 has 2-3 and 6-7.
func TestCompare(t *testing.T) {
	t.Parallel()
	const shape = "2n2c2t,mem=2Gi,huge=2Mi:8"
	whole := machinetest.Build(shape)
	for name, tt := range map[string]struct {
		to    *machine.Topology
		want  string
		loses bool
	}{
		"nothing":          {machinetest.Build(shape), "", false},
		"a name":           {machinetest.Build(shape, machinetest.Named("x")), "", false},
		"a little memory":  {machinetest.Build(shape, machinetest.Memory(0, 2<<30-1<<20)), "", false},
		"a CPU":            {machinetest.Build(shape, machinetest.Offline("7")), "CPUs 7 are gone", true},
		"the first thread": {machinetest.Build(shape, machinetest.Offline("0")), "CPUs 0 are gone; CPUs 4 are in another place", true},
		"a memory block": {machinetest.Build(shape, machinetest.Memory(1, 1<<30)), "NUMA node 1 has 1024 MiB of memory instead of 2048",
			true},
		"more memory": {machinetest.Build(shape, machinetest.Memory(1, 3<<30)), "NUMA node 1 has 3072 MiB of memory instead of 2048",
			false},
		"fewer huge pages": {machinetest.Build(shape, machinetest.HugePages(0, 2048, 3)),
			"NUMA node 0 has 3 huge pages of 2048 KiB instead of 8", true},
		"other huge pages": {machinetest.Build(shape, machinetest.HugePages(0, 1<<20, 1)),
			"NUMA node 0 has 1 huge pages of 1048576 KiB instead of 0", false},
		"a node": {machinetest.Build("1n2c2t,mem=2Gi,huge=2Mi:8"), "", true},
		"only for display": {machinetest.Build(shape, func(s *machine.Snapshot) { s.Isolated = cpuset.Of(3) }),
			"offline or isolated CPUs, or distances, have changed", false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := machine.Compare(whole, tt.to)
			if tt.want != "" && c.String() != tt.want || c.Loses() != tt.loses || c.Empty() != (c.String() == "") {
				t.Errorf("%q, loses %t, empty %t; want %q, loses %t", c, c.Loses(), c.Empty(), tt.want, tt.loses)
			}
			if back := machine.Compare(tt.to, whole); back.Empty() != c.Empty() {
				t.Errorf("back: %q", back)
			}
		})
	}
	back := machine.Compare(machinetest.Build(shape, machinetest.Offline("0")), whole)
	if back.Loses() || back.String() != "CPUs 0 are new or online again; CPUs 4 are in another place" {
		t.Errorf("the first thread is back: %q, loses %t", back, back.Loses())
	}
}

// TestWithout compares with the machine that discovery would find.
func TestWithout(t *testing.T) {
	t.Parallel()
	for _, list := range []string{"", "7", "0", "0-1,4-5", "99"} {
		off, err := cpuset.Parse(list)
		if err != nil {
			t.Fatal(err)
		}
		got, err := machinetest.Build("2n2c2t").Without(off)
		if err != nil {
			t.Fatal(err)
		}
		want := machinetest.Build("2n2c2t", machinetest.Offline(off.Minus(cpuset.Of(99)).String()))
		if c := machine.Compare(want, got); !c.Empty() || got.Fingerprint() != want.Fingerprint() {
			t.Errorf("without %q: %s", list, c)
		}
	}
	// The recorded counts disagree with the tables: core 0 has threads on both nodes.
	spans := machinetest.Build("2n2c2t", machinetest.Counts(machine.Counts{CPUs: 16, Cores: 4, Sockets: 1, NUMANodes: 2, Uncores: 1}),
		func(s *machine.Snapshot) { s.CPUs[2].Core = 0 })
	less, err := spans.Without(cpuset.Of(7))
	if err != nil || less.NumCPUs() != 15 || less.NumCores() != 4 || less.NumSockets() != 1 {
		t.Errorf("a machine with recorded counts, without CPU 7: %+v, %v", less, err)
	}
	if spans.NumCPUs() != 16 {
		t.Error("the machine itself has changed")
	}
	if _, err := machinetest.Build("2c").Without(cpuset.Of(0, 1)); errdefs.ClassOf(err) != errdefs.Invalid {
		t.Errorf("without any CPU: %v", err)
	}
}

// TestLeft: what another machine lacks is out of use, and what is new there is not in use. All NUMA nodes stay.
func TestLeft(t *testing.T) {
	t.Parallel()
	const shape = "2n2c2t,mem=4Gi,huge=2Mi:8"
	whole := machinetest.Build(shape)
	for name, row := range map[string]struct {
		other *machine.Topology
		want  machine.Change
	}{
		"the same": {whole, machine.Change{}},
		"more":     {machinetest.Build("3n2c2t,mem=8Gi,huge=2Mi:16"), machine.Change{}},
		"a CPU":    {machinetest.Build(shape, machinetest.Offline("6")), machine.Change{CPUsGone: cpuset.Of(6)}},
		"pages": {machinetest.Build(shape, machinetest.HugePages(1, 2048, 3)),
			machine.Change{Memory: []machine.AmountChange{{Node: 1, PageKiB: 2048, Before: 8, After: 3}}}},
		"no memory": {machinetest.Build(shape, machinetest.Memory(0, 0)),
			machine.Change{Memory: []machine.AmountChange{{Node: 0, Before: 4 << 30}}}},
		"a node": {machinetest.Build(shape, machinetest.WithoutNodes(1)), machine.Change{
			CPUsGone: whole.CPUsInNode(1),
			Memory:   []machine.AmountChange{{Node: 1, Before: 4 << 30}, {Node: 1, PageKiB: 2048, Before: 8}},
		}},
	} {
		got, err := whole.Left(row.other)
		if err != nil {
			t.Fatal(err)
		}
		if c := machine.Compare(whole, got); !reflect.DeepEqual(c, row.want) || c.Empty() != (got == whole) ||
			got.NodeMask() != whole.NodeMask() {
			t.Errorf("%s: %s", name, c)
		}
		if sum := got.Nodes()[0].MemoryBytes + got.Nodes()[1].MemoryBytes; got.MemoryBytes() != sum {
			t.Errorf("%s: %d bytes, and the nodes have %d", name, got.MemoryBytes(), sum)
		}
	}
	if _, err := machinetest.Build("2c").Left(machinetest.Build("4c",
		machinetest.Offline("0-1"))); errdefs.ClassOf(err) != errdefs.Invalid {
		t.Errorf("no CPU is left: %v", err)
	}
}

// TestDifferenceApplies: a stored difference gives exactly the machine that it is of.
func TestDifferenceApplies(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		from, err := machine.New(drawSnapshot(t))
		if err != nil {
			t.Skip(err)
		}
		to := from
		if rapid.Bool().Draw(t, "other") {
			if to, err = machine.New(drawSnapshot(t)); err != nil {
				t.Skip(err)
			}
		} else if less, err := from.Without(cpuset.Of(rapid.SliceOfN(rapid.SampledFrom(ids(from)), 1, 3).Draw(t, "off")...)); err == nil {
			to = less
		}
		text, err := json.Marshal(machine.DifferenceOf(to, from))
		if err != nil {
			t.Fatal(err)
		}
		var d machine.Difference
		if err := json.Unmarshal(text, &d); err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		got, err := d.Apply(from)
		if err != nil {
			t.Fatal(err)
		}
		if c := machine.Compare(to, got); !c.Empty() || got.Fingerprint() != to.Fingerprint() || got.MemoryBytes() != to.MemoryBytes() {
			t.Fatalf("%s: %s", text, c)
		}
	})
	d := machine.Difference{Same: cpuset.Of(3)}
	if _, err := d.Apply(machinetest.Build("2c")); errdefs.ClassOf(err) != errdefs.Corrupt {
		t.Errorf("a CPU that is not there: %v", err)
	}
}

func ids(m *machine.Topology) (out []int) {
	for id := range m.CPUs().All() {
		out = append(out, id)
	}
	return out
}
