package cpu

import (
	"strings"
	"testing"

	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/hint"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/ledger/check"
	"github.com/berthd/berth/managers/ledger/ledgertest"
	"github.com/berthd/berth/managers/machine/machinetest"
	"github.com/berthd/berth/managers/numa"
	"github.com/berthd/berth/managers/workload"
)

func TestResize(t *testing.T) {
	t.Parallel()
	topo := machinetest.Build("1s8c")
	pod := func(class workload.QoSClass, milli, bytes int64) *workload.Pod {
		q := workload.Quantities{workload.CPU: milli, workload.Memory: bytes}
		return &workload.Pod{UID: "a", QoS: class, Containers: []workload.Container{{Name: "c", Requests: q, Limits: q}}}
	}
	tests := []struct {
		name        string
		policy      string
		holds       bool
		old, wanted *workload.Pod
		infeasible  bool
	}{
		{"guaranteed, pinned", PolicyStatic, true, pod(workload.Guaranteed, 2000, 1), pod(workload.Guaranteed, 3000, 1), true},
		{"guaranteed, shared", PolicyStatic, false, pod(workload.Guaranteed, 500, 1), pod(workload.Guaranteed, 600, 1), true},
		{"memory only", PolicyStatic, true, pod(workload.Guaranteed, 2000, 1), pod(workload.Guaranteed, 2000, 2), false},
		{"burstable", PolicyStatic, false, pod(workload.Burstable, 500, 1), pod(workload.Burstable, 600, 1), false},
		{"no policy", PolicyNone, false, pod(workload.Guaranteed, 2000, 1), pod(workload.Guaranteed, 3000, 1), false},
		{"pinned before the policy went", PolicyNone, true, pod(workload.Guaranteed, 2000, 1), pod(workload.Guaranteed, 3000, 1), true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			m, err := New(Config{Policy: tt.policy, ReservedMilliCPU: 1000}, topo)
			if err != nil {
				t.Fatal(err)
			}
			record := ledgertest.Pod("a", "c")
			if tt.holds {
				record = ledgertest.With(record, ledgertest.Exclusive("c", "1-2"))
			}
			d := ledger.NewDraft(ledgertest.New(t, ledger.Rules{Machine: topo}).View())
			d.PutPod(record)
			_, err = m.Resize(t.Context(), d.View(), tt.old, tt.wanted, hint.Widening{})
			reason, _ := errdefs.ReasonOf(err)
			if (err != nil) != tt.infeasible || tt.infeasible && reason != errdefs.Infeasible {
				t.Errorf("got %v, want infeasible: %t", err, tt.infeasible)
			}
		})
	}
}

// TestResizeExclusiveCPUs: node 0 has CPUs 0-3 and 8-11, node 1 has 4-7 and 12-15; cores are {0,8}, {1,9} and so on. CPU 0 is
// reserved.
func TestResizeExclusiveCPUs(t *testing.T) {
	t.Parallel()
	topo := machinetest.Build("2s4c2t")
	for name, tt := range map[string]struct {
		options map[string]string
		have    string
		// admitted are the CPUs of the admission; empty if no resize has added others.
		admitted string
		// nodes of the affinity; empty for any.
		nodes  string
		others string
		// offline are CPUs that have left since.
		offline string
		n       int
		want    string
		then    string // admitted, after the resize
		reason  errdefs.Reason
	}{
		"the other thread of its core first": {have: "2", nodes: "0", n: 2, want: "2,10", then: "2"},
		"then whole cores of its node":       {have: "2,10", nodes: "0", n: 4, want: "1-2,9-10", then: "2,10"},
		"not the nodes of others":            {have: "4", others: "12", nodes: "1", n: 2, want: "4-5", then: "4"},
		"with no preference on any node":     {have: "4-7,12-15", n: 9, want: "4-8,12-15", then: "4-7,12-15"},
		"its nodes are busy":                 {have: "4-7", others: "12-13", nodes: "1", n: 7, reason: errdefs.ResizeDeferred},
		"its nodes are too small":            {have: "4-7", nodes: "1", n: 9, reason: errdefs.Infeasible},
		"threads of other cores": {options: map[string]string{DistributeAcrossCores: "true"}, have: "1", nodes: "0", n: 3,
			want: "1-2,8", then: "1"},
		"whole cores only": {options: map[string]string{FullPCPUsOnly: "true"}, have: "1,9", others: "2",
			nodes: "0", n: 4, want: "1,3,9,11", then: "1,9"},
		"no whole core": {options: map[string]string{FullPCPUsOnly: "true"}, have: "1,9", others: "2-3",
			nodes: "0", n: 4, reason: errdefs.ResizeDeferred},
		"half a core": {options: map[string]string{FullPCPUsOnly: "true"}, have: "1,9", nodes: "0", n: 3,
			reason: errdefs.Infeasible},
		"half a core less": {options: map[string]string{FullPCPUsOnly: "true"}, have: "1,2,9,10", nodes: "0", n: 3,
			reason: errdefs.Infeasible},
		"what was added goes first":  {have: "1-3,9-11", admitted: "2,10", nodes: "0", n: 3, want: "1-2,10", then: "2,10"},
		"all that was added goes":    {have: "1-3,9-11", admitted: "3,11", nodes: "0", n: 2, want: "3,11"},
		"then CPUs of the admission": {have: "1-3,9-11", admitted: "1-2,9-10", nodes: "0", n: 2, want: "1,9"},
		"what is offline goes before": {have: "1-3,9-11", admitted: "2,10", offline: "2", nodes: "0", n: 3, want: "1,9-10",
			then: "10"},
		"too few are online to leave no other": {have: "1-3,9-11", admitted: "1-3,9-11", offline: "2-3,10-11", nodes: "0", n: 4,
			want: "1-3,9"},
		"whole cores stay":                       {have: "1-3,9", nodes: "0", n: 2, want: "1,9"},
		"CPUs of the admission are known longer": {have: "1-2,9", admitted: "2", nodes: "0", n: 4, want: "1-2,9-10", then: "2"},
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
			d.PutPod(ledgertest.With(ledgertest.Pod("a", "c"), claim))
			if tt.others != "" {
				d.PutPod(ledgertest.With(ledgertest.Pod("b", "c"), ledgertest.Exclusive("c", tt.others)))
			}
			pod := func(n int) *workload.Pod {
				q := workload.Quantities{workload.CPU: int64(n) * 1000, workload.Memory: 1}
				return &workload.Pod{UID: "a", QoS: workload.Guaranteed,
					Containers: []workload.Container{{Name: "c", Requests: q, Limits: q}}}
			}
			claims, err := m.Resize(t.Context(), d.View(), pod(set(tt.have).Len()), pod(tt.n), hint.Widening{})
			if reason, _ := errdefs.ReasonOf(err); reason != tt.reason {
				t.Fatalf("got %v, want reason %q", err, tt.reason)
			}
			if tt.reason != "" {
				return
			}
			if err != nil || len(claims) != 1 || claims[0].CPUs.Set.String() != tt.want || claims[0].CPUs.Admitted.String() != tt.then {
				t.Fatalf("got %s, %v, want %s with %s", claims[0].CPUs, err, tt.want, tt.then)
			}
			d.AddClaims("a", claims...)
			for _, f := range check.View(d.View()) {
				if f.Rule != check.RuleOffline {
					t.Error(f)
				}
			}
		})
	}
}

// TestResizeBetweenSharedAndExclusiveCPUs: only an admission gives a container exclusive CPUs, or takes them away. Both are
// refused, also below one CPU. Between amounts on shared CPUs, nothing is refused.
func TestResizeBetweenSharedAndExclusiveCPUs(t *testing.T) {
	t.Parallel()
	topo := machinetest.Build("1s8c")
	m, err := New(Config{Policy: PolicyStatic, ReservedCPUs: set("0"), Features: Features{ResizeExclusiveCPUs: true}}, topo)
	if err != nil {
		t.Fatal(err)
	}
	pod := func(milli int64) *workload.Pod {
		q := workload.Quantities{workload.CPU: milli, workload.Memory: 1}
		return &workload.Pod{UID: "a", QoS: workload.Guaranteed, Containers: []workload.Container{{Name: "c", Requests: q, Limits: q}}}
	}
	for _, tt := range []struct {
		have     string // exclusive CPUs
		from, to int64
		says     string
	}{
		{"", 1500, 2000, `container "c" shares CPUs, and would get 2 exclusive ones: only an admission does this`},
		{"1-2", 2000, 1500, `container "c" has 2 exclusive CPUs, and would share CPUs: only an admission does this`},
		{"1", 1000, 500, `container "c" has 1 exclusive CPUs, and would share CPUs: only an admission does this`},
		{"", 1500, 1700, ""},
	} {
		d := ledger.NewDraft(ledgertest.New(t, ledger.Rules{Machine: topo, ReservedCPUs: set("0")}).View())
		record := ledgertest.Pod("a", "c")
		if tt.have != "" {
			record = ledgertest.With(record, ledgertest.Exclusive("c", tt.have))
		}
		d.PutPod(record)
		claims, err := m.Resize(t.Context(), d.View(), pod(tt.from), pod(tt.to), hint.Widening{})
		reason, _ := errdefs.ReasonOf(err)
		if _, message := errdefs.Verdict(err); tt.says != "" && (reason != errdefs.Infeasible || message != tt.says) {
			t.Errorf("from %d to %d: %v, want %q", tt.from, tt.to, err, tt.says)
		}
		if len(claims) > 0 || tt.says == "" && err != nil {
			t.Errorf("from %d to %d: %v, %v", tt.from, tt.to, claims, err)
		}
	}
}

// TestResizeOfAPodAsAWhole: without the feature, an amount of the pod alone is refused, too.
func TestResizeOfAPodAsAWhole(t *testing.T) {
	t.Parallel()
	topo := machinetest.Build("1s8c")
	m, err := New(Config{Policy: PolicyStatic, ReservedCPUs: set("0"),
		Features: Features{Features: workload.Features{PodLevelResources: true}}}, topo)
	if err != nil {
		t.Fatal(err)
	}
	pod := func(n int64) *workload.Pod {
		q, all := workload.Quantities{workload.CPU: 2000, workload.Memory: 1}, workload.Quantities{workload.CPU: n, workload.Memory: 2}
		return &workload.Pod{
			UID: "a", QoS: workload.Guaranteed, Containers: []workload.Container{{Name: "c", Requests: q, Limits: q}},
			Resources: &workload.Resources{Requests: all, Limits: all},
		}
	}
	d := ledger.NewDraft(ledgertest.New(t, ledger.Rules{Machine: topo, ReservedCPUs: set("0")}).View())
	d.PutPod(ledgertest.With(ledgertest.Pod("a", "c"), ledgertest.Exclusive("c", "1-2")))
	_, err = m.Resize(t.Context(), d.View(), pod(4000), pod(6000), hint.Widening{})
	if reason, _ := errdefs.ReasonOf(err); reason != errdefs.Infeasible {
		t.Errorf("got %v, want it infeasible", err)
	}
}

// TestResizeOfInitContainersWithExclusiveCPUs: their CPUs pass to later containers, so only an admission changes them. Other
// amounts change.
func TestResizeOfInitContainersWithExclusiveCPUs(t *testing.T) {
	t.Parallel()
	topo := machinetest.Build("1s8c")
	m, err := New(Config{Policy: PolicyStatic, ReservedCPUs: set("0"), Features: Features{ResizeExclusiveCPUs: true}}, topo)
	if err != nil {
		t.Fatal(err)
	}
	pod := func(class workload.QoSClass, milli, bytes int64) *workload.Pod {
		q, app := workload.Quantities{workload.CPU: milli, workload.Memory: bytes},
			workload.Quantities{workload.CPU: 500, workload.Memory: 1}
		return &workload.Pod{UID: "a", QoS: class, Containers: []workload.Container{
			{Name: "i", Role: workload.Init, Requests: q, Limits: q}, {Name: "c", Requests: app, Limits: app},
		}}
	}
	for name, tt := range map[string]struct {
		have        string
		old, wanted *workload.Pod
		says        string
	}{
		"more": {"1-2", pod(workload.Guaranteed, 2000, 1), pod(workload.Guaranteed, 3000, 1),
			`container "i" is an ordinary init container`},
		"after it has ended": {"", pod(workload.Guaranteed, 2000, 1), pod(workload.Guaranteed, 3000, 1),
			`container "i" is an ordinary init container`},
		"to shared CPUs": {"1-2", pod(workload.Guaranteed, 2000, 1), pod(workload.Guaranteed, 500, 1),
			`container "i" is an ordinary init container`},
		"on shared CPUs":          {"", pod(workload.Guaranteed, 1500, 1), pod(workload.Guaranteed, 1700, 1), ""},
		"memory alone":            {"1-2", pod(workload.Guaranteed, 2000, 1), pod(workload.Guaranteed, 2000, 2), ""},
		"of a pod of other class": {"", pod(workload.Burstable, 2000, 1), pod(workload.Burstable, 3000, 1), ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := ledger.NewDraft(ledgertest.New(t, ledger.Rules{Machine: topo, ReservedCPUs: set("0")}).View())
			record := ledgertest.Pod("a", "i", "c")
			if tt.have != "" {
				record = ledgertest.With(record, ledgertest.Exclusive("i", tt.have))
			}
			d.PutPod(record)
			claims, err := m.Resize(t.Context(), d.View(), tt.old, tt.wanted, hint.Widening{})
			reason, _ := errdefs.ReasonOf(err)
			if tt.says != "" && (reason != errdefs.Infeasible || !strings.Contains(err.Error(), tt.says)) || tt.says == "" &&
				err != nil || len(claims) > 0 {
				t.Errorf("%v, %v, want %q", claims, err, tt.says)
			}
		})
	}
}
