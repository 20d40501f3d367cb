package cpu

import (
	"testing"

	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/hint"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/ledger/check"
	"github.com/berthd/berth/managers/ledger/ledgertest"
	"github.com/berthd/berth/managers/machine/machinetest"
	"github.com/berthd/berth/managers/numa"
)

// TestReplace: node 0 has CPUs 0-3 and 8-11, node 1 has 4-7 and 12-15; cores are {0,8}, {1,9} and so on. CPU 0 is
// reserved. A container keeps the CPUs that it has, and gets near ones for those that are offline.
func TestReplace(t *testing.T) {
	t.Parallel()
	whole := map[string]string{FullPCPUsOnly: "true"}
	for name, tt := range map[string]struct {
		options            map[string]string
		have, others, lost string
		admitted           string
		nodes              string // of the affinity; empty for any
		want, then         string
		reason             errdefs.Reason
		unchanged          bool
	}{
		"nothing is lost":                    {have: "1,9", lost: "5", unchanged: true},
		"one of two":                         {have: "1,9", lost: "9", nodes: "0", want: "1,8", then: "1"},
		"the other thread of its core":       {have: "1-2", lost: "2", nodes: "0", want: "1,9", then: "1"},
		"all":                                {have: "1,9", lost: "1,9", nodes: "0", want: "2,10"},
		"one that a resize has added":        {have: "1,9-10", admitted: "1,9", lost: "10", nodes: "0", want: "1-2,9", then: "1,9"},
		"its node is full":                   {have: "1-3,9-11", lost: "8,11", nodes: "0", reason: errdefs.Infeasible},
		"its node is busy":                   {have: "1,9", others: "2-3,8,10-11", lost: "9", nodes: "0", reason: errdefs.ResizeDeferred},
		"another node, without a preference": {have: "1,9", others: "2-3,8,10-11", lost: "9", want: "1,4", then: "1"},
		"a core for half a one":              {options: whole, have: "1,9", lost: "9", nodes: "0", want: "2,10"},
		"cores stay whole":                   {options: whole, have: "1-2,9-10", lost: "10", nodes: "0", want: "1,3,9,11", then: "1,9"},
		"two halves":                         {options: whole, have: "1-2,9-10", lost: "9-10", nodes: "0", want: "1-3,11", then: "1-2"},
		"no whole core is free": {options: whole, have: "1,9", others: "2-3", lost: "9", nodes: "0",
			reason: errdefs.ResizeDeferred},
		"not in the machine": {have: "1,40", lost: "", nodes: "0", want: "1,9", then: "1"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			topo, err := machinetest.Build("2s4c2t").Without(set(tt.lost))
			if err != nil {
				t.Fatal(err)
			}
			m, err := New(Config{Policy: PolicyStatic, Options: tt.options, ReservedCPUs: set("0")}, topo)
			if err != nil {
				t.Fatal(err)
			}
			claim := ledgertest.Exclusive("c", tt.have)
			claim.CPUs.Admitted = set(tt.admitted)
			claim.Affinity = &ledger.Affinity{Any: true}
			if tt.nodes != "" {
				nodes, err := numa.Parse(tt.nodes)
				if err != nil {
					t.Fatal(err)
				}
				claim.Affinity = &ledger.Affinity{Nodes: nodes}
			}
			d := ledger.NewDraft(ledgertest.New(t, ledger.Rules{Machine: topo, ReservedCPUs: set("0")}).View())
			pod := ledgertest.With(ledgertest.Pod("a", "c"), claim)
			d.PutPod(pod)
			if tt.others != "" {
				d.PutPod(ledgertest.With(ledgertest.Pod("b", "c"), ledgertest.Exclusive("c", tt.others)))
			}
			claims, err := m.Replace(t.Context(), d.View(), pod, hint.Widening{})
			if reason, _ := errdefs.ReasonOf(err); reason != tt.reason {
				t.Fatalf("got %v, want reason %q", err, tt.reason)
			}
			switch {
			case tt.reason != "":
			case tt.unchanged:
				if len(claims) > 0 || err != nil {
					t.Errorf("got %v, %v", claims, err)
				}
			case err != nil || len(claims) != 1 || claims[0].CPUs.Set.String() != tt.want || claims[0].CPUs.Admitted.String() != tt.then:
				t.Errorf("got %+v, %v, want %s with %s", claims, err, tt.want, tt.then)
			default:
				d.AddClaims("a", claims...)
				for _, f := range check.View(d.View()) {
					t.Error(f)
				}
			}
		})
	}
}

// CPUs of a pod as a whole are not replaced in place, nor any if containers on shared CPUs would have none.
func TestReplaceRefused(t *testing.T) {
	t.Parallel()
	topo, err := machinetest.Build("1s4c1t").Without(cpuset.Of(2))
	if err != nil {
		t.Fatal(err)
	}
	m, err := New(Config{Policy: PolicyStatic, ReservedCPUs: set("0"), Options: map[string]string{StrictReservation: "true"}}, topo)
	if err != nil {
		t.Fatal(err)
	}
	view := func(pods ...*ledger.Pod) *ledger.View {
		d := ledger.NewDraft(ledgertest.New(t, ledger.Rules{Machine: topo, ReservedCPUs: set("0"), StrictReservation: true}).View())
		for _, p := range pods {
			d.PutPod(p)
		}
		return d.View()
	}
	own := ledgertest.With(ledgertest.Pod("a", "c"), ledgertest.Exclusive("c", "1-2"))
	if claims, err := m.Replace(t.Context(), view(own), own, hint.Widening{}); err != nil || len(claims) != 1 ||
		claims[0].CPUs.Set != set("1,3") {
		t.Errorf("got %v, %v", claims, err)
	}
	if _, err := m.Replace(t.Context(), view(own, ledgertest.Pod("s", "c")), own,
		hint.Widening{}); errdefs.ClassOf(err) != errdefs.Refused {
		t.Errorf("the last shared CPU: %v", err)
	}
	pod := ledgertest.Exclusive("", "1-2")
	pod.CPUs.Use = ledger.CPUPod
	whole := ledgertest.With(ledgertest.Pod("a", "c"), pod)
	if _, err := m.Replace(t.Context(), view(whole), whole, hint.Widening{}); errdefs.ClassOf(err) != errdefs.Refused {
		t.Errorf("CPUs of a pod as a whole: %v", err)
	}
}
