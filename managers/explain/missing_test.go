package explain

import (
	"fmt"
	"slices"
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
// they lack; of equal ones the first; those last that could never do.
func TestNearest(t *testing.T) {
	t.Parallel()
	lack := func(nodes int, free uint64) []ledger.Shortage {
		return []ledger.Shortage{{Nodes: fmt.Sprint(nodes), Need: 10, Free: free, Held: 10}}
	}
	both := append(lack(5, 9), ledger.Shortage{Nodes: "5", Resource: "memory", Need: 4, Free: 3, Held: 1})
	sets := [][]ledger.Shortage{lack(0, 1), lack(1, 8), lack(2, 5), lack(3, 5), lack(4, 5), both, lack(6, 0)}
	var got []string
	for _, s := range nearest(sets) {
		got = append(got, s.Nodes+s.Resource)
	}
	if want := "[1 5 5memory 2 3]"; fmt.Sprint(got) != want {
		t.Errorf("got %v, want %s", got, want)
	}
	never := lack(7, 9)
	never[0].Structural = true
	got = nil
	for _, s := range nearest([][]ledger.Shortage{never, lack(0, 1), lack(8, 3)}) {
		got = append(got, s.Nodes)
	}
	if fmt.Sprint(got) != "[8 0 7]" {
		t.Errorf("of a set that can never do: %v", got)
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

// TestSay: a trace has the text of each shortage, with the names of the holders; without any, why the topology policy refused, but
// not what was merged before another refusal.
func TestSay(t *testing.T) {
	t.Parallel()
	short := []ledger.Shortage{
		{Resource: "cpu", Nodes: "1", Need: 2, Free: 1, Held: 2, Holders: []ledger.Owner{{Pod: "old", Container: "c"}, {Pod: "gone"}}},
		{Resource: "a.com/x", Need: 1},
	}
	merged := ledger.Step{Kind: ledger.StepMerged, Text: "no nodes are preferred for both cpu and a.com/x; policy restricted refuses"}
	for name, row := range map[string]struct {
		steps []ledger.Step
		want  []string
	}{
		"shortages": {[]ledger.Step{merged, {Kind: ledger.StepRefused, Shortages: short}},
			[]string{"cpu on NUMA node 1: 2 needed, 1 free, 2 held by default/pod-old/c, gone", "a.com/x: 1 needed, 0 free"}},
		"the policy":   {[]ledger.Step{merged, {Kind: ledger.StepRefused}}, []string{merged.Text}},
		"a provider":   {[]ledger.Step{merged, {Kind: ledger.StepRefused, Provider: "cpu"}}, nil},
		"the cgroup":   {[]ledger.Step{merged, {Kind: ledger.StepPlanned}, {Kind: ledger.StepRefused}}, nil},
		"nothing else": {[]ledger.Step{{Kind: ledger.StepRefused}}, nil},
	} {
		trace := &ledger.Trace{Steps: row.steps}
		if Say(refusal(t).Base, trace); !slices.Equal(trace.Missing, row.want) {
			t.Errorf("%s: %q, want %q", name, trace.Missing, row.want)
		}
	}
}

// TestMissingIsSaidOnce: the node as a whole is reported only where its usage shows something else than that of the NUMA nodes.
func TestMissingIsSaidOnce(t *testing.T) {
	t.Parallel()
	short := func(resource, nodes string, need, free uint64) ledger.Shortage {
		return ledger.Shortage{Resource: resource, Nodes: nodes, Need: need, Free: free}
	}
	r := refusal(t)
	r.Bus = shortages{r.Planned.Machine().NodeMask().String(): {
		short("cpu", "0-3", 4, 2), short("memory", "0-3", 9, 8),
		short("cpu", "", 4, 2), short("memory", "", 9, 7), short("example.com/gpu", "", 2, 1),
	}}
	var got []string
	for _, s := range r.Missing() {
		got = append(got, s.Resource+"@"+s.Nodes)
	}
	if want := "[cpu@0-3 memory@0-3 memory@ example.com/gpu@]"; fmt.Sprint(got) != want {
		t.Errorf("got %v, want %s", got, want)
	}
}
