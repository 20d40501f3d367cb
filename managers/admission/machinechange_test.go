package admission_test

import (
	"slices"
	"testing"

	"github.com/berthd/berth/managers/admission"
	"github.com/berthd/berth/managers/cpu"
	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/hint"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/ledger/check"
	"github.com/berthd/berth/managers/machine"
	"github.com/berthd/berth/managers/machine/machinetest"
	"github.com/berthd/berth/managers/memory"
	"github.com/berthd/berth/managers/topology"
	"github.com/berthd/berth/managers/workload"
)

// TestAdmissionFollowsTheMachine: a CPU goes offline between the plan and the commit of an
// admission. The admission is planned again by the managers of the changed machine, so the pod does not get the CPU.
func TestAdmissionFollowsTheMachine(t *testing.T) {
	t.Parallel()
	h := setup{shape: "1s1n4c1t", policy: topology.None}.open(t)
	whole := h.ledger.View().Machine()
	less, err := whole.Without(cpuset.Of(1))
	must(t, err)
	cpus, err := cpu.New(cpu.Config{Policy: cpu.PolicyStatic, ReservedCPUs: cpuset.Of(0)}, less)
	must(t, err)
	bus, err := hint.NewBus(nil, []hint.Entry{{Provider: cpus, Mode: hint.Required}}, nil)
	must(t, err)
	policy, err := topology.New(topology.Config{Policy: topology.None}, less.NodeMask(), less.Distances())
	must(t, err)
	before := h.Managers
	h.Managers = func(v *ledger.View) (*hint.Bus, *topology.Manager) {
		if v.Machine() == less {
			return bus, policy
		}
		return before(v)
	}
	h.cgroups.recording = func() {
		rules := h.ledger.View().Rules()
		rules.Machine = less
		_, err := h.ChangeMachine(t.Context(), rules)
		must(t, err)
	}
	if v := h.admit(t, guaranteed("a", 2, 0)); v.Outcome != admission.Admitted {
		t.Fatalf("%v %s", v.Outcome, v.Message)
	}
	for _, f := range check.View(h.ledger.View()) {
		t.Error(f)
	}
	if got := h.contents("a"); len(got) != 1 || got[0] != "CPUs 2-3 (exclusive)" {
		t.Errorf("it has %v", got)
	}
}

// The same with memory of a NUMA node.
func TestAdmissionFollowsTheMemory(t *testing.T) {
	t.Parallel()
	h := setup{shape: "1s2n4c1t,mem=9Gi", policy: topology.BestEffort, memory: true}.open(t)
	small := machinetest.Build("1s2n4c1t,mem=9Gi", machinetest.Memory(0, 3<<30))
	other := setup{shape: "1s2n4c1t,mem=9Gi", policy: topology.BestEffort, memory: true}.on(t, small)
	before := h.Managers
	h.Managers = func(v *ledger.View) (*hint.Bus, *topology.Manager) {
		if v.Machine() == small {
			return other.bus, other.policy
		}
		return before(v)
	}
	h.cgroups.recording = func() {
		_, err := h.ChangeMachine(t.Context(), other.rules)
		must(t, err)
	}
	if v := h.admit(t, withMemory("a", 2, 5)); v.Outcome != admission.Admitted {
		t.Fatalf("%v %s", v.Outcome, v.Message)
	}
	t.Log(h.contents("a"))
	for _, f := range check.View(h.ledger.View()) {
		t.Error(f)
	}
}

// A pod that has lost a CPU has not lost it again when only the shared CPUs change, on which it runs.
func TestALossIsReportedOnce(t *testing.T) {
	t.Parallel()
	h := setup{shape: "1s1n8c1t", policy: topology.None}.open(t)
	whole := h.ledger.View().Machine()
	if v := h.admit(t, guaranteed("a", 2, 0)); v.Outcome != admission.Admitted {
		t.Fatalf("%v %s", v.Outcome, v.Message)
	}
	for _, row := range []struct {
		offline cpuset.Set
		want    []string
	}{
		{cpuset.Of(1), []string{"CPUs 1 of a/main are offline: it runs on 2"}},
		{cpuset.Of(1, 2), []string{"CPUs 1-2 of a/main are offline: it runs on 0,3-7"}},
		{cpuset.Of(1, 2, 5), nil},
		{cpuset.Set{}, nil},
	} {
		less, err := whole.Without(row.offline)
		must(t, err)
		rules := h.ledger.View().Rules()
		rules.Machine = less
		outlook, err := h.ChangeMachine(t.Context(), rules)
		must(t, err)
		var got []string
		for _, p := range outlook.Pods {
			for _, f := range p.Findings {
				got = append(got, f.Text)
			}
		}
		if !slices.Equal(got, row.want) {
			t.Errorf("offline %s: %q, want %q", row.offline, got, row.want)
		}
	}
}

type otherSet struct {
	bus    *hint.Bus
	policy *topology.Manager
	rules  ledger.Rules
}

func (b setup) on(t *testing.T, m *machine.Topology) otherSet {
	cpus, err := cpu.New(cpu.Config{Policy: cpu.PolicyStatic, ReservedCPUs: cpuset.Of(0)}, m)
	must(t, err)
	config := memory.Config{Policy: memory.PolicyStatic, ResizePinned: true, SystemReserved: map[workload.Resource]uint64{}}
	for _, node := range m.Nodes() {
		config.Reserved = append(config.Reserved, memory.Reservation{Node: node.ID, Resource: workload.Memory, Bytes: 1 << 30})
		config.SystemReserved[workload.Memory] += 1 << 30
	}
	manager, err := memory.New(config, m)
	must(t, err)
	bus, err := hint.NewBus(nil, []hint.Entry{{Provider: cpus, Mode: hint.Required}, {Provider: manager, Mode: hint.Required}}, nil)
	must(t, err)
	policy, err := topology.New(topology.Config{Policy: b.policy, Scope: hint.ContainerScope}, m.NodeMask(), m.Distances())
	must(t, err)
	return otherSet{bus, policy, ledger.Rules{Machine: m, ReservedCPUs: cpuset.Of(0), Memory: manager.Baseline()}}
}

// A container moves to other NUMA nodes, although another one of its pod has lost CPUs, and keeps the rest. So it does if
// the loss is that of reserved CPUs.
func TestResizeBesideALoss(t *testing.T) {
	t.Parallel()
	for name, lose := range map[string]func(*testing.T, *twoNodes){
		"a CPU is offline": func(t *testing.T, h *twoNodes) { h.become(t, twoNodesOf(machinetest.Offline("1-3"))) },
		"a CPU is reserved": func(t *testing.T, h *twoNodes) {
			h.config.CPU.ReservedCPUs = cpuset.Of(0, 2)
			h.become(t, twoNodesOf())
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := changing(t, topology.SingleNUMANode, hint.ContainerScope)
			h.admit(t, podOf("a", [2]int64{3, 1}, [2]int64{2, 1}), podOf("b", [2]int64{2, 1}))
			lose(t, h)
			got, err := h.Resize(t.Context(), resizeTo(podOf("a", [2]int64{3, 1}, [2]int64{4, 1}), false))
			must(t, err)
			if got.Outcome != admission.Admitted {
				t.Fatalf("%s: %s", got.Outcome, got.Message)
			}
			if h.advance(t, "a"); h.has("a") != "1-3@0 8-11@1" {
				t.Errorf("it has %s", h.has("a"))
			}
		})
	}
}
