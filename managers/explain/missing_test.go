package explain

import (
	"fmt"
	"strings"
	"testing"

	"github.com/berthd/berth/managers/hint"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/numa"
	"github.com/berthd/berth/managers/topology"
	"github.com/berthd/berth/managers/workload"
)

// TestHopeless: what is withheld, as unhealthy devices are, may come back, so nodes
// that have enough with it are not hopeless.
func TestHopeless(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		free, held, withheld uint64
		want                 bool
	}{
		{1, 1, 1, true},
		{1, 1, 3, false},
		{1, 3, 1, false},
		{3, 1, 1, false},
		{0, 0, 5, false},
		{2, 2, 0, true},
	} {
		s := ledger.Shortage{Need: 5, Free: row.free, Held: row.held, Withheld: row.withheld}
		if got := hopeless(s); got != row.want {
			t.Errorf("%+v: %t", s, got)
		}
	}
}

// TestNearest: of many node sets the four that lack least are shown, with all that
// they lack; of equal ones the first.
func TestNearest(t *testing.T) {
	t.Parallel()
	lack := func(nodes int, free uint64) []ledger.Shortage {
		return []ledger.Shortage{{Nodes: fmt.Sprint(nodes), Need: 10, Free: free}}
	}
	both := append(lack(5, 9), ledger.Shortage{Nodes: "5", Resource: "memory", Need: 4, Free: 3})
	sets := [][]ledger.Shortage{lack(0, 1), lack(1, 8), lack(2, 5), lack(3, 5), lack(4, 5), both, lack(6, 0)}
	var got []string
	for _, s := range nearest(sets) {
		got = append(got, s.Nodes+s.Resource)
	}
	if want := "[1 5 5memory 2 3]"; fmt.Sprint(got) != want {
		t.Errorf("got %v, want %s", got, want)
	}
	if few := nearest([][]ledger.Shortage{lack(0, 1)}); len(few) != 1 {
		t.Errorf("of one: %v", few)
	}
}

// TestMissingNearExternalDevices: with a device that another program has allocated, only nodes near to it count. That another node
// has enough does not help.
func TestMissingNearExternalDevices(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		nodes numa.Mask
		want  string
	}{{0, ""}, {numa.Of(1), "1"}, {numa.Of(0, 1), ""}, {numa.Of(1, 2), "1 2"}, {numa.Of(63), ""}} {
		r := refusal(t)
		policy, err := topology.New(topology.Config{Policy: topology.SingleNUMANode, Scope: hint.ContainerScope},
			r.Planned.Machine().NodeMask(), r.Planned.Machine().Distances())
		if err != nil {
			t.Fatal(err)
		}
		short := func(nodes string) []ledger.Shortage {
			return []ledger.Shortage{{Resource: "cpu", Nodes: nodes, Need: 1, Held: 1}}
		}
		r.Policy, r.Bus = policy, shortages{"1": short("1"), "2": short("2"), "3": short("3")}
		r.Request.Pod.Containers[0].ExternalDevices = []workload.ExternalDevice{{Resource: "a.com/gpu", ID: "gpu0", Nodes: row.nodes}}
		var got []string
		for _, s := range r.Missing() {
			got = append(got, s.Nodes)
		}
		if strings.Join(got, " ") != row.want {
			t.Errorf("a device near to nodes %s: shortages of nodes %v, want %q", row.nodes, got, row.want)
		}
	}
}
