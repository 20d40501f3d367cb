package cpu

import (
	"context"
	"slices"
	"strconv"
	"testing"

	"pgregory.net/rapid"

	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/hint"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/ledger/ledgertest"
	"github.com/berthd/berth/managers/machine/machinetest"
	"github.com/berthd/berth/managers/workload"
)

// with requests numbers of CPUs for the containers a, b and so on of pod p.
func with(cpus ...int) *workload.Pod {
	p := &workload.Pod{UID: "p", QoS: workload.Guaranteed}
	for i, n := range cpus {
		q := workload.Quantities{workload.CPU: int64(n) * 1000, workload.Memory: 1}
		p.Containers = append(p.Containers, workload.Container{Name: string(rune('a' + i)), Requests: q, Limits: q})
	}
	return p
}

// TestResizeWithoutSomeCPUs: what a container keeps and gets if some of its CPUs are offline, or not
// in the machine any more. The cores are {0,8}, {1,9} and so on.
func TestResizeWithoutSomeCPUs(t *testing.T) {
	t.Parallel()
	topo := machinetest.Build("2s4c2t")
	whole := map[string]string{FullPCPUsOnly: "true"}
	for name, tt := range map[string]struct {
		options                 map[string]string
		have, admitted, offline string
		n                       int
		want, then              string
	}{
		"enough are online": {have: "1-3,9", offline: "3", n: 3, want: "1-2,9"},
		"fewer are online":  {have: "1,4,9", offline: "1,9", n: 2, want: "1,4"},
		"all are offline":   {have: "1,4,9", offline: "1,4,9", n: 2, want: "1,4"},
		"of the admission, as far as they go": {have: "1-3,9-11", admitted: "2,10", offline: "1,2,9,10", n: 3, want: "2-3,11",
			then: "2"},
		"a core whose other thread is offline": {options: whole, have: "1-3,9-11", admitted: "1-2,9-10", offline: "10", n: 4,
			want: "1-3,9", then: "1-2,9"},
		"all cores have a thread offline":        {options: whole, have: "1-3,9-11", offline: "10-11", n: 4, want: "1-3,9"},
		"not in the machine":                     {have: "1-3,30-33", n: 6, want: "1-3,30-32"},
		"not in the machine, fewer than it has":  {have: "1-3,30-33", n: 2, want: "1,2"},
		"not in the machine, or offline":         {have: "1-3,30-33", offline: "2", n: 3, want: "1-3"},
		"not in the machine, more":               {have: "1-3,30-33", n: 8, want: "1-4,8-11", then: "1-3"},
		"of the admission, but it has them lost": {have: "1-3,9-11", admitted: "4-7", n: 4, want: "1-2,9-10"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			topo, err := topo.Without(set(tt.offline))
			if err != nil {
				t.Fatal(err)
			}
			m, err := New(Config{Policy: PolicyStatic, Options: tt.options, ReservedCPUs: set("0"),
				Features: Features{AlphaOptions: true, BetaOptions: true, ResizeExclusiveCPUs: true}}, topo)
			if err != nil {
				t.Fatal(err)
			}
			claim := ledgertest.Exclusive("a", tt.have)
			claim.CPUs.Admitted, claim.Affinity = set(tt.admitted), &ledger.Affinity{Any: true}
			d := ledger.NewDraft(ledgertest.New(t, ledger.Rules{Machine: topo, ReservedCPUs: set("0")}).View())
			d.PutPod(ledgertest.With(ledgertest.Pod("p", "a"), claim))
			claims, err := m.Resize(t.Context(), d.View(), with(set(tt.have).Len()), with(tt.n), hint.Widening{})
			if err != nil {
				t.Fatal(err)
			}
			if len(claims) != 1 || claims[0].CPUs.Set != set(tt.want) || claims[0].CPUs.Admitted != set(tt.then) {
				t.Errorf("gets %s with %s, want %s with %s", claims[0].CPUs.Set, claims[0].CPUs.Admitted, tt.want, tt.then)
			}
		})
	}
}

// TestResizeAndTheSharedPool: a resize is deferred if it takes the last shared CPU, and only then.
func TestResizeAndTheSharedPool(t *testing.T) {
	t.Parallel()
	topo := machinetest.Build("1s8c1t")
	for name, tt := range map[string]struct {
		a, b, offline string
		to            *workload.Pod
		reason        errdefs.Reason
	}{
		"less, of an empty pool":                      {"1-3", "4-7", "", with(2, 4), ""},
		"less, of a pool without CPUs online":         {"1-3", "4-6", "7", with(2, 3), ""},
		"one container gives what the other one gets": {"1-3", "4-6", "", with(2, 4), ""},
		"the last one":                                {"1-3", "4-6", "", with(3, 4), errdefs.ResizeDeferred},
		"the last one but for one offline":            {"1-3", "4-5", "7", with(3, 3), errdefs.ResizeDeferred},
	} {
		topo, err := topo.Without(set(tt.offline))
		if err != nil {
			t.Fatal(err)
		}
		m, err := New(Config{Policy: PolicyStatic, ReservedCPUs: set("0"), Options: map[string]string{"strict-cpu-reservation": "true"},
			Features: Features{AlphaOptions: true, BetaOptions: true, ResizeExclusiveCPUs: true}}, topo)
		if err != nil {
			t.Fatal(err)
		}
		d := ledger.NewDraft(ledgertest.New(t, ledger.Rules{Machine: topo, ReservedCPUs: set("0"), StrictReservation: true}).View())
		a, b := ledgertest.Exclusive("a", tt.a), ledgertest.Exclusive("b", tt.b)
		a.Affinity, b.Affinity = &ledger.Affinity{Any: true}, &ledger.Affinity{Any: true}
		d.PutPod(ledgertest.With(ledgertest.Pod("p", "a", "b"), a, b))
		d.PutPod(ledgertest.Pod("shares", "c"))
		_, err = m.Resize(t.Context(), d.View(), with(set(tt.a).Len(), set(tt.b).Len()), tt.to, hint.Widening{})
		if reason, _ := errdefs.ReasonOf(err); reason != tt.reason {
			t.Errorf("%s: %v, want %q", name, err, tt.reason)
		}
	}
}

// TestGrowingUnderTheTopologyPolicy: a container without a preference for nodes gets CPUs of others
// only if the topology policy allows all nodes. Node 0 has CPUs 0-3 and 8-11.
func TestGrowingUnderTheTopologyPolicy(t *testing.T) {
	t.Parallel()
	topo := machinetest.Build("2s4c2t")
	m, err := New(Config{Policy: PolicyStatic, ReservedCPUs: set("0"), Features: Features{ResizeExclusiveCPUs: true}}, topo)
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		w      hint.Widening
		reason errdefs.Reason
	}{{hint.Widening{}, ""}, {hint.Widening{OneNode: true}, errdefs.Infeasible}, {hint.Widening{Preferred: true}, errdefs.Infeasible}} {
		d := ledger.NewDraft(ledgertest.New(t, ledger.Rules{Machine: topo, ReservedCPUs: set("0")}).View())
		d.PutPod(ledgertest.With(ledgertest.Pod("p", "a"), ledgertest.Exclusive("a", "1-3")))
		_, err := m.Resize(t.Context(), d.View(), with(3), with(9), tt.w)
		if reason, _ := errdefs.ReasonOf(err); reason != tt.reason {
			t.Errorf("%+v: %v, want %q", tt.w, err, tt.reason)
		}
	}
}

// TestShrinkKeepsWhatRuns: a container that shrinks keeps CPUs that it has, as many as it requests, and
// of those online as many as it can. With full-pcpus-only it keeps whole cores first, and tears one of them only
// if others have a single CPU online. The cores are {0,8}, {1,9} and so on.
func TestShrinkKeepsWhatRuns(t *testing.T) {
	t.Parallel()
	present := machinetest.Build("2s4c2t")
	rapid.Check(t, func(t *rapid.T) {
		whole := rapid.Bool().Draw(t, "whole cores")
		subset := func(label string, of cpuset.Set) (out cpuset.Set) {
			for id := range of.All() {
				if rapid.Bool().Draw(t, label) {
					out = out.Union(cpuset.Of(id))
				}
			}
			return out
		}
		all := present.CPUs().Minus(cpuset.Of(0, 8))
		have := subset("has", all).Union(subset("gone", cpuset.Of(20, 21, 22)))
		step := 1
		if whole {
			step = 2
		}
		if have.Len() <= step {
			return
		}
		n := step * rapid.IntRange(1, (have.Len()-1)/step).Draw(t, "n")
		offline := subset("offline", all)
		topo, err := present.Without(offline)
		if err != nil {
			t.Fatal(err)
		}
		options := map[string]string{FullPCPUsOnly: strconv.FormatBool(whole)}
		m, err := New(Config{Policy: PolicyStatic, Options: options, ReservedCPUs: set("0,8"),
			Features: Features{BetaOptions: true, ResizeExclusiveCPUs: true}}, topo)
		if err != nil {
			t.Fatal(err)
		}
		claim := ledgertest.Exclusive("a", have.String())
		claim.CPUs.Admitted = subset("admitted", have)
		d := ledger.NewDraft(ledgertest.New(t, ledger.Rules{Machine: topo, ReservedCPUs: set("0,8")}).View())
		d.PutPod(ledgertest.With(ledgertest.Pod("p", "a"), claim))
		claims, err := m.Resize(context.Background(), d.View(), with(have.Len()), with(n), hint.Widening{})
		if err != nil {
			t.Fatal(err)
		}
		keep, admitted := claims[0].CPUs.Set, claims[0].CPUs.Admitted
		if keep.Len() != n || !keep.IsSubsetOf(have) || !admitted.IsSubsetOf(keep) {
			t.Fatalf("of %s it keeps %s with %s, want %d", have, keep, admitted, n)
		}
		online := have.Intersect(topo.CPUs())
		runs := keep.Intersect(online)
		if runs.Len() != min(n, online.Len()) {
			t.Errorf("of %s, of which %s are offline, it keeps %s", have, offline, keep)
		}
		if !whole {
			return
		}
		// Cores with all their CPUs online: threads that are offline are not part of them.
		cores := m.wholeCores(online)
		if loose := runs.Minus(cores); !loose.IsEmpty() && !cores.IsSubsetOf(keep) {
			t.Errorf("of the whole cores %s of %s it keeps %s, and also %s", cores, have, runs.Intersect(cores), loose)
		}
		torn := runs.Intersect(cores).Minus(m.wholeCores(runs))
		pairs := !slices.ContainsFunc(cores.IDs(), func(id int) bool { return offline.Contains((id + 8) % 16) })
		if torn.Len() > 1 || pairs && !torn.IsEmpty() {
			t.Errorf("of the whole cores %s of %s it keeps %s, which tears those of %s", cores, have, runs, torn)
		}
	})
}
