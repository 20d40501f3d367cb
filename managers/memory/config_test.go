package memory

import (
	"errors"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/ledger/ledgertest"
	"github.com/berthd/berth/managers/machine/machinetest"
	"github.com/berthd/berth/managers/workload"
)

func reserve(node int, resource string, bytes uint64) Reservation {
	return Reservation{Node: node, Resource: workload.Resource(resource), Bytes: bytes}
}

func memoryOnly(bytes uint64) map[workload.Resource]uint64 {
	return map[workload.Resource]uint64{workload.Memory: bytes, workload.CPU: 4000}
}

func TestNew(t *testing.T) {
	t.Parallel()
	topo := nodesOf(32*gi, 32*gi)
	for _, row := range []struct {
		name string
		cfg  Config
		// want are pieces of the errors, none if there is no error.
		want []string
	}{
		{"nothing at all", Config{}, nil},
		{"none needs no reservation", Config{Policy: PolicyNone, SystemReserved: memoryOnly(gi)}, nil},
		{"unknown policy", Config{Policy: "static"}, []string{"memoryManagerPolicy", `"static"`, "None or Static"}},
		{"policy of another system", Config{Policy: "BestEffort"}, []string{"memoryManagerPolicy", "Windows"}},
		{
			"equal sums, divided freely",
			Config{
				Policy: PolicyStatic, KubeReserved: memoryOnly(gi), SystemReserved: memoryOnly(gi), HardEviction: memoryOnly(100 * mi),
				Reserved: []Reservation{reserve(0, "memory", 1148*mi), reserve(1, "memory", 1000*mi)},
			},
			nil,
		},
		{
			"eviction threshold forgotten",
			Config{
				Policy: PolicyStatic, KubeReserved: memoryOnly(gi), SystemReserved: memoryOnly(gi), HardEviction: memoryOnly(100 * mi),
				Reserved: []Reservation{reserve(0, "memory", gi), reserve(1, "memory", gi)},
			},
			[]string{"reservedMemory", "node 0: 1Gi + node 1: 1Gi = 2Gi",
				"systemReserved: 1Gi + kubeReserved: 1Gi + evictionHard: 100Mi = 2148Mi"},
		},
		{
			"nothing by node",
			Config{Policy: PolicyStatic, SystemReserved: memoryOnly(gi)},
			[]string{"nothing = 0", "systemReserved: 1Gi = 1Gi"},
		},
		{"nothing reserved", Config{Policy: PolicyStatic}, []string{"needs memory to be reserved"}},
		{"nothing reserved, and allowed", Config{Policy: PolicyStatic, AllowUnreserved: true}, nil},
		{
			"huge pages",
			Config{
				Policy: PolicyStatic, SystemReserved: memoryOnly(gi),
				Reserved: []Reservation{reserve(0, "memory", gi), reserve(0, "hugepages-2Mi", 10*mi)},
			},
			[]string{"hugepages-2Mi", "node 0: 10Mi = 10Mi", "nothing = 0"},
		},
		{
			"huge pages, equal",
			Config{
				Policy:         PolicyStatic,
				SystemReserved: map[workload.Resource]uint64{workload.Memory: gi, "hugepages-2Mi": 10 * mi},
				Reserved:       []Reservation{reserve(0, "memory", gi), reserve(0, "hugepages-2Mi", 10*mi)},
			},
			nil,
		},
		{
			"no such node",
			Config{Policy: PolicyStatic, SystemReserved: memoryOnly(gi), Reserved: []Reservation{reserve(2, "memory", gi)}},
			[]string{"reservedMemory[0]", "NUMA node 2", "nodes 0-1"},
		},
		{
			"entries that say nothing, under any policy",
			Config{Reserved: []Reservation{
				reserve(0, "cpu", 1), reserve(0, "memory", 0), reserve(1, "memory", 1), reserve(1, "memory", 2),
			}},
			[]string{
				`reservedMemory[0]: "cpu"`, "reservedMemory[1]: the reservation of memory on NUMA node 0 may not be zero",
				"reservedMemory[3]: memory of NUMA node 1 is reserved twice",
			},
		},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			_, err := New(row.cfg, topo)
			if row.want == nil {
				if err != nil {
					t.Fatal(err)
				}
				return
			}
			var invalid *errdefs.Error
			if !errors.As(err, &invalid) || invalid.Class != errdefs.Invalid {
				t.Fatalf("got %v, want an error of class invalid", err)
			}
			var text strings.Builder
			for _, f := range invalid.Fields {
				text.WriteString(f.String() + "\n")
			}
			for _, piece := range row.want {
				if !strings.Contains(text.String(), piece) {
					t.Errorf("%q is not in\n%s", piece, text.String())
				}
			}
		})
	}
}

// TestInitialState is the worked example of two nodes with huge pages of two
// sizes, of which one is on one node only.
func TestInitialState(t *testing.T) {
	t.Parallel()
	topo := machinetest.Build("2s4c", machinetest.Memory(0, 16*gi), machinetest.Memory(1, 16*gi),
		machinetest.HugePages(0, gi/ki, 2), machinetest.HugePages(1, gi/ki, 2), machinetest.HugePages(1, 2*mi/ki, 3000))
	n := newNode(t, topo, func(c *Config) {
		c.Reserved = []Reservation{reserve(0, "memory", gi), reserve(1, "memory", 100*mi)}
		c.SystemReserved = memoryOnly(gi + 100*mi)
	})
	state := n.State(n.View())
	want := []NodeState{
		{Node: 0, Group: 1, Resources: []ResourceState{
			{Resource: "hugepages-1Gi", Total: 2 * gi, Allocatable: 2 * gi, Free: 2 * gi},
			{Resource: "memory", Total: 16 * gi, SystemReserved: gi, Allocatable: 13312 * mi, Free: 13312 * mi},
		}},
		{Node: 1, Group: 2, Resources: []ResourceState{
			{Resource: "hugepages-1Gi", Total: 2 * gi, Allocatable: 2 * gi, Free: 2 * gi},
			{Resource: "hugepages-2Mi", Total: 6000 * mi, Allocatable: 6000 * mi, Free: 6000 * mi},
			{Resource: "memory", Total: 16 * gi, SystemReserved: 100 * mi, Allocatable: 8236 * mi, Free: 8236 * mi},
		}},
	}
	wantState(t, state, want)
	if w := n.Warnings(); len(w) > 0 {
		t.Errorf("warnings on a sane machine: %q", w)
	}
}

func wantState(t *testing.T, got, want []NodeState) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("got %+v, want %+v", got, want)
	}
	for i := range want {
		g, w := got[i], want[i]
		if g.Node != w.Node || g.Blocks != w.Blocks || g.Group != w.Group || len(g.Resources) != len(w.Resources) {
			t.Errorf("got %+v, want %+v", g, w)
			continue
		}
		for j := range w.Resources {
			if g.Resources[j] != w.Resources[j] {
				t.Errorf("node %d: got %+v, want %+v", w.Node, g.Resources[j], w.Resources[j])
			}
		}
	}
}

// TestReservedMoreThanThereIs: where the kubelet's unsigned amounts wrap around
// and a node takes everything, it has nothing to give.
func TestReservedMoreThanThereIs(t *testing.T) {
	t.Parallel()
	n := newNode(t, nodesOf(512*mi, 8*gi), func(c *Config) {
		c.Reserved, c.SystemReserved = []Reservation{reserve(0, "memory", gi)}, memoryOnly(gi)
	})
	state := n.State(n.View())
	if got := state[0].Resources[0]; got.Allocatable != 0 || got.Free != 0 || got.Total != 512*mi || got.SystemReserved != gi {
		t.Errorf("node 0: %+v", got)
	}
	if w := n.Warnings(); len(w) != 1 || !strings.Contains(w[0], "NUMA node 0") || !strings.Contains(w[0], "512Mi") {
		t.Errorf("warnings %q do not name node and amount", w)
	}
	wantText(t, "hints", n.hintsFor(pod("a", "c=1Gi"), 0), "memory: 1p 0-1")
	if err := n.admit(pod("a", "c=1Gi"), on(0)); err != nil {
		t.Fatal(err)
	}
	wantText(t, "nodes", n.placed("a", "c"), "0-1")
	if err := n.admit(pod("b", "c=1Ti"), anywhere); err == nil {
		t.Error("a pod was admitted that is larger than the machine")
	}
}

func TestPolicyNone(t *testing.T) {
	t.Parallel()
	topo := nodesOf(gi, gi)
	m, err := New(Config{}, topo)
	if err != nil {
		t.Fatal(err)
	}
	n := &testNode{Manager: m, t: t}
	n.Ledger = ledgertest.New(t, ledger.Rules{Machine: topo})
	if err := n.admit(pod("a", "c=5Gi"), on(0)); err != nil {
		t.Error(err)
	}
	wantText(t, "nodes", n.placed("a", "c"), "nowhere")
	wantText(t, "hints", n.hintsFor(pod("b", "c=5Gi"), 0), "")
	wantText(t, "policy", n.Describe().Policy, PolicyNone)
	if s := n.State(n.View()); len(s) > 0 {
		t.Errorf("state %v", s)
	}
}

// TestStateOfThePast: what nodes had is that of the view's rules: with those of today the same, with those of then what was there then.
func TestStateOfThePast(t *testing.T) {
	t.Parallel()
	topo := machinetest.Build("1s2n1c", machinetest.Memory(0, 16*gi), machinetest.Memory(1, 16*gi), machinetest.HugePages(1, 2*mi/ki, 512))
	n := newNode(t, topo, func(c *Config) {
		c.Reserved = []Reservation{reserve(0, "memory", gi)}
		c.SystemReserved = memoryOnly(gi)
	})
	bare := n.State(n.View())
	rules := ledger.Rules{Machine: topo, Memory: n.Baseline()}
	if now := n.State(ledgertest.New(t, rules).View()); !reflect.DeepEqual(now, bare) {
		t.Errorf("with the rules of today:\n%+v\nwithout:\n%+v", now, bare)
	}
	rules.Memory = slices.Clone(rules.Memory)
	for i := range rules.Memory {
		if r := &rules.Memory[i]; r.Node == 1 && r.Resource == "memory" {
			r.Total, r.Allocatable = 8*gi, 6*gi // 1 GiB of the rest is in huge pages
		}
	}
	then := n.State(ledgertest.New(t, rules).View())
	if !reflect.DeepEqual(then[0], bare[0]) {
		t.Errorf("node 0: %+v, was %+v", then[0], bare[0])
	}
	want := ResourceState{Resource: "memory", Total: 8 * gi, SystemReserved: gi, Allocatable: 6 * gi, Free: 6 * gi}
	if !slices.Contains(then[1].Resources, want) {
		t.Errorf("node 1: %+v, want %+v", then[1].Resources, want)
	}
	// More huge pages then: what is reserved is the same, because they are not.
	rules.Memory = slices.Clone(n.Baseline())
	for i := range rules.Memory {
		switch r := &rules.Memory[i]; {
		case r.Node == 1 && r.Resource == "memory":
			r.Allocatable = 13 * gi
		case r.Node == 1:
			r.Total, r.Allocatable = 3*gi, 3*gi
		}
	}
	want = ResourceState{Resource: "memory", Total: 16 * gi, Allocatable: 13 * gi, Free: 13 * gi}
	if then := n.State(ledgertest.New(t, rules).View()); !slices.Contains(then[1].Resources, want) {
		t.Errorf("node 1 with more huge pages: %+v, want %+v", then[1].Resources, want)
	}
	if again := n.State(n.View()); !reflect.DeepEqual(again, bare) {
		t.Errorf("afterwards: %+v", again)
	}
}
