package topology

import (
	"strings"
	"testing"

	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/hint"
	"github.com/berthd/berth/managers/numa"
)

func TestNew(t *testing.T) {
	t.Parallel()
	two, err := numa.FromLists([]int{0, 1}, map[int][]int{0: {10, 20}, 1: {20, 10}})
	if err != nil {
		t.Fatal(err)
	}
	closest := map[string]string{OptionPreferClosest: "true"}
	nine, all := numa.Mask(1<<9-1), ^numa.Mask(0)
	for _, row := range []struct {
		name   string
		config Config
		nodes  numa.Mask
		want   string // beginning of the error
	}{
		{"none looks at nothing", Config{Policy: None, Scope: "x", Options: map[string]string{"x": "y"}, MaxNodes: 1}, nine, ""},
		{"distances", Config{Policy: BestEffort, Scope: hint.PodScope, Options: closest}, numa.Of(0, 1), ""},
		{"no distances", Config{Policy: BestEffort, Scope: hint.PodScope, Options: closest}, numa.Of(0, 1, 2),
			"cannot discover NUMA topology: error getting NUMA distances from cadvisor"},
		{"64 nodes", Config{Policy: Restricted, Scope: hint.PodScope}, all, ""},
		{"as the kubelet", Config{Policy: Restricted, Scope: hint.PodScope, MaxNodes: ReferenceMaxNodes}, nine,
			"unsupported on machines with more than 8 NUMA Nodes"},
		{"as the kubelet, raised", Config{Policy: Restricted, Scope: hint.PodScope, MaxNodes: ReferenceMaxNodes,
			Options: map[string]string{OptionMaxNodes: "100"}}, nine, ""},
		{"raised too little", Config{Policy: Restricted, Scope: hint.PodScope, Options: map[string]string{OptionMaxNodes: "8"}}, nine,
			"unsupported on machines with more than 8 NUMA Nodes"},
		{"too small a limit", Config{Policy: Restricted, Scope: hint.PodScope, Options: map[string]string{OptionMaxNodes: "7"}}, 1,
			`the minimum value of "max-allowable-numa-nodes" should not be less than 8`},
		{"no number", Config{Policy: Restricted, Scope: hint.PodScope, Options: map[string]string{OptionMaxNodes: "x"}}, 1,
			`unable to convert policy option to integer "max-allowable-numa-nodes": strconv.Atoi: parsing "x"`},
		{"no boolean", Config{Policy: Restricted, Scope: hint.PodScope, Options: map[string]string{OptionPreferClosest: "maybe"}}, 1,
			`bad value for option "prefer-closest-numa-nodes": strconv.ParseBool: parsing "maybe"`},
		{"unknown option", Config{Policy: "x", Scope: "x", Options: map[string]string{"x": "y"}}, 1,
			`unknown Topology Manager Policy option: "x"`},
		{"two bad options, the first by name", Config{Policy: "x", Scope: "x",
			Options: map[string]string{OptionPreferClosest: "maybe", OptionMaxNodes: "x", "zzz": "z"}}, 1,
			`unable to convert policy option to integer "max-allowable-numa-nodes"`},
		{"unknown policy", Config{Policy: "x", Scope: "x"}, 1, `unknown policy: "x"`},
		{"unknown scope", Config{Policy: BestEffort, Scope: "x"}, 1, `unknown scope: "x"`},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			m, err := New(row.config, row.nodes, two)
			if row.want == "" {
				if err != nil || m.Policy() != row.config.Policy {
					t.Errorf("got %v, %v", m, err)
				}
				return
			}
			if err == nil || !strings.HasPrefix(err.Error(), row.want) || errdefs.ClassOf(err) != errdefs.Invalid {
				t.Errorf("got %v, want %s", err, row.want)
			}
		})
	}
}

// The kernel's list of node 0 on a machine with nodes 0, 4 and 8 has the
// distance to node 8 at position 2.
func TestDistancesOfSparseNodes(t *testing.T) {
	t.Parallel()
	distances, err := numa.FromLists([]int{0, 4, 8}, map[int][]int{0: {10, 30, 20}, 4: {30, 10, 40}, 8: {20, 40, 10}})
	if err != nil {
		t.Fatal(err)
	}
	m, err := New(Config{
		Policy:  Restricted,
		Scope:   hint.ContainerScope,
		Options: map[string]string{OptionPreferClosest: "true"},
	}, numa.Of(0, 4, 8), distances)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := m.Merge([]hint.Reply{reply(p(0, 4), p(0, 8), p(4, 8))}).Affinity, p(0, 8); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
}
