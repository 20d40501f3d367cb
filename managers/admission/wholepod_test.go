package admission_test

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/berthd/berth/managers/admission"
	"github.com/berthd/berth/managers/cpu"
	"github.com/berthd/berth/managers/cpuset"
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

// drawn is a random node and a pod with init containers for it.
type drawn struct {
	shape   string
	policy  topology.Policy
	scope   hint.Scope
	options map[string]string
	// prefers is whether the plugin of GPUs has a preference.
	prefers bool
	before  []workload.Pod
	// leaves are how many of the first pods before have ended.
	leaves int
	pod    workload.Pod
}

func drawContainers(r *rapid.T, name string, n int, sizes []int64, gpus bool) [][3]int64 {
	out := make([][3]int64, n)
	for i := range out {
		out[i] = [3]int64{rapid.SampledFrom(sizes).Draw(r, name+" cpus"), rapid.SampledFrom([]int64{1, 2, 3, 5, 8}).Draw(r, name+" gib"), 0}
		if gpus {
			out[i][2] = rapid.SampledFrom([]int64{0, 0, 0, 1, 2}).Draw(r, name+" gpus")
		}
	}
	return out
}

func podWith(uid string, containers [][3]int64) workload.Pod {
	amounts := make([][2]int64, len(containers))
	for i, c := range containers {
		amounts[i] = [2]int64{c[0], c[1]}
	}
	p := podOf(uid, amounts...)
	for i, c := range containers {
		if c[2] > 0 {
			p.Containers[i].Requests[gpu] = c[2] // also the limits
		}
	}
	return p
}

// shares makes a container run on the shared CPUs.
func shares(c *workload.Container) { c.Requests[workload.CPU] = 500 } // also the limit

func draw(r *rapid.T) drawn {
	d := drawn{
		shape: rapid.SampledFrom([]string{"1s2n4c1t", "1s2n3c2t", "2s4n3c1t", "1s1n8c2t"}).Draw(r, "shape"),
		policy: rapid.SampledFrom([]topology.Policy{topology.None, topology.BestEffort, topology.Restricted,
			topology.SingleNUMANode}).Draw(r, "policy"),
		scope: rapid.SampledFrom([]hint.Scope{hint.ContainerScope, hint.ContainerScope, hint.PodScope}).Draw(r, "scope"),
		options: rapid.SampledFrom([]map[string]string{nil, nil, {"full-pcpus-only": "true"}, {"distribute-cpus-across-numa": "true"},
			{"align-by-socket": "true"}, {"distribute-cpus-across-cores": "true"}}).Draw(r, "options"),
		prefers: rapid.Bool().Draw(r, "prefers"),
	}
	if d.scope == hint.PodScope || d.policy == topology.SingleNUMANode {
		delete(d.options, "align-by-socket")
	}
	sizes := []int64{1, 2, 3, 4, 6}
	if d.full() {
		sizes = []int64{2, 4, 6}
	}
	for i := range rapid.IntRange(0, 4).Draw(r, "before") {
		d.before = append(d.before, podWith(fmt.Sprintf("b%d", i), drawContainers(r, "before", 1, sizes, true)))
		if rapid.IntRange(0, 3).Draw(r, "before shares") == 0 {
			shares(&d.before[i].Containers[0])
		}
	}
	d.leaves = rapid.IntRange(0, len(d.before)).Draw(r, "leaves")
	early, apps := rapid.IntRange(1, 4).Draw(r, "early"), rapid.IntRange(1, 3).Draw(r, "apps")
	d.pod = podWith("p", drawContainers(r, "pod", early+apps, sizes, true))
	for i := range early {
		d.pod.Containers[i].Role = rapid.SampledFrom([]workload.Role{workload.Init, workload.Init, workload.Sidecar}).Draw(r, "role")
	}
	for i := range d.pod.Containers {
		if rapid.IntRange(0, 7).Draw(r, "shares") == 0 {
			shares(&d.pod.Containers[i])
		}
	}
	return d
}

func (d drawn) full() bool { return d.options["full-pcpus-only"] != "" }

// podLevel gives the pod resources as a whole: what it has at its busiest moment, and some more.
func (d *drawn) podLevel(r *rapid.T) {
	q := workload.Quantities{}
	for _, name := range []workload.Resource{workload.CPU, workload.Memory} {
		q[name] = workload.PodTotal(&d.pod, func(c *workload.Container) int64 { return c.Requests[name] })
	}
	q[workload.CPU] = (q[workload.CPU]+999)/1000*1000 + rapid.SampledFrom([]int64{0, 0, 1000}).Draw(r, "more")
	d.pod.Resources = &workload.Resources{Requests: q, Limits: q}
}

// admit admits the pod after the others, and returns its record; nil if it is rejected.
func (d drawn) admit(t ledgertest.T, planning topology.Planning, pod workload.Pod) (*twoNodes, *ledger.Pod) {
	h := planningOn(t, d.shape, d.policy, d.scope, planning, d.options)
	if d.prefers {
		var gpus []device.Device
		for i := range 4 {
			gpus = append(gpus, device.Device{ID: fmt.Sprint("g", i), Healthy: true, Nodes: numa.Of(i / 2), Topology: true})
		}
		h.inventory.Listed(h.inventory.Registered(gpu, device.Options{Preferred: true}, time.Unix(0, 0)), gpus, time.Unix(0, 0))
	}
	for _, p := range d.before {
		_, err := h.Admit(context.Background(), admission.Request{Pod: p})
		must(t, err)
	}
	for _, p := range d.before[:d.leaves] {
		if _, admitted := h.ledger.View().Pod(p.UID); admitted {
			_, _, err := h.Remove(context.Background(), p.UID, admission.Scope{})
			must(t, err)
		}
	}
	v, err := h.Admit(context.Background(), admission.Request{Pod: pod})
	must(t, err)
	if findings := ledger.Check(h.ledger.View()); len(findings) > 0 {
		t.Fatalf("%s: %v", planning, findings)
	}
	if v.Outcome != admission.Admitted {
		return h, nil
	}
	return h, v.Pod
}

// nodesBy are the NUMA nodes of all that a container has.
func nodesBy(h *twoNodes, p *ledger.Pod, container string) (nodes numa.Mask) {
	nodes = p.MemoryNodes(container)
	for _, c := range p.Claims {
		if c.Owner.Container != container {
			continue
		}
		if c.CPUs != nil {
			nodes = nodes.Union(h.ledger.View().Machine().NodesOf(c.CPUs.Set))
		}
		if c.Devices != nil {
			for _, d := range c.Devices.Devices {
				nodes = nodes.Union(d.Nodes)
			}
		}
	}
	return nodes
}

func devicesOf(p *ledger.Pod) int {
	ids := map[string]bool{}
	for _, c := range p.Claims {
		if c.Devices != nil {
			for _, id := range c.Devices.IDs() {
				ids[id] = true
			}
		}
	}
	return len(ids)
}

// TestWholeIsNeverWorse: on one state, planning by pod admits what planning by container admits, gives no app container more NUMA
// nodes, and holds nothing more. The ledger's check, after each admission, lets an init container share only with what runs after it.
func TestWholeIsNeverWorse(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(r *rapid.T) {
		d := draw(r)
		if rapid.IntRange(0, 4).Draw(r, "pod-level") == 0 {
			d.podLevel(r)
		}
		one, ordered := d.admit(r, topology.ByContainer, d.pod)
		two, whole := d.admit(r, topology.ByPod, d.pod)
		if ordered == nil {
			return
		}
		if whole == nil {
			r.Fatal("the pod is rejected, and container by container it is admitted")
		}
		for _, c := range d.pod.Containers {
			if had, has := nodesBy(one, ordered, c.Name), nodesBy(two, whole, c.Name); c.Role == workload.App && has.Len() > had.Len() {
				r.Errorf("container %s has nodes %s instead of %s", c.Name, has, had)
			}
		}
		if has, had := whole.HeldCPUs().Len(), ordered.HeldCPUs().Len(); has > had {
			r.Errorf("the pod holds %d CPUs instead of %d", has, had)
		}
		has, had := whole.ClaimedMemory("memory"), ordered.ClaimedMemory("memory")
		if has.Total() > had.Total() || devicesOf(whole) > devicesOf(ordered) {
			r.Errorf("the pod holds %d bytes and %d devices instead of %d and %d", has.Total(), devicesOf(whole), had.Total(),
				devicesOf(ordered))
		}
	})
}

// TestSmallInitIsFree: a pod whose init containers each fit below one container that runs after them for the pod's life is
// admitted where the pod without them is.
func TestSmallInitIsFree(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(r *rapid.T) {
		d := draw(r)
		isInit := func(c workload.Container) bool { return c.Role == workload.Init }
		bare := d.pod
		bare.Containers = slices.DeleteFunc(slices.Clone(d.pod.Containers), isInit)
		for i, c := range d.pod.Containers {
			if c.Role != workload.Init {
				continue
			}
			later := slices.DeleteFunc(slices.Clone(d.pod.Containers[i+1:]), isInit)
			below := later[rapid.IntRange(0, len(later)-1).Draw(r, "below")]
			q := workload.Quantities{}
			for name, n := range below.Requests {
				q[name] = min(n, c.Requests[name])
			}
			if c.Requests[workload.CPU] < 1000 { // exclusive CPUs are below exclusive ones
				q[workload.CPU] = below.Requests[workload.CPU]
			}
			q[workload.Memory] = min(below.Requests[workload.Memory], c.Requests[workload.Memory])
			maps.DeleteFunc(q, func(_ workload.Resource, n int64) bool { return n == 0 })
			d.pod.Containers[i].Requests, d.pod.Containers[i].Limits = q, q
		}
		_, without := d.admit(r, topology.ByPod, bare)
		_, with := d.admit(r, topology.ByPod, d.pod)
		if without != nil && with == nil {
			r.Fatal("the pod is rejected, and without its init containers it is admitted")
		}
	})
}

// TestNothingIsSharedAtOnce: containers of a pod that run at the same time have no CPU and no device in common, and together no more
// memory than the pod holds. When all of them have started, and start again, the pod holds what it held.
func TestNothingIsSharedAtOnce(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(r *rapid.T) {
		d := draw(r)
		h, record := d.admit(r, topology.ByPod, d.pod)
		if record == nil {
			return
		}
		for i, c := range d.pod.Containers {
			if c.Role == workload.Init {
				besides(r, h, record, func(at int) bool { return at == i || at < i && d.pod.Containers[at].Role == workload.Sidecar })
			}
		}
		besides(r, h, record, func(at int) bool { return d.pod.Containers[at].Role != workload.Init })
		for again := range 2 {
			for _, c := range d.pod.Containers {
				_, err := h.PreStart(context.Background(), ledger.Owner{Pod: "p", Container: c.Name}, fmt.Sprint(c.Name, again), 0)
				must(r, err)
			}
		}
		if after, _ := h.ledger.View().Pod("p"); h.wholeInOrder(record) == "" && !ledger.SameClaims(after.Claims, record.Claims) {
			r.Errorf("the pod has %v, and had %v", after.Claims, record.Claims)
		}
	})
}

// wholeInOrder returns why a pod was planned in its order; empty if it was not.
func (h *twoNodes) wholeInOrder(p *ledger.Pod) string {
	for _, s := range p.Trace.Steps {
		if strings.Contains(s.Text, "planned container by container") {
			return s.Text
		}
	}
	return ""
}

// besides checks containers that run at the same time.
func besides(r *rapid.T, h *twoNodes, p *ledger.Pod, runs func(at int) bool) {
	var all cpuset.Set
	devices, memory := map[string]string{}, map[numa.Mask]uint64{}
	names := p.Pod.Names()
	for _, c := range p.Claims {
		if at := names.At(c.Owner.Container); at < 0 || !runs(at) {
			continue
		}
		if c.CPUs != nil {
			if all.Overlaps(c.CPUs.Set) {
				r.Errorf("CPUs %s of %s are another container's: %s", all.Intersect(c.CPUs.Set), c.Owner, h.has("p"))
			}
			all = all.Union(c.CPUs.Set)
		}
		if c.Devices != nil {
			for _, id := range c.Devices.IDs() {
				if o := devices[id]; o != "" {
					r.Errorf("device %s of %s is that of %s", id, c.Owner.Container, o)
				}
				devices[id] = c.Owner.Container
			}
		}
		for _, b := range c.Memory {
			memory[b.Nodes] += b.Bytes
		}
	}
	for nodes, bytes := range memory {
		var holds uint64
		held := p.ClaimedMemory("memory")
		for id := range nodes.All() {
			holds += held[id]
		}
		if bytes > holds {
			r.Errorf("%d bytes on nodes %s, of which the pod holds %d", bytes, nodes, holds)
		}
	}
}
