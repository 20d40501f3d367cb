package machine_test

import (
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/machine"
	"github.com/berthd/berth/managers/machine/machinetest"
)

// TestDebounce: losses count at once, and each thing that is new after it has stayed.
func TestDebounce(t *testing.T) {
	t.Parallel()
	without := func(cpus string) *machine.Topology { return machinetest.Build("5c", machinetest.Offline(cpus)) }
	whole := machinetest.Build("5c")
	d, used := machine.Debounce{For: 5 * time.Second}, without("4")
	start := time.Unix(100, 0)
	for i, step := range []struct {
		at       int // seconds
		observed *machine.Topology
		used     string // CPUs after the step
		again    int    // 0 for never
	}{
		{0, without("4"), "0-3", 0},
		{1, without("3-4"), "0-2", 0},
		{2, without("3-4"), "0-2", 0},
		{3, without("4"), "0-2", 8},
		{4, without("3-4"), "0-2", 0}, // gone again: nothing has changed
		{5, without("4"), "0-2", 10},
		{9, without("4"), "0-2", 10},
		{9, whole, "0-2", 10}, // something else is new
		{10, whole, "0-3", 14},
		{14, whole, "0-4", 0},
		{15, without("2-3"), "0-1,4", 0},
		{16, without("2"), "0-1,4", 21},
		{17, without("0,2"), "1,4", 21}, // what is gone does not bring what is new
		{18, without("2"), "1,4", 21},
		{10, without("2"), "1,4", 15}, // the clock was set back
		{16, without("2"), "0-1,3-4", 0},
	} {
		now := start.Add(time.Duration(step.at) * time.Second)
		next, again := d.Observe(used, step.observed, now)
		if next != nil {
			used = next
		}
		want := time.Time{}
		if step.again > 0 {
			want = start.Add(time.Duration(step.again) * time.Second)
		}
		if used.CPUs().String() != step.used || !again.Equal(want) {
			t.Errorf("step %d: CPUs %s, again %v; want %s, %v", i, used.CPUs(), again, step.used, want)
		}
	}
}

// TestDebounceEachAddition: a part of the machine that stays is used beside one that comes and goes.
func TestDebounceEachAddition(t *testing.T) {
	t.Parallel()
	const shape = "2n2c2t,mem=2Gi,huge=2Mi:8"
	whole := machinetest.Build(shape)
	pages := func(n uint64) machinetest.Option { return machinetest.HugePages(0, 2048, n) }
	memory := func(bytes uint64) machinetest.Option { return machinetest.Memory(1, bytes) }
	oneNode := machinetest.Build(shape, machinetest.Offline("2-3,6-7"), func(s *machine.Snapshot) {
		s.Nodes, s.Distances = s.Nodes[:1], s.Distances.Among(1)
	})
	other := machinetest.Build(shape, func(s *machine.Snapshot) { s.CPUs[0].Uncore, s.CPUs[4].Uncore = 7, 7 })
	for name, row := range map[string]struct {
		used *machine.Topology
		seen [2]*machine.Topology // in turn
		want *machine.Topology
	}{
		"a CPU beside another": {machinetest.Build(shape, machinetest.Offline("5,7")),
			[2]*machine.Topology{whole, machinetest.Build(shape, machinetest.Offline("7"))},
			machinetest.Build(shape, machinetest.Offline("7"))},
		"a first thread beside a CPU": {machinetest.Build(shape, machinetest.Offline("0,7")),
			[2]*machine.Topology{whole, machinetest.Build(shape, machinetest.Offline("7"))},
			machinetest.Build(shape, machinetest.Offline("7"))},
		"a CPU beside a first thread": {machinetest.Build(shape, machinetest.Offline("0,7")),
			[2]*machine.Topology{whole, machinetest.Build(shape, machinetest.Offline("0"))},
			machinetest.Build(shape, machinetest.Offline("0"))},
		"pages beside a CPU": {machinetest.Build(shape, machinetest.Offline("7")),
			[2]*machine.Topology{machinetest.Build(shape, pages(9)), machinetest.Build(shape, pages(9), machinetest.Offline("7"))},
			machinetest.Build(shape, pages(9), machinetest.Offline("7"))},
		"a number of pages that varies": {whole, [2]*machine.Topology{machinetest.Build(shape, pages(12)),
			machinetest.Build(shape, pages(10))}, machinetest.Build(shape, pages(10))},
		"pages that come and go": {whole, [2]*machine.Topology{machinetest.Build(shape, pages(12)), whole}, whole},
		"memory beside a CPU": {machinetest.Build(shape, machinetest.Offline("7")),
			[2]*machine.Topology{machinetest.Build(shape, memory(3<<30)),
				machinetest.Build(shape, memory(3<<30), machinetest.Offline("7"))},
			machinetest.Build(shape, memory(3<<30), machinetest.Offline("7"))},
		"an amount of memory that varies": {whole, [2]*machine.Topology{machinetest.Build(shape, memory(4<<30)),
			machinetest.Build(shape, memory(3<<30))}, machinetest.Build(shape, memory(3<<30))},
		"a node":                     {oneNode, [2]*machine.Topology{whole, whole}, whole},
		"a node that comes and goes": {oneNode, [2]*machine.Topology{whole, oneNode}, oneNode},
		"a CPU beside a node": {machinetest.Build(shape, machinetest.Offline("2-4,6-7"),
			func(s *machine.Snapshot) { s.Nodes, s.Distances = s.Nodes[:1], s.Distances.Among(1) }), [2]*machine.Topology{whole, oneNode},
			oneNode},
		"CPUs in another place":        {whole, [2]*machine.Topology{other, other}, other},
		"CPUs that change their place": {whole, [2]*machine.Topology{other, whole}, whole},
		"other CPUs than those in use": {machinetest.Build("2n2c2t", machinetest.Offline("0-3")),
			[2]*machine.Topology{machinetest.Build("2n2c2t", machinetest.Offline("4-7")),
				machinetest.Build("2n2c2t", machinetest.Offline("4-7"))}, machinetest.Build("2n2c2t", machinetest.Offline("4-7"))},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d, used, now := machine.Debounce{For: 5 * time.Second}, row.used, time.Unix(0, 0)
			for i := range 20 {
				next, again := d.Observe(used, row.seen[i%2], now)
				if next != nil {
					used = next
				}
				if c := machine.Compare(used, row.seen[i%2]); !c.Empty() && again.IsZero() {
					t.Errorf("after %d observations: %s, and it is not observed again", i+1, c)
				}
				now = now.Add(time.Second)
			}
			if c := machine.Compare(row.want, used); !c.Empty() || used.MemoryBytes() != row.want.MemoryBytes() {
				t.Errorf("%s; memory %d instead of %d", c, used.MemoryBytes(), row.want.MemoryBytes())
			}
		})
	}
}

// TestDebounceRest: what comes in several parts is used in the end, if the machine is observed only when it changes, and
// when Observe requests it. Until then, nothing is used that is not there.
func TestDebounceRest(t *testing.T) {
	t.Parallel()
	const shape = "3n2c2t,mem=2Gi,huge=2Mi:0"
	rapid.Check(t, func(t *rapid.T) {
		d, now := machine.Debounce{For: 5 * time.Second}, time.Unix(100, 0)
		used := machinetest.Build(shape)
		var observed *machine.Topology
		var again time.Time
		observe := func() {
			var next *machine.Topology
			if next, again = d.Observe(used, observed, now); next != nil {
				used = next
			}
			if !used.CPUs().IsSubsetOf(observed.CPUs()) || !used.NodeMask().IsSubsetOf(observed.NodeMask()) {
				t.Fatalf("CPUs %s and nodes %s are in use, and there are %s and %s", used.CPUs(), used.NodeMask(), observed.CPUs(),
					observed.NodeMask())
			}
			for _, n := range used.Nodes() {
				if there, _ := observed.Node(n.ID); there.MemoryBytes+64<<20 <= n.MemoryBytes {
					t.Fatalf("node %d is used with %d bytes, and has %d", n.ID, n.MemoryBytes, there.MemoryBytes)
				}
			}
		}
		for range rapid.IntRange(1, 6).Draw(t, "changes") {
			var gone []int
			for _, id := range []int{1, 2} {
				if rapid.Bool().Draw(t, fmt.Sprintf("node %d is gone", id)) {
					gone = append(gone, id)
				}
			}
			observed = machinetest.Build(shape, machinetest.HugePages(0, 2048, rapid.Uint64Range(0, 32).Draw(t, "pages")),
				machinetest.Memory(1, rapid.Uint64Range(0, 5).Draw(t, "gib")<<30), machinetest.WithoutNodes(gone...),
				machinetest.Offline(cpuset.Of(rapid.SliceOfN(rapid.IntRange(1, 1), 0, 1).Draw(t, "off")...).String()))
			observe()
			now = now.Add(time.Duration(rapid.IntRange(0, 7).Draw(t, "seconds")) * time.Second)
			if !again.IsZero() && !again.After(now) {
				observe()
			}
		}
		for range 10 {
			if again.IsZero() {
				break
			}
			now = again
			observe()
		}
		if c := machine.Compare(used, observed); !c.Empty() {
			t.Fatalf("in the end: %s", c)
		}
	})
}

// TestDebounceModel compares with what was observed of each CPU.
func TestDebounceModel(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		const after = 3 // observations, a second apart
		whole := machinetest.Build("2n2c2t,mem=2Gi")
		d, used, now := machine.Debounce{For: after * time.Second}, whole, time.Unix(0, 0)
		stayed := map[int]int{} // number of uninterrupted observations
		for i := range rapid.IntRange(1, 30).Draw(t, "observations") {
			off := cpuset.Of(rapid.SliceOfN(rapid.IntRange(0, 7), 0, 7).Draw(t, fmt.Sprintf("off %d", i))...)
			observed, err := whole.Without(off)
			if err != nil {
				t.Fatal(err)
			}
			before := used
			next, again := d.Observe(used, observed, now)
			if next != nil {
				used = next
			}
			var b cpuset.Builder
			for id := range whole.CPUs().All() {
				if stayed[id]++; off.Contains(id) {
					stayed[id] = 0
				}
				if _, had := before.CPU(id); !off.Contains(id) && (had || stayed[id] > after) {
					b.Add(id)
				}
			}
			want := b.Set()
			if want.IsEmpty() {
				want = observed.CPUs()
			}
			var waits bool
			for id := range whole.CPUs().All() {
				_, has := used.CPU(id)
				if has != want.Contains(id) {
					t.Fatalf("observation %d without %s, CPU %d was observed %d times: in use is %t", i, off, id, stayed[id], has)
				}
				waits = waits || !has && !off.Contains(id)
			}
			if again.IsZero() == waits {
				t.Fatalf("CPUs wait: %t, again %v", waits, again)
			}
			now = now.Add(time.Second)
		}
	})
}
