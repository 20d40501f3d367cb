package metrics_test

import (
	"context"
	"testing"
	"time"

	"github.com/berthd/berth/managers/admission"
	"github.com/berthd/berth/managers/hint"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/ledger/ledgertest"
	"github.com/berthd/berth/managers/live"
	"github.com/berthd/berth/managers/machine/machinetest"
	"github.com/berthd/berth/managers/memory"
	"github.com/berthd/berth/managers/topology"
	"github.com/berthd/berth/managers/workload"
	"github.com/berthd/berth/server/internal/deviceplugin/registry"
	"github.com/berthd/berth/server/internal/metrics"
	"github.com/berthd/berth/server/internal/system"
)

const mi = 1 << 20

// amounts are equal requests and limits.
func amounts(milliCPU, memory, pages int64) workload.Quantities {
	q := workload.Quantities{workload.CPU: milliCPU, workload.Memory: memory * mi}
	if pages > 0 {
		q["hugepages-2Mi"] = pages * mi
	}
	return q
}

func container(name string, role workload.Role, q workload.Quantities) workload.Container {
	return workload.Container{Name: name, Role: role, Requests: q, Limits: q}
}

// buildMemory is an engine that allocates memory, to pods as a whole where they have
// resources of their own.
func buildMemory(t *testing.T) *fixture {
	t.Helper()
	m := machinetest.Build("2n2c,mem=1Gi,huge=2Mi:8")
	features := workload.Features{PodLevelResources: true, PodLevelResourceManagers: true}
	manager, err := memory.New(memory.Config{
		Policy: memory.PolicyStatic, AllowUnreserved: true,
		Features: workload.Features{PodLevelResources: true, PodLevelResourceManagers: true},
	}, m)
	if err != nil {
		t.Fatal(err)
	}
	top, err := topology.New(topology.Config{Policy: topology.Restricted, Scope: hint.PodScope}, m.NodeMask(), m.Distances())
	if err != nil {
		t.Fatal(err)
	}
	bus, err := hint.NewBus(nil, []hint.Entry{{Provider: manager, Mode: hint.Required}}, context.WithTimeout)
	if err != nil {
		t.Fatal(err)
	}
	h := &fixture{set: metrics.New(), ledger: ledgertest.New(t, ledger.Rules{Machine: m, Memory: manager.Baseline()})}
	h.counted = counted{set: h.set, Engine: live.New(admission.New(admission.Config{Features: features}, admission.Parts{
		Ledger: h.ledger, CgroupManager: cgroups{},
		Managers:    func(*ledger.View) (*hint.Bus, *topology.Manager) { return bus, top },
		Environment: admission.Environment{Now: time.Now, NewID: func() string { return "id" }},
	}), live.Options{})}
	h.set.Start(system.Sources{
		View: h.ledger.View,
		Settings: func() system.Settings {
			return system.Settings{Topology: top.Policy(), Scope: top.Scope(), PodLevelResourceManagers: true}
		},
		Sockets: func() []registry.Socket { return nil },
	})
	return h
}

// take admits a pod, or expects that it is refused.
func (h *fixture) take(t *testing.T, p workload.Pod, want admission.Outcome) {
	t.Helper()
	p.Name = p.UID
	v, err := h.Admit(t.Context(), admission.Request{Pod: p})
	if err != nil || v.Outcome != want {
		t.Fatalf("pod %s: %+v, %v", p.UID, v, err)
	}
}

// TestMemoryOfContainers: each container is a request, and each resource that it
// gets an allocation.
func TestMemoryOfContainers(t *testing.T) {
	t.Parallel()
	h := buildMemory(t)
	plain := workload.Pod{UID: "plain", Containers: []workload.Container{
		container("init", workload.Init, amounts(100, 10, 0)), container("main", workload.App, amounts(100, 10, 4)),
	}}
	h.take(t, plain, admission.Admitted)
	h.take(t, plain, admission.Admitted) // again
	h.take(t, workload.Pod{UID: "huge", Containers: []workload.Container{container("c", workload.App, amounts(100, 5000, 0))}},
		admission.Rejected)
	h.take(t, workload.Pod{UID: "burstable", Containers: []workload.Container{{Name: "c", Requests: amounts(100, 1, 0)}}},
		admission.Admitted)
	h.expect(t,
		"kubelet_memory_manager_pinning_requests_total 5", "kubelet_memory_manager_pinning_errors_total 1",
		`resource_manager_allocations_total{resource_name="memory",source="node"} 3`,
		`resource_manager_container_assignments_total{assignment_type="node_exclusive",resource_name="memory"} 2`,
	)
}

// TestMemoryOfPods: the pods that a kubelet of 1.36.3 was watched with.
func TestMemoryOfPods(t *testing.T) {
	t.Parallel()
	h := buildMemory(t)
	whole := func(uid string, milliCPU, memory int64, containers ...workload.Container) workload.Pod {
		q := amounts(milliCPU, memory, 0)
		return workload.Pod{UID: uid, Resources: &workload.Resources{Requests: q, Limits: q}, Containers: containers}
	}
	shares := func(name string) workload.Container { return workload.Container{Name: name} }
	less := container("b", workload.App, amounts(500, 32, 0))
	less.Limits = amounts(1000, 64, 0)
	for _, p := range []workload.Pod{
		whole("plx", 3000, 256, container("a", workload.App, amounts(2000, 64, 0)), shares("b")),
		whole("ply", 4000, 256, container("a", workload.App, amounts(1000, 64, 0)), less, shares("d")),
		whole("plz", 2000, 128, shares("a"), shares("b")),
		whole("plside", 3000, 128, container("side", workload.Sidecar, amounts(1000, 32, 0)),
			container("main", workload.App, amounts(1000, 64, 0))),
		whole("podlevel", 1000, 128, less, shares("a")),
	} {
		h.take(t, p, admission.Admitted)
	}
	h.expect(t,
		"kubelet_memory_manager_pinning_requests_total 9", "kubelet_memory_manager_pinning_errors_total 0",
		`resource_manager_allocations_total{resource_name="memory",source="pod"} 11`,
		`resource_manager_container_assignments_total{assignment_type="pod_exclusive",resource_name="memory"} 4`,
		`resource_manager_container_assignments_total{assignment_type="pod_shared",resource_name="memory"} 7`,
	)
}
