package fit_test

import (
	"testing"
	"time"

	"github.com/berthd/berth/managers/admission"
	"github.com/berthd/berth/managers/cpu"
	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/fit"
	"github.com/berthd/berth/managers/hint"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/ledger/ledgertest"
	"github.com/berthd/berth/managers/machine/machinetest"
	"github.com/berthd/berth/managers/managerset"
	"github.com/berthd/berth/managers/memory"
	"github.com/berthd/berth/managers/topology"
	"github.com/berthd/berth/managers/workload"
)

const mi = 1 << 20

func newSet(t *testing.T, pages *memory.Pages) *managerset.Set {
	t.Helper()
	m := machinetest.Build("2n4c", machinetest.Memory(0, 1024*mi), machinetest.Memory(1, 512*mi), machinetest.HugePages(0, 2048, 4))
	set, err := managerset.New(managerset.Config{
		CPU: cpu.Config{Policy: cpu.PolicyStatic, ReservedCPUs: cpuset.Of(0)},
		Memory: memory.Config{
			Policy: memory.PolicyStatic, Reserved: []memory.Reservation{{Node: 1, Resource: "memory", Bytes: 100 * mi}},
			SystemReserved: map[workload.Resource]uint64{"memory": 100 * mi},
		},
		Pages:    pages,
		Topology: topology.Config{Policy: topology.BestEffort, Scope: hint.ContainerScope},
	}, m)
	if err != nil {
		t.Fatal(err)
	}
	if set, err = set.Join(nil, nil); err != nil {
		t.Fatal(err)
	}
	return set
}

func pod(uid string, q workload.Quantities) workload.Pod {
	return workload.Pod{UID: uid, Name: uid, Namespace: "default", Containers: []workload.Container{{Name: "main", Requests: q, Limits: q}}}
}

// A pod gets nothing exclusive as long as the state is uncertain, so it does not fit now.
func TestFitOfAnUncertainState(t *testing.T) {
	set := newSet(t, nil)
	l := ledgertest.New(t, set.Rules)
	if _, err := l.Update(t.Context(), func(d *ledger.Draft) error {
		d.PutUnknownLive(ledger.UnknownLivePod{UID: "u"})
		d.SetUncertain("the ledger was lost")
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	e := admission.New(admission.Config{DeferWaits: true}, admission.Parts{
		Ledger: l, Managers: func(*ledger.View) (*hint.Bus, *topology.Manager) { return set.Bus, set.Topology },
		Environment: admission.Environment{Now: time.Now, NewID: func() string { return "x" }},
	})
	p := pod("a", workload.Quantities{workload.CPU: 2000, workload.Memory: 16 * mi})
	v, err := e.Admit(t.Context(), admission.Request{Pod: p})
	if err != nil {
		t.Fatal(err)
	}
	out, _, err := fit.Try(t.Context(), e.Config, l.View(), set, time.Now(), []workload.Pod{p}, fit.Search{})
	if err != nil {
		t.Fatal(err)
	}
	if v.Outcome == admission.Admitted || out[0].When != fit.Now {
		return
	}
	t.Errorf("fit says %s, Admit %v: %s", out[0].When, v.Outcome, v.Message)
}

// A resource that was not registered in time never fits.
func TestFitOfAnUnknownResource(t *testing.T) {
	set := newSet(t, nil)
	cfg := admission.Config{DeferWaits: true, Resources: admission.Resources{Unknown: admission.DeferUnknown,
		Started: time.Now().Add(-time.Hour), Grace: time.Minute}}
	p := pod("a", workload.Quantities{workload.CPU: 2000, workload.Memory: 16 * mi, "example.com/gpu": 1})
	out, _, err := fit.Try(t.Context(), cfg, ledger.Empty(set.Rules), set, time.Now(), []workload.Pod{p}, fit.Search{})
	if err != nil {
		t.Fatal(err)
	}
	if out[0].When != fit.Never {
		t.Errorf("%s %v: %s", out[0].When, out[0].Verdict.Outcome, out[0].Verdict.Message)
	}
	if out, _, err = fit.Try(t.Context(), cfg, ledger.Empty(set.Rules), set, cfg.Resources.Started, []workload.Pod{p},
		fit.Search{}); err != nil || out[0].When != fit.Later {
		t.Errorf("within the grace: %v, %v", out, err)
	}
}

// TestFitOfUsedPages: the pages of another pod are in use, so the pod fits later. Without that pod it
// would never fit if another program used them.
func TestFitOfUsedPages(t *testing.T) {
	for name, row := range map[string]struct {
		pages uint64 // of the holder; node 0 has 4
		want  fit.When
	}{"a pod": {4, fit.Later}, "another program": {2, fit.Never}} {
		var present *ledger.View
		set := newSet(t, &memory.Pages{Free: func() ([]memory.FreePages, *ledger.View, error) { return nil, present, nil }})
		d := ledger.NewDraft(ledger.Empty(set.Rules))
		d.PutPod(ledgertest.With(ledgertest.Pod("holder", "main"), ledgertest.Memory("main", "hugepages-2Mi", "0", row.pages*2*mi)))
		present = d.View()
		p := pod("a", workload.Quantities{workload.CPU: 1000, workload.Memory: 16 * mi, "hugepages-2Mi": 8 * mi})
		out, _, err := fit.Try(t.Context(), admission.Config{}, present, set, time.Now(), []workload.Pod{p}, fit.Search{})
		if err != nil {
			t.Fatal(err)
		}
		if nodes := out[0].Nodes.IsEmpty(); nodes == (row.want == fit.Now) {
			t.Errorf("%s: %s on NUMA nodes %v", name, out[0].When, out[0].Nodes)
		}
		if out[0].When != row.want {
			t.Errorf("%s: %s %v: %s", name, out[0].When, out[0].Verdict.Outcome, out[0].Verdict.Message)
		}
	}
}
