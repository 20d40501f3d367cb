package cpu

import (
	"testing"

	"github.com/berthd/berth/managers/machine"
)

// crossing has three caches on two nodes of four cores. The middle one has a core
// of either node.
func crossing(t *testing.T) *machine.Topology {
	t.Helper()
	s := machine.Snapshot{Nodes: []machine.Node{{ID: 0}, {ID: 1}}}
	for id, uncore := range []int{0, 0, 0, 1, 1, 2, 2, 2} {
		s.CPUs = append(s.CPUs, machine.CPU{ID: id, Core: id, Node: id / 4, Uncore: uncore, Die: -1, Cluster: -1})
	}
	topo, err := machine.New(s)
	if err != nil {
		t.Fatal(err)
	}
	return topo
}

// A cache on two nodes is in the list of either. The reference takes it for each,
// counts it twice, and is content with CPUs 0 and 3-4 where five are requested.
func TestCrossingUnitsCountOnce(t *testing.T) {
	t.Parallel()
	table := newTable(crossing(t))
	for _, row := range []struct {
		free string
		n    int
		want string
	}{
		{"0-1,3-4,6-7", 5, "0-1,3-4,6"},
		{"0-1,3-4,6-7", 2, "3-4"},
		{"0-1,3-4,6-7", 6, "0-1,3-4,6-7"},
	} {
		got, err := table.packed(set(row.free), row.n, manner{uncores: true})
		wantCPUs(t, row.free, got, err, row.want)
	}
}
