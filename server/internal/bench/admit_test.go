package bench

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/berthd/berth/managers/admission"
	"github.com/berthd/berth/managers/cpu"
	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/device"
	"github.com/berthd/berth/managers/hint"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/ledger/ledgertest"
	"github.com/berthd/berth/managers/machine/machinetest"
	"github.com/berthd/berth/managers/managerset"
	"github.com/berthd/berth/managers/memory"
	"github.com/berthd/berth/managers/numa"
	"github.com/berthd/berth/managers/topology"
	"github.com/berthd/berth/managers/workload"
)

// resources are those of the device plugins; each has two devices on every node.
var resources = []workload.Resource{"example.com/gpu", "example.com/nic"}

// noPlugins stands behind devices that prefer nothing.
type noPlugins struct{}

func (noPlugins) Preferred(context.Context, string, []string, []string, int) ([]string, error) {
	return nil, nil
}
func (noPlugins) Allocate(context.Context, string, []string) ([]byte, error) { return nil, nil }

// decisions runs an engine with every manager on a pod, dry: hints, merge and
// plans for CPUs, memory and a device of each resource. No disk or socket is
// part of it.
type decisions struct {
	*admission.Trial
	engine *admission.Engine
	pod    workload.Pod
}

// admitCase is a machine of a number of NUMA nodes, empty or half full, under a
// policy.
type admitCase struct {
	operation string
	shape     string
	policy    topology.Policy
	half      bool
	devices   bool
	// others is how many pods on shared CPUs are there.
	others int
	// anywhere leaves memory to the kernel.
	anywhere bool
}

var admitCases = []admitCase{
	{"decision, CPU, memory and 2 devices, empty", "2s4n32c2t", topology.Restricted, false, true, 0, false},
	{"decision, CPU, memory and 2 devices, half", "2s4n32c2t", topology.Restricted, true, true, 0, false},
	{"decision, CPU, memory and 2 devices, half, beside 200 pods", "2s4n32c2t", topology.Restricted, true, true, 200, false},
	{"decision, CPU, memory and 2 devices, half, best-effort", "2s4n32c2t", topology.BestEffort, true, true, 0, false},
	{"decision, CPU and memory, half", "2s4n32c2t", topology.Restricted, true, false, 0, false},
}

// pod requests n CPUs, 4 GiB and, with devices, one of each.
func admitPod(uid string, n int64, devices bool) workload.Pod {
	q := workload.Quantities{workload.CPU: n * 1000, workload.Memory: 4 << 30}
	if devices {
		for _, r := range resources {
			q[r] = 1
		}
	}
	return workload.Pod{
		UID: uid, Name: uid, Namespace: "default",
		Containers: []workload.Container{{Name: "main", Requests: q, Limits: q}},
	}
}

func (c admitCase) on(t testing.TB) *decisions {
	t.Helper()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	m := machinetest.Build(c.shape)
	mem := memory.Config{Policy: memory.PolicyStatic, AllowUnreserved: true}
	if c.anywhere {
		mem = memory.Config{Policy: memory.PolicyNone}
	}
	p, err := managerset.New(managerset.Config{
		CPU:      cpu.Config{Policy: cpu.PolicyStatic, ReservedCPUs: cpuset.Of(0), TopologyPolicy: string(c.policy)},
		Memory:   mem,
		Topology: topology.Config{Policy: c.policy, Scope: hint.ContainerScope},
		Fit:      true,
	}, m)
	must(err)
	inventory := device.NewInventory(nil, time.Time{})
	for _, r := range resources {
		var list []device.Device
		for id := range m.NodeMask().All() {
			for i := range 2 {
				list = append(list, device.Device{ID: fmt.Sprintf("%02d-%d", id, i), Healthy: true, Nodes: numa.Of(id), Topology: true})
			}
		}
		inventory.Listed(inventory.Registered(string(r), device.Options{}, time.Time{}), list, time.Time{})
	}
	p, err = p.Join([]hint.Entry{{Provider: device.New(inventory, noPlugins{}), Mode: hint.Required}}, nil)
	must(err)
	// Every second node is taken by pods that have all of its CPUs but one.
	l := ledgertest.New(t, p.Rules)
	trial := admission.NewTrial(admission.Config{Tries: -1}, l.View(), p.Bus, p.Topology)
	if c.half {
		for range m.NodeMask().Len() / 2 {
			full := admitPod(fmt.Sprint("full", trial.View().NumPods()), int64(m.NumCPUs()/m.NodeMask().Len()-1), true)
			v, err := trial.Admit(t.Context(), &full)
			must(err)
			if v.Outcome != admission.Admitted {
				t.Fatal(v.Message)
			}
		}
	}
	for i := range c.others {
		shared := workload.Pod{
			UID: fmt.Sprint("shared", i), Name: "shared", Namespace: "default",
			Containers: []workload.Container{{Name: "main"}, {Name: "side"}},
		}
		_, err := trial.Admit(t.Context(), &shared)
		must(err)
	}
	for pod := range trial.View().Pods() { // one by one, so that what a decision allocates does not vary
		_, err = l.Update(t.Context(), func(d *ledger.Draft) error { d.PutPod(pod); return nil })
		must(err)
	}
	engine := admission.New(admission.Config{Tries: -1}, admission.Parts{
		Ledger: l, Managers: func(*ledger.View) (*hint.Bus, *topology.Manager) { return p.Bus, p.Topology },
		Environment: admission.Environment{
			Now: func() time.Time { return time.Time{} }, NewID: func() string { return "a" },
		},
	})
	return &decisions{trial, engine, admitPod("a", 8, c.devices)}
}

func (d *decisions) decide() (admission.Verdict, error) {
	return d.engine.Admit(context.Background(), admission.Request{Pod: d.pod, DryRun: true})
}

// TestAdmitAnswers keeps the benchmark honest: the pod gets all that it requests,
// on one node.
func TestAdmitAnswers(t *testing.T) {
	t.Parallel()
	for _, c := range admitCases {
		v, err := c.on(t).decide()
		if err != nil || v.Outcome != admission.Admitted {
			t.Errorf("%s: %v, %s", c.operation, err, v.Message)
			continue
		}
		want := 2
		if c.devices {
			want += len(resources)
		}
		if a := v.Pod.Affinity("main"); len(v.Pod.Claims) != want || a == nil || a.Nodes.Len() != 1 || !a.Preferred {
			t.Errorf("%s: %d claims, affinity %v", c.operation, len(v.Pod.Claims), a)
		}
	}
}

// admitShapes are machines of 2 to 64 NUMA nodes with 64 CPUs each.
var admitShapes = []string{"2s1n32c2t", "2s2n32c2t", "2s4n32c2t", "2s8n32c2t", "2s16n32c2t", "2s32n32c2t"}

func BenchmarkAdmit(b *testing.B) {
	run := func(c admitCase) {
		b.Run(fmt.Sprintf("%s/%d/berth", c.operation, machinetest.Build(c.shape).NumCPUs()), func(b *testing.B) {
			d := c.on(b)
			measure(b, func() error { _, err := d.decide(); return err })
		})
	}
	for _, c := range admitCases {
		if c.others > 0 || c.policy != topology.Restricted {
			run(c)
			continue
		}
		for _, shape := range admitShapes {
			c.shape = shape
			run(c)
		}
	}
}
