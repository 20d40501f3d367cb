package admission_test

import (
	"context"
	"slices"
	"time"

	"github.com/berthd/berth/managers/admission"
	"github.com/berthd/berth/managers/cpu"
	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/device"
	"github.com/berthd/berth/managers/hint"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/ledger/ledgertest"
	"github.com/berthd/berth/managers/live"
	"github.com/berthd/berth/managers/machine/machinetest"
	"github.com/berthd/berth/managers/memory"
	"github.com/berthd/berth/managers/node"
	"github.com/berthd/berth/managers/numa"
	"github.com/berthd/berth/managers/topology"
	"github.com/berthd/berth/managers/workload"
)

// setup describes an engine on a machine of any shape: the built-in providers on a made-up machine.
type setup struct {
	shape  string
	policy topology.Policy
	scope  hint.Scope // empty: container
	// options of the static CPU policy.
	options map[string]string
	// devices of the resource gpu; none: no plugin.
	devices []device.Device
	// away: the plugin of gpu has gone.
	away bool
	// memory: the memory manager is static.
	memory bool
	// whole: pods with resources of their own are given CPUs as a whole.
	whole bool
	// fit: the node refuses what exceeds its allocatable resources.
	fit bool
	// now is the engine's clock, a fixed one by default.
	now func() time.Time
	// pods are there already.
	pods []*ledger.Pod
	// plugins answer; nil: they do so well.
	plugins *plugins
	cgroups *cgroups
}

// g is a healthy device near one node.
func g(id string, node int) device.Device {
	return device.Device{ID: id, Healthy: true, Nodes: numa.Of(node), Topology: true}
}

// open makes the engine. CPU 0 is reserved, and 1Gi of each node's memory.
func (b setup) open(t ledgertest.T) *fixture {
	m := machinetest.Build(b.shape)
	reserved := cpuset.Of(0)
	cpus, err := cpu.New(cpu.Config{
		Policy: cpu.PolicyStatic, ReservedCPUs: reserved, Options: b.options,
		Features: cpu.Features{BetaOptions: true, AlphaOptions: true, Features: workload.Features{PodLevelResources: true,
			PodLevelResourceManagers: b.whole}, ResizeExclusiveCPUs: true},
	}, m)
	must(t, err)
	entries := []hint.Entry{{Provider: cpus, Mode: hint.Required}}

	if b.plugins == nil {
		b.plugins = &plugins{}
	}
	inventory := device.NewInventory(nil, time.Unix(0, 0))
	if len(b.devices) > 0 {
		session := inventory.Registered(gpu, device.Options{}, time.Unix(0, 0))
		inventory.Listed(session, b.devices, time.Unix(0, 0))
		if b.away {
			inventory.Gone(session, time.Unix(1, 0))
		}
	}
	entries = append(entries, hint.Entry{Provider: device.New(inventory, b.plugins), Mode: hint.Required})

	var baseline []ledger.NodeMemory
	if b.memory {
		config := memory.Config{Policy: memory.PolicyStatic, ResizePinned: true, SystemReserved: map[workload.Resource]uint64{}}
		for _, node := range m.Nodes() {
			config.Reserved = append(config.Reserved, memory.Reservation{Node: node.ID, Resource: workload.Memory, Bytes: 1 << 30})
			config.SystemReserved[workload.Memory] += 1 << 30
		}
		manager, err := memory.New(config, m)
		must(t, err)
		baseline = manager.Baseline()
		entries = append(entries, hint.Entry{Provider: manager, Mode: hint.Required})
	}
	if b.fit {
		manager, err := node.New(node.Config{ReservedCPUs: reserved, MaxPods: 3}, node.Facts{Machine: m})
		must(t, err)
		entries = append(entries, hint.Entry{Provider: node.Guard{Manager: manager}, Mode: hint.Required})
	}
	bus, err := hint.NewBus(nil, entries, nil)
	must(t, err)
	if b.scope == "" {
		b.scope = hint.ContainerScope
	}
	policy, err := topology.New(topology.Config{Policy: b.policy, Scope: b.scope}, m.NodeMask(), m.Distances())
	must(t, err)

	l := ledgertest.New(t, ledger.Rules{Machine: m, ReservedCPUs: reserved, StrictReservation: cpus.StrictReservation(), Memory: baseline})
	_, err = l.Update(context.Background(), func(d *ledger.Draft) error {
		for _, p := range b.pods {
			d.PutPod(p)
		}
		return nil
	})
	must(t, err)
	if b.now == nil {
		b.now = func() time.Time { return time.Unix(1000, 0) }
	}
	if b.cgroups == nil {
		b.cgroups = &cgroups{}
	}
	b.cgroups.ledger = l.View
	b.cgroups.pods, b.cgroups.containers = map[string]bool{}, map[string]string{}
	h := &fixture{ledger: l, plugins: b.plugins, cgroups: b.cgroups}
	h.bus.Store(bus)
	features := workload.Features{PodLevelResources: true, PodLevelResourceManagers: b.whole}
	h.Engine = live.New(admission.New(admission.Config{Features: features}, admission.Parts{
		Ledger: l, Managers: func(*ledger.View) (*hint.Bus, *topology.Manager) { return h.bus.Load(), policy }, CgroupManager: b.cgroups,
		Starter:     b.plugins,
		Environment: admission.Environment{Now: b.now, NewID: func() string { return "adm" }},
	}), live.Options{})
	return h
}

// as makes the same setup again after a suggestion was followed, and the pod as the
// suggestion wants it.
func (b setup) as(s ledger.Suggestion, view *ledger.View, pod workload.Pod) (setup, workload.Pod) {
	b.pods = nil
	for p := range view.Pods() {
		if !slices.Contains(s.Remove, p.UID()) && !slices.Contains(s.Wait, p.UID()) {
			again := *p
			again.Trace = nil
			b.pods = append(b.pods, &again)
		}
	}
	if s.Policy != "" {
		b.policy, b.scope = topology.Policy(s.Policy), hint.Scope(s.Scope)
		if b.policy == topology.None {
			b.scope = hint.ContainerScope
		}
	}
	pod.Containers = slices.Clone(pod.Containers)
	for _, r := range s.Requests {
		c := pod.Container(r.Container)
		if c == nil { // the second one of a split: the order of containers decides with which free resources each is placed
			first := slices.IndexFunc(pod.Containers, func(c workload.Container) bool { return c.Name+"-2" == r.Container })
			second := pod.Containers[first]
			second.Name = r.Container
			pod.Containers = slices.Insert(pod.Containers, first+1, second)
			c = &pod.Containers[first+1]
		}
		amount := int64(r.To)
		if r.Resource == "cpu" {
			amount *= 1000
		}
		c.Limits = replaced(c.Limits, workload.Resource(r.Resource), amount)
		c.Requests = replaced(c.Requests, workload.Resource(r.Resource), amount)
	}
	return b, pod
}

func replaced(q workload.Quantities, r workload.Resource, amount int64) workload.Quantities {
	out := workload.Quantities{}
	for name, n := range q {
		if name != r {
			out[name] = n
		}
	}
	if amount > 0 {
		out[r] = amount
	}
	return out
}

func (h *fixture) dryRun(t ledgertest.T, p workload.Pod) admission.Verdict {
	t.Helper()
	v, err := h.Admit(context.Background(), admission.Request{Pod: p, DryRun: true})
	must(t, err)
	return v
}
