package admission_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/berthd/berth/managers/admission"
	"github.com/berthd/berth/managers/cpu"
	"github.com/berthd/berth/managers/device"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/hint"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/ledger/ledgertest"
	"github.com/berthd/berth/managers/live"
	"github.com/berthd/berth/managers/machine/machinetest"
	"github.com/berthd/berth/managers/managerset"
	"github.com/berthd/berth/managers/memory"
	"github.com/berthd/berth/managers/numa"
	"github.com/berthd/berth/managers/topology"
	"github.com/berthd/berth/managers/workload"
)

// planningOn is an engine on a machine without reserved CPUs; without a shape it is that of newTwoNodes.
func planningOn(t ledgertest.T, shape string, policy topology.Policy, scope hint.Scope, planning topology.Planning,
	options map[string]string) *twoNodes {
	features := workload.Features{PodLevelResources: true, PodLevelResourceManagers: true}
	m := twoNodesOf()
	if shape != "" {
		m = machinetest.Build(shape)
	}
	return nodesOn(t, managerset.Config{
		CPU: cpu.Config{Policy: cpu.PolicyStatic, AllowUnreserved: true, Options: options,
			Features: cpu.Features{BetaOptions: true, AlphaOptions: true, Features: features, ResizeExclusiveCPUs: true}},
		Memory:   memory.Config{Policy: memory.PolicyStatic, AllowUnreserved: true, Features: features},
		Topology: topology.Config{Policy: policy, Scope: scope, Planning: planning}, Digest: "digest",
	}, m, ledgertest.NewJournal(), ledgertest.Open)
}

// withInit makes the first containers of a pod ordinary init containers.
func withInit(p workload.Pod, inits int) workload.Pod {
	for i := range inits {
		p.Containers[i].Role = workload.Init
	}
	return p
}

// TestInitDoesNotNailThePod are the reports of pods whose small init container decides where the pod is (kubernetes#123816,
// #94220, #110306, #112228): how many of them a machine takes, with each planning.
func TestInitDoesNotNailThePod(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		shape           string
		init, app       int64
		byContainer, by int
		options         map[string]string
	}{
		{"1s2n32c1t", 1, 20, 1, 2, nil},
		{"1s8n16c1t", 1, 10, 1, 8, nil},
		{"1s8n16c1t", 1, 6, 2, 16, nil},
		{"1s4n32c1t", 1, 9, 3, 12, nil},
		{"1s1n16c2t", 2, 2, 15, 16, map[string]string{"full-pcpus-only": "true"}},
	} {
		for planning, want := range map[topology.Planning]int{topology.ByContainer: row.byContainer, topology.ByPod: row.by} {
			t.Run(fmt.Sprintf("%s app %d %s", row.shape, row.app, planning), func(t *testing.T) {
				t.Parallel()
				h := planningOn(t, row.shape, topology.SingleNUMANode, hint.ContainerScope, planning, row.options)
				got := 0
				for ; got < want+2; got++ {
					p := withInit(podOf(fmt.Sprint(got), [2]int64{row.init, 1}, [2]int64{row.app, 1}), 1)
					for _, c := range p.Containers {
						c.Requests[workload.Memory] = 1 << 20
					}
					v, err := h.Admit(t.Context(), admission.Request{Pod: p})
					must(t, err)
					if v.Outcome != admission.Admitted {
						break
					}
				}
				if got != want {
					t.Errorf("%d pods, want %d", got, want)
				}
			})
		}
	}
}

// TestInitTakesDevicesOfItsPod: four NUMA nodes with four devices each; an init container with one device does not decide where three
// for the app are.
func TestInitTakesDevicesOfItsPod(t *testing.T) {
	t.Parallel()
	for planning, want := range map[topology.Planning]int{topology.ByContainer: 1, topology.ByPod: 4} {
		t.Run(string(planning), func(t *testing.T) {
			t.Parallel()
			h := planningOn(t, "1s4n8c1t", topology.SingleNUMANode, hint.ContainerScope, planning, nil)
			h.lists(device.Options{}, 0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3)
			got := 0
			for ; got < 6; got++ {
				p := withInit(podOf(fmt.Sprint(got), [2]int64{1, 1}, [2]int64{1, 1}), 1)
				p.Containers[0].Requests[nic], p.Containers[1].Requests[nic] = 1, 3 // also the limits
				v, err := h.Admit(t.Context(), admission.Request{Pod: p})
				must(t, err)
				if v.Outcome != admission.Admitted {
					break
				}
			}
			if got != want {
				t.Errorf("%d pods, want %d", got, want)
			}
		})
	}
}

// lists has the plugin of NICs list some, each near to one node.
func (h *twoNodes) lists(options device.Options, nodes ...int) {
	var nics []device.Device
	for i, node := range nodes {
		nics = append(nics, device.Device{ID: fmt.Sprintf("nic%02d", i), Healthy: true, Nodes: numa.Of(node), Topology: true})
	}
	h.inventory.Listed(h.inventory.Registered(nic, options, time.Unix(0, 0)), nics, time.Unix(0, 0))
}

// TestInitAsksPluginsOnce: below none of six apps are CPUs for the init container. What is tried calls no plugin, so that the limit for
// repeated calls is not reached.
func TestInitAsksPluginsOnce(t *testing.T) {
	t.Parallel()
	h := planningOn(t, "1s2n16c1t", topology.BestEffort, hint.ContainerScope, topology.ByPod, nil)
	h.lists(device.Options{Preferred: true}, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1)
	one := [2]int64{1, 1}
	p := withInit(podOf("p", one, one, one, one, one, one, one), 1)
	for i, c := range p.Containers {
		if c.Requests[nic] = 1; i > 0 {
			c.Requests[nic], c.Requests[workload.CPU] = 2, 1500 // also the limits
		}
	}
	h.admit(t, p)
}

// TestInitPluginCalls: the plugin is asked about the app before its init container, which is offered the devices of the app, and if these
// are too few also others, with those of the app as included ones. Devices are allocated in the pod's order.
func TestInitPluginCalls(t *testing.T) {
	t.Parallel()
	for inits, want := range map[int64][2][]string{
		1: {{"[nic00 nic01 nic02 nic03] [] 2", "[nic02 nic03] [] 1"}, {"[nic03]", "[nic02 nic03]"}},
		3: {{"[nic00 nic01 nic02 nic03] [] 2", "[nic00 nic01 nic02 nic03] [nic02 nic03] 3"},
			{"[nic01 nic02 nic03]", "[nic02 nic03]"}},
	} {
		h := planningOn(t, "1s2n4c1t", topology.SingleNUMANode, hint.ContainerScope, topology.ByPod, nil)
		h.lists(device.Options{Preferred: true}, 0, 0, 0, 0, 1)
		p := withInit(podOf("p", [2]int64{1, 1}, [2]int64{2, 1}), 1)
		p.Containers[0].Requests[nic], p.Containers[1].Requests[nic] = inits, 2 // also the limits
		h.admit(t, p)
		allocated := strings.Split(strings.ReplaceAll(strings.Join(h.plugins.calls, ";"), nic+" ", ""), ";")
		if !slices.Equal(h.plugins.offered, want[0]) || !slices.Equal(allocated, want[1]) {
			t.Errorf("init container with %d: the plugin was offered %q and has allocated %q, want %q", inits, h.plugins.offered, allocated, want)
		}
	}
}

// TestInitDevicesAreNear: node 1 has CPUs and devices for the init container. The device of the app, on node 0, is nearer to the pod, but
// not to the init container.
func TestInitDevicesAreNear(t *testing.T) {
	t.Parallel()
	h := planningOn(t, "1s2n16c1t", topology.SingleNUMANode, hint.ContainerScope, topology.ByPod, nil)
	h.admit(t, podOf("fill", [2]int64{16, 1}), podOf("other", [2]int64{12, 1}))
	_, _, err := h.Remove(t.Context(), "fill", admission.Scope{})
	must(t, err)
	h.lists(device.Options{}, 0, 1, 1)
	p := withInit(podOf("p", [2]int64{1, 1}, [2]int64{10, 1}), 1)
	p.Containers[0].Requests[nic], p.Containers[1].Requests[nic] = 2, 1
	v, err := h.Admit(t.Context(), admission.Request{Pod: p})
	must(t, err)
	if v.Outcome != admission.Admitted || nodesBy(h, v.Pod, "c0").Len() != 1 {
		t.Errorf("%v %s: the pod has %s", v.Outcome, v.Message, h.has("p"))
	}
}

// TestInitKeepsItsMemory: an init phase may run again, so nothing is given back when the app starts.
func TestInitKeepsItsMemory(t *testing.T) {
	t.Parallel()
	h := planningOn(t, "1s2n4c1t", topology.Restricted, hint.ContainerScope, topology.ByPod, nil)
	h.admit(t, withInit(podOf("a", [2]int64{3, 4}, [2]int64{2, 2}), 1))
	for _, c := range []string{"c0", "c1"} {
		_, err := h.PreStart(t.Context(), ledger.Owner{Pod: "a", Container: c}, "id-"+c, 0)
		must(t, err)
	}
	p, _ := h.ledger.View().Pod("a")
	if has := p.ClaimedMemory("memory"); has.Total() != 4<<30 {
		t.Errorf("the pod holds %d bytes, want 4 GiB", has.Total())
	}
}

// TestTrialStarts: when the containers of a pod have started, the kubelet has the memory again that only an init container had.
func TestTrialStarts(t *testing.T) {
	t.Parallel()
	for planning, want := range map[topology.Planning]uint64{topology.ByContainer: 2 << 30, topology.ByPod: 4 << 30} {
		h := planningOn(t, "1s2n4c1t", topology.Restricted, hint.ContainerScope, planning, nil)
		bus, policy := h.Managers(h.ledger.View())
		try := admission.NewTrial(h.Config, ledger.Empty(h.ledger.View().Rules()), bus, policy)
		pod := withInit(podOf("a", [2]int64{3, 4}, [2]int64{2, 2}), 1)
		v, err := try.Admit(t.Context(), &pod)
		must(t, err)
		must(t, try.Start(v.Pod))
		p, _ := try.View().Pod("a")
		if has := p.ClaimedMemory("memory"); has.Total() != want {
			t.Errorf("%s: the pod holds %d bytes, want %d", planning, has.Total(), want)
		}
	}
}

// TestWholeFallsBack: on two NUMA nodes of four CPUs, the app with six CPUs would leave the other one CPUs on node 1 and memory on
// node 0. In the pod's order both are on node 1.
func TestWholeFallsBack(t *testing.T) {
	t.Parallel()
	h := planningOn(t, "1s2n4c1t", topology.BestEffort, hint.ContainerScope, topology.ByPod, nil)
	v, err := h.Admit(t.Context(), admission.Request{Pod: withInit(podOf("p", [2]int64{2, 1}, [2]int64{6, 1}, [2]int64{2, 1}), 1)})
	must(t, err)
	want := "the pod is planned container by container, in its order: container c2 would have 2 NUMA nodes instead of 1"
	if v.Outcome != admission.Admitted || !notes(v.Trace, want) {
		t.Errorf("%v: the pod has %s: %+v", v.Outcome, h.has("p"), v.Trace.Steps)
	}
}

// guard refuses a pod whose container c2 has everything on one NUMA node.
type guard struct{}

func (guard) Name() string { return "guard" }

func (guard) Validate(_ context.Context, view *ledger.View, req hint.Request) error {
	p, _ := view.Pod(req.Pod.UID)
	nodes := p.MemoryNodes("c2")
	if c, ok := p.Claim("c2", "cpu"); ok && nodes.Union(view.Machine().NodesOf(c.CPUs.Set)).Len() == 1 {
		return errdefs.Refuse("Guarded", "container c2 is on one NUMA node")
	}
	return nil
}

// TestWholeIsKeptIfItsOrderIsRefused: a plan in the pod's order that would be better is not taken if the pod would be refused with it.
func TestWholeIsKeptIfItsOrderIsRefused(t *testing.T) {
	t.Parallel()
	h := planningOn(t, "1s2n4c1t", topology.BestEffort, hint.ContainerScope, topology.ByPod, nil)
	bus, policy := h.Managers(h.ledger.View())
	bus, err := hint.NewBus(nil, append(bus.Entries(), hint.Entry{Provider: guard{}, Mode: hint.Required}), nil)
	must(t, err)
	try := admission.NewTrial(h.Config, ledger.Empty(h.ledger.View().Rules()), bus, policy)
	pod := withInit(podOf("p", [2]int64{2, 1}, [2]int64{6, 1}, [2]int64{2, 1}), 1) // that of TestWholeFallsBack
	v, err := try.Admit(t.Context(), &pod)
	must(t, err)
	if v.Outcome != admission.Admitted || notes(v.Trace, "in its order") {
		t.Errorf("%v %s: %+v", v.Outcome, v.Message, v.Trace)
	}
}

// TestInOrderIfOnlyThatFits: on nodes of ten CPUs, of which five are free on node 1, an init container needs the NIC of node 1. With the
// apps first, the one of five CPUs is on node 0, and the one of nine fits nowhere.
func TestInOrderIfOnlyThatFits(t *testing.T) {
	t.Parallel()
	p := withInit(podOf("p", [2]int64{1, 1}, [2]int64{5, 1}, [2]int64{9, 1}), 1)
	p.Containers[0].Requests[nic] = 1 // also the limit
	for planning, says := range map[topology.Planning]bool{topology.ByContainer: false, topology.ByPod: true} {
		h := planningOn(t, "1s2n10c1t", topology.SingleNUMANode, hint.ContainerScope, planning, nil)
		h.lists(device.Options{}, 1)
		h.admit(t, podOf("fill", [2]int64{10, 1}), podOf("c", [2]int64{5, 1}))
		_, _, err := h.Remove(t.Context(), "fill", admission.Scope{})
		must(t, err)
		v, err := h.Admit(t.Context(), admission.Request{Pod: p})
		must(t, err)
		const why = "in its order: it does not fit with its app containers and sidecars first"
		if got := h.has("p"); got != "15@1 15-19@1 0-8@0" || notes(v.Trace, why) != says {
			t.Errorf("%s: the pod has %s: %+v", planning, got, v.Trace.Steps)
		}
	}
}

// TestInitBelowAWideApp: an app has nearly all memory of two nodes. The memory of its init container fits on neither of them, and is
// on both, where no merge would have it.
func TestInitBelowAWideApp(t *testing.T) {
	t.Parallel()
	p := withInit(podOf("a", [2]int64{1, 3}, [2]int64{10, 18}), 1)
	for planning, want := range map[topology.Planning]string{topology.ByContainer: "nothing", topology.ByPod: "8@0-1 0-9@0-1"} {
		h := planningOn(t, "", topology.Restricted, hint.ContainerScope, planning, nil)
		_, err := h.Admit(t.Context(), admission.Request{Pod: p})
		must(t, err)
		if got := h.has("a"); got != want {
			t.Errorf("%s: the pod has %s, want %s", planning, got, want)
		}
	}
}

// TestResizeWaitsForTheApp: while init containers may run on the CPUs of an app container, these do not change.
func TestResizeWaitsForTheApp(t *testing.T) {
	t.Parallel()
	h := planningOn(t, "", topology.SingleNUMANode, hint.ContainerScope, topology.ByPod, nil)
	h.admit(t, withInit(podOf("a", [2]int64{1, 1}, [2]int64{2, 2}, [2]int64{1, 1}), 1))
	resize := func(container string, cpus int64) live.Resized {
		t.Helper()
		q := workload.Quantities{workload.CPU: cpus * 1000}
		out, err := h.Resize(t.Context(), live.ResizeRequest{UID: "a", MaxDisruption: live.AnyDisruption,
			Changes: []workload.Change{{Container: container, Requests: q, Limits: q}}})
		must(t, err)
		return out
	}
	start := func(container string) {
		t.Helper()
		_, err := h.PreStart(t.Context(), ledger.Owner{Pod: "a", Container: container}, "id-"+container, 0)
		must(t, err)
	}
	if got := resize("c1", 3); got.Outcome != admission.Admitted {
		t.Errorf("before anything runs: %v %s", got.Outcome, got.Message)
	}
	start("c0")
	if got := resize("c1", 2); got.Outcome == admission.Admitted || !strings.Contains(got.Message, "init container c0 runs on CPUs") {
		t.Errorf("while the init container runs: %v %s", got.Outcome, got.Message)
	}
	if got := resize("c2", 2); got.Outcome != admission.Admitted {
		t.Errorf("a container on whose CPUs no init container runs: %v %s", got.Outcome, got.Message)
	}
	start("c1")
	if got := resize("c1", 2); got.Outcome != admission.Admitted {
		t.Errorf("when an app container runs: %v %s", got.Outcome, got.Message)
	}
}

// TestInitRunsOnItsPod: what an init container has, and what the trace says of it.
func TestInitRunsOnItsPod(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		pod  workload.Pod
		has  string
		says []string
	}{
		"below the app": {withInit(podOf("a", [2]int64{1, 1}, [2]int64{2, 2}), 1), "0@0 0-1@0",
			[]string{"init container c0 runs on CPUs 0 of app c1"}},
		"above it": {withInit(podOf("a", [2]int64{3, 4}, [2]int64{2, 2}), 1), "0-2@0 0-1@0",
			[]string{"init container c0 runs on CPUs 0-1 of app c1", "CPUs 2 are kept for init container c0",
				"2Gi of memory on NUMA nodes 0 is kept for init containers"}},
		"two of them": {withInit(podOf("a", [2]int64{3, 1}, [2]int64{3, 1}, [2]int64{2, 2}), 2), "0-2@0 0-2@0 0-1@0",
			[]string{"CPUs 2 are kept for init container c0", "CPUs 2 are kept for init container c1"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := planningOn(t, "1s2n4c1t", topology.Restricted, hint.ContainerScope, topology.ByPod, nil)
			v, err := h.Admit(t.Context(), admission.Request{Pod: row.pod})
			must(t, err)
			if v.Outcome != admission.Admitted || h.has("a") != row.has {
				t.Errorf("%v: the pod has %s, want %s: %s", v.Outcome, h.has("a"), row.has, v.Message)
			}
			for _, text := range row.says {
				if !notes(v.Trace, text) {
					t.Errorf("the trace lacks %q: %+v", text, v.Trace.Steps)
				}
			}
		})
	}
}

func notes(trace *ledger.Trace, text string) bool {
	for _, s := range trace.Steps {
		if s.Kind == ledger.StepNoted && strings.Contains(s.Text, text) {
			return true
		}
	}
	return false
}
