package cpu

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/machine"
	"github.com/berthd/berth/managers/machine/machinetest"
	"github.com/berthd/berth/managers/numa"
)

// Every row was worked out with the reference. answers are "n→set".
var assignments = []struct {
	machine string
	manner  string
	free    string
	answers string
}{
	{"A", "packed", "0-7", "1→0 2→0,4 3→0-1,4 4→0-1,4-5 5→0-2,4-5 8→0-7 9→"},
	{"A", "packed", "1-7", "1→4 2→1,5 3→1,4-5 5→1-2,4-6"},
	{"A", "packed", "0-1,6-7", "2→0-1"},
	{"B", "packed", "0-15", "1→0 2→0,8 4→0-1,8-9 6→0-2,8-10 8→0-3,8-11 9→0-4,8-11 12→0-5,8-13"},
	{"B", "packed", "1-7,9-15", "2→1,9 6→1-3,9-11 8→4-7,12-15"},
	{"B", "packed", "1-15", "1→8 2→1,9"},
	{"C", "packed", "0-15", "2→0,8 4→0-1,8-9 5→0-2,8-9 8→0-3,8-11 10→0-4,8-12 13→0-6,8-13"},
	{"C", "packed", "1-7,9-15", "2→1,9 4→2-3,10-11 6→1-3,9-11 8→4-7,12-15"},

	{"B", "spread", "0-15", "1→0 2→0-1 3→0-2 5→0-3,8 8→0-3,8-11"},
	{"B", "spread", "1-15", "4→1-3,8 9→1,4-7,12-15"},
	{"C", "spread", "0-15", "3→0-2 4→0-1,8-9 5→0-2,8-9"},

	{"D", "uncores", "0-15", "3→0-1,8 5→0-2,8-9 7→0-3,8-10 8→0-3,8-11 9→0-4,8-11 12→0-5,8-13"},
	{"D", "uncores", "1-7,9-15", "2→1,9 6→1-3,9-11 7→4-7,12-14 8→4-7,12-15 10→1,4-7,9,12-15"},
	{"D", "uncores", "1-15", "1→8 2→4,12 3→1,8-9 4→4-5,12-13 5→1-2,8-10 6→4-6,12-14 7→1-3,8-11 8→4-7,12-15"},
	{"D", "uncores", "3,5,7,11-15", "5→3,5,11-13"},
	{"D", "uncores", "3,5,7,11-13", "4→3,5,11,13"},
	{"E", "uncores", "1-7", "1→1 3→1-3 4→4-7 5→1,4-7 6→1-2,4-7"},
	{"F", "uncores", "0-31", "2→0,8 3→0,8,16 5→0-1,8,16,24 7→0-1,8-9,16-17,24"},
}

func TestAssignment(t *testing.T) {
	t.Parallel()
	manners := map[string]manner{"packed": {}, "spread": {spread: true, asKubelet: true}, "uncores": {uncores: true, asKubelet: true}}
	for _, row := range assignments {
		table := newTable(machines[row.machine])
		for answer := range strings.FieldsSeq(row.answers) {
			n, want := 0, ""
			if _, err := fmt.Sscanf(strings.Replace(answer, "→", " ", 1), "%d %s", &n, &want); err != nil && want != "" {
				t.Fatal(err)
			}
			got, err := table.packed(set(row.free), n, manners[row.manner])
			wantCPUs(t, fmt.Sprintf("%s, %s, %d of %s", row.machine, row.manner, n, row.free), got, err, want)
		}
	}
}

func TestDistribution(t *testing.T) {
	t.Parallel()
	// answers are "n→CPUs by node", or a set with an equals sign.
	for _, row := range []struct {
		machine, free string
		group         int
		answers       string
	}{
		{"B", "0-15", 1, "8→8,0 9→5,4 9=0-2,4-5,8-9,12-13 10→5,5 11→6,5 12→6,6 13→7,6"},
		{"B", "0-15", 2, "9→8,1 10→6,4 12→6,6 14→8,6"},
		{"B", "1-7,9-15", 1, "8→0,8 9→4,5 10→5,5 11→5,6 13→6,7"},
		{"B", "1-7,9-15", 2, "10→4,6"},
		{"B", "1-3,5-15", 2, "8→4,4 10→6,4 12→6,6 14→7,7"},
		{"C", "0-15", 1, "4→4,0,0,0 5→3,2,0,0 7→4,3,0,0 9→3,3,3,0 10→4,3,3,0 13→4,3,3,3 14→4,4,3,3"},
		{"C", "0-15", 2, "6→4,2,0,0 10→4,4,2,0 14→4,4,4,2"},
	} {
		table := newTable(machines[row.machine])
		for answer := range strings.FieldsSeq(row.answers) {
			n, want := 0, ""
			if _, err := fmt.Sscanf(strings.NewReplacer("→", " ", "=", " ").Replace(answer), "%d %s", &n, &want); err != nil {
				t.Fatal(err)
			}
			taken, err := table.distributed(set(row.free), n, evenly{group: row.group})
			if err != nil {
				t.Fatal(err)
			}
			got := taken.String()
			if !strings.Contains(answer, "=") {
				var counts []string
				for i := range table.part[node].Len() {
					counts = append(counts, fmt.Sprint(taken.IntersectLen(table.part[node].CPUs(i))))
				}
				got = strings.Join(counts, ",")
			}
			if got != want {
				t.Errorf("%s, %d of %s in groups of %d: got %s (%s), want %s", row.machine, n, row.free, row.group, got, taken, want)
			}
		}
	}
}

// TestDistributionKeepsItsSubset: the reference overwrites the subset of nodes
// that it chose (kubernetes#141237). On 2 sockets of 4 nodes it takes node 7
// instead of the last node of the best subset.
func TestDistributionKeepsItsSubset(t *testing.T) {
	t.Parallel()
	topo := machinetest.Build("2s4n16c2t")
	table := newTable(topo)
	for _, row := range []struct {
		n    int
		want string // the reference: 0-2,7 for four nodes, 0-4,7 for six
	}{{128, "0-3"}, {100, "0-3"}, {192, "0-5"}} {
		got, err := table.distributed(topo.CPUs(), row.n, evenly{group: 1})
		if err != nil || got.Len() != row.n {
			t.Fatalf("%d CPUs: got %s, %v", row.n, got, err)
		}
		if nodes := topo.NodesOf(got).String(); nodes != row.want {
			t.Errorf("%d CPUs: on nodes %s, want %s", row.n, nodes, row.want)
		}
	}
}

// TestDistributionUsesTheMerge: CPUs are spread over as many nodes as the merge has chosen for devices
// (kubernetes#139430), if the request is large enough.
func TestDistributionUsesTheMerge(t *testing.T) {
	t.Parallel()
	topo := machinetest.Build("2s2n8c2t") // 16 CPUs on each of four nodes
	for _, row := range []struct {
		n, merged int
		asKubelet bool
		want      string
	}{
		{44, 4, false, "0-3"}, {44, 4, true, "0-2"}, {44, 0, false, "0-2"}, {44, 2, false, "0-2"}, {3, 4, false, "0"}, {4, 4, false, "0-3"},
	} {
		m := Manager{table: newTable(topo), options: options{acrossNUMA: true}, asKubelet: row.asKubelet}
		got, err := m.chooseOn(topo.CPUs(), row.n, row.merged)
		if err != nil || got.Len() != row.n || topo.NodesOf(got).String() != row.want {
			t.Errorf("%d CPUs, %d nodes: got %s on nodes %s, %v; want nodes %s", row.n, row.merged, got, topo.NodesOf(got), err, row.want)
		}
	}
}

// TestDistributionBySocket: nodes of one socket are preferred, also with an uneven share.
func TestDistributionBySocket(t *testing.T) {
	t.Parallel()
	topo := machinetest.Build("2s2n4c2t") // 8 CPUs on each of four nodes
	free := topo.CPUs().Minus(topo.CPUsInNodes(numa.Of(0)).Lowest(3))
	for _, row := range []struct {
		free     cpuset.Set
		bySocket bool
		want     string // CPUs of each node
	}{
		{topo.CPUs(), true, "[5 5 0 0]"},
		{free, false, "[0 5 5 0]"}, {free, true, "[0 0 5 5]"},
		{free.Minus(topo.CPUsInNodes(numa.Of(2))), false, "[0 5 0 5]"},
		{free.Minus(topo.CPUsInNodes(numa.Of(2))), true, "[5 5 0 0]"},
		{free.Minus(topo.CPUsInNodes(numa.Of(0)).Lowest(4)).Minus(topo.CPUsInNodes(numa.Of(2))), true, "[4 6 0 0]"},
	} {
		table := newTable(topo)
		got, err := table.distributed(row.free, 10, evenly{group: 1, bySocket: row.bySocket})
		counts := make([]int, table.part[node].Len())
		for i := range counts {
			counts[i] = got.IntersectLen(table.part[node].CPUs(i))
		}
		if err != nil || fmt.Sprint(counts) != row.want {
			t.Errorf("free %s, by socket %t: got %v, %v; want %s", row.free, row.bySocket, counts, err, row.want)
		}
	}
}

// TestSpreadTakesCoresInTurns: whatever the numbers of siblings are, no core gives a second CPU before each has
// given one (kubernetes#140688).
func TestSpreadTakesCoresInTurns(t *testing.T) {
	t.Parallel()
	neighbours := machinetest.Build("4c2t", machinetest.CPUIDs(func(old int) int { return old%4*2 + old/4 })) // siblings 0-1, 2-3, ...
	for _, row := range []struct {
		topo      *machine.Topology
		free      string
		n         int
		asKubelet bool
		want      string
	}{
		{neighbours, "0-7", 2, false, "0,2"}, {neighbours, "0-7", 2, true, "0-1"},
		{neighbours, "0-7", 5, false, "0-2,4,6"},
		{neighbours, "1-7", 2, false, "1-2"},
		{machines["A"], "0-7", 5, false, "0-4"},
		{machines["A"], "0-3,6-7", 2, false, "0-1"},
	} {
		got, err := newTable(row.topo).packed(set(row.free), row.n, manner{spread: true, asKubelet: row.asKubelet})
		if err != nil || got != set(row.want) {
			t.Errorf("%d of %s, as kubelet %t: got %s, %v; want %s", row.n, row.free, row.asKubelet, got, err, row.want)
		}
	}
}

// TestFewestCaches: no cache is crossed where one has room (kubernetes#137315); otherwise whole caches
// come first, then the fewest parts.
func TestFewestCaches(t *testing.T) {
	t.Parallel()
	e := machines["E"] // caches 0-3 and 4-7, without siblings
	f := machinetest.Build("4l4c2t")
	for _, row := range []struct {
		topo          *machine.Topology
		free          string
		n             int
		want, kubelet int // number of caches
	}{
		{e, "0-7", 3, 1, 1}, {e, "0-7", 4, 1, 1}, {e, "0-7", 5, 2, 2}, {e, "1-3,5-7", 3, 1, 1},
		// Of each core one thread is free, and the kubelet counts cores.
		{f, "0,4-6,8-11", 3, 1, 2}, {f, "0-1,4,8-10,12-13", 3, 1, 2}, {f, "0-1,4,8-9,12-13", 4, 2, 3},
		{f, "0-1,4-7,8-11,20-23", 6, 1, 1},
	} {
		table := newTable(row.topo)
		for asKubelet, want := range map[bool]int{false: row.want, true: row.kubelet} {
			got, err := table.packed(set(row.free), row.n, manner{uncores: true, asKubelet: asKubelet})
			caches := len(slices.Collect(row.topo.ByUncore().Touched(got)))
			if err != nil || got.Len() != row.n || !got.IsSubsetOf(set(row.free)) || caches != want {
				t.Errorf("%d of %s, as kubelet %t: got %s of %d caches, %v; want %d", row.n, row.free, asKubelet, got, caches, err, want)
			}
		}
	}
}

// TestDistributionEnds: with three threads left over on each of four nodes and
// groups of two, the reference hands out three groups to two nodes for ever
// (kubernetes#140730).
func TestDistributionEnds(t *testing.T) {
	t.Parallel()
	topo := machinetest.Build("4n4c2t")
	free := topo.CPUs().Minus(set("0,4,8,12"))
	for _, n := range []int{20, 22, 24} {
		got, err := newTable(topo).distributed(free, n, evenly{group: 2})
		if err != nil || got.Len() != n || !got.IsSubsetOf(free) {
			t.Errorf("%d CPUs: got %s, %v", n, got, err)
		}
	}
}

// TestDistributionOnManyNodes: where not every subset can be looked at, the
// nodes with the most free CPUs are taken, and the work stays small.
func TestDistributionOnManyNodes(t *testing.T) {
	t.Parallel()
	topo := machinetest.Build("32s2n8c2t")
	table := newTable(topo)
	free := topo.CPUs()
	for i := range 40 { // all but one thread of the first 40 nodes are busy
		free = free.Minus(table.part[node].CPUs(i).Minus(table.part[node].CPUs(i).Lowest(1)))
	}
	got, err := table.distributed(free, 24*10+5, evenly{group: 1})
	if err != nil || got.Len() != 245 || !got.IsSubsetOf(free) {
		t.Fatalf("got %s, %v", got, err)
	}
	counts := map[int]int{}
	for i := range table.part[node].Len() {
		counts[got.IntersectLen(table.part[node].CPUs(i))]++
	}
	if counts[0] != 48 || counts[15]+counts[16] != 16 {
		t.Errorf("CPUs by node: %v, want 16 nodes with 15 or 16", counts)
	}
}

// TestWholeCoresAreFree: on a hybrid machine, and where a sibling is offline,
// the average core has one thread. The reference takes a core with one free
// thread for a whole one and then all of its threads, free or not
// (kubernetes#140495, fixed by kubernetes#140498; kubernetes#124066).
func TestWholeCoresAreFree(t *testing.T) {
	t.Parallel()
	offline := machinetest.Build("4c2t", machinetest.Offline("7"))
	for _, row := range []struct {
		name  string
		table *table
		free  string
		n     int
		wrong string // the reference's answer
	}{
		{"reserved thread", newTable(machines["hybrid"]), "1-7", 2, "0-1"},
		{"offline sibling", newTable(offline), "1-2,4-6", 2, "0,4"},
	} {
		got, err := row.table.packed(set(row.free), row.n, manner{})
		if err != nil || got.Len() != row.n || !got.IsSubsetOf(set(row.free)) || got.String() == row.wrong {
			t.Errorf("%s: got %s, %v", row.name, got, err)
		}
	}
}

// TestNodesAcrossSockets: where a NUMA node has CPUs of two sockets it is found under
// both, and the reference counts what it takes there twice.
func TestNodesAcrossSockets(t *testing.T) {
	t.Parallel()
	s := machinetest.Build("2s12c2t").Snapshot()
	for i := range s.CPUs {
		s.CPUs[i].Node = s.CPUs[i].Core % 24 / 8
	}
	s.Nodes, s.Distances = nil, numa.Distances{}
	m, err := machine.New(s)
	if err != nil {
		t.Fatal(err)
	}
	for n := range m.CPUs().Len() {
		free := m.CPUs().Minus(set("0,13,30"))
		got, err := newTable(m).packed(free, n, manner{})
		if fits := n <= free.Len(); fits != (err == nil) || fits && (got.Len() != n || !got.IsSubsetOf(free)) {
			t.Errorf("%d: got %s, %v", n, got, err)
		}
	}
}

func TestSubsets(t *testing.T) {
	t.Parallel()
	var got []string
	subsets(4, 2, func(s []int) bool {
		got = append(got, fmt.Sprint(s))
		return len(got) < 5
	})
	want := []string{"[0 1]", "[0 2]", "[0 3]", "[1 2]", "[1 3]"}
	if !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	subsets(2, 3, func([]int) bool { t.Error("a subset larger than its set"); return true })
}
