package machine_test

import (
	"encoding/json"
	"testing"
	"time"

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
		"a memory block":   {machinetest.Build(shape, machinetest.Memory(1, 1<<30)), "NUMA node 1 has 1024 MiB of memory instead of 2048", true},
		"more memory":      {machinetest.Build(shape, machinetest.Memory(1, 3<<30)), "NUMA node 1 has 3072 MiB of memory instead of 2048", false},
		"fewer huge pages": {machinetest.Build(shape, machinetest.HugePages(0, 2048, 3)), "NUMA node 0 has 3 huge pages of 2048 KiB instead of 8", true},
		"other huge pages": {machinetest.Build(shape, machinetest.HugePages(0, 1<<20, 1)), "NUMA node 0 has 1 huge pages of 1048576 KiB instead of 0", false},
		"a node":           {machinetest.Build("1n2c2t,mem=2Gi,huge=2Mi:8"), "", true},
		"only for display": {machinetest.Build(shape, func(s *machine.Snapshot) { s.Isolated = cpuset.Of(3) }), "offline or isolated CPUs, or distances, have changed", false},
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
	if back.Loses() || back.String() != "CPUs 0 are new or on line again; CPUs 4 are in another place" {
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
	if _, err := machinetest.Build("2c").Without(cpuset.Of(0, 1)); errdefs.ClassOf(err) != errdefs.Invalid {
		t.Errorf("without any CPU: %v", err)
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

// TestDebounce: losses count at once, what is new after it has stayed.
func TestDebounce(t *testing.T) {
	t.Parallel()
	whole, less := machinetest.Build("4c"), machinetest.Build("4c", machinetest.Offline("3"))
	lesser, more := machinetest.Build("4c", machinetest.Offline("2-3")), machinetest.Build("5c")
	s, used := machine.Debounce{For: 5 * time.Second}, whole
	start := time.Unix(100, 0)
	for i, step := range []struct {
		at       int // seconds
		observed *machine.Topology
		replace  bool
		again    int // 0 for never
	}{
		{0, whole, false, 0},
		{1, less, true, 0},
		{2, less, false, 0},
		{3, whole, false, 8},
		{4, less, false, 0}, // gone again: nothing has changed
		{5, whole, false, 10},
		{9, whole, false, 10},
		{9, more, false, 14}, // something else is new
		{10, more, false, 14},
		{14, more, true, 0},
		{15, lesser, true, 0},
	} {
		now := start.Add(time.Duration(step.at) * time.Second)
		replace, again := s.Observe(used, step.observed, now)
		want := time.Time{}
		if step.again > 0 {
			want = start.Add(time.Duration(step.again) * time.Second)
		}
		if replace != step.replace || !again.Equal(want) {
			t.Errorf("step %d: replaces %t, again %v; want %t, %v", i, replace, again, step.replace, want)
		}
		if replace {
			used = step.observed
		}
	}
}
