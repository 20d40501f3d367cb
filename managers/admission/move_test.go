package admission_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/berthd/berth/managers/admission"
	"github.com/berthd/berth/managers/cpu"
	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/device"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/hint"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/ledger/history"
	"github.com/berthd/berth/managers/ledger/journal"
	"github.com/berthd/berth/managers/ledger/ledgertest"
	"github.com/berthd/berth/managers/live"
	"github.com/berthd/berth/managers/machine"
	"github.com/berthd/berth/managers/machine/machinetest"
	"github.com/berthd/berth/managers/managerset"
	"github.com/berthd/berth/managers/memory"
	"github.com/berthd/berth/managers/numa"
	"github.com/berthd/berth/managers/placement/placementtest"
	"github.com/berthd/berth/managers/topology"
	"github.com/berthd/berth/managers/workload"
)

const gi = int64(1) << 30

// mover is a kernel whose containers arrive when settled is nil.
type mover struct {
	refuses, settled error
	views            []*ledger.View // that were compared
	checked          []*ledger.Move
}

func (m *mover) CheckMove(_ context.Context, _ *ledger.View, _ string, move *ledger.Move) error {
	m.checked = append(m.checked, move)
	return m.refuses
}

func (m *mover) Settled(_ context.Context, v *ledger.View, _ string) error {
	m.views = append(m.views, v)
	return m.settled
}

// twoNodes is an engine on two NUMA nodes of 8 CPUs and 10 GiB each, with CPUs and memory pinned. CPU 0
// is reserved, and the GPUs g0 and g1 are near node 0, g2 and g3 near node 1.
type twoNodes struct {
	*live.Engine
	ledger    *ledger.Ledger
	journal   *ledgertest.Journal
	cgroups   *cgroups
	mover     *mover
	config    managerset.Config
	sets      *managerset.Managers
	inventory *device.Inventory
	plugins   *plugins
	// kernel has the containers of the pods.
	kernel placementtest.Kernel
}

// twoNodesOf builds the machine of twoNodes.
func twoNodesOf(options ...machinetest.Option) *machine.Topology {
	return machinetest.Build("2s1n8c1t", append([]machinetest.Option{
		machinetest.Memory(0, uint64(10*gi)), machinetest.Memory(1, uint64(10*gi)),
	}, options...)...)
}

func newTwoNodes(t ledgertest.T, scope hint.Scope) *twoNodes {
	return openTwoNodes(t, scope, ledgertest.NewJournal())
}

func openTwoNodes(t ledgertest.T, scope hint.Scope, j *ledgertest.Journal) *twoNodes {
	return nodesUnder(t, topology.SingleNUMANode, scope, j, ledgertest.Open)
}

func nodesUnder(t ledgertest.T, policy topology.Policy, scope hint.Scope, j *ledgertest.Journal,
	open func(ledgertest.T, journal.Options) (*ledger.Ledger, journal.Report)) *twoNodes {
	features := workload.Features{PodLevelResources: true, PodLevelResourceManagers: true}
	config := managerset.Config{
		CPU: cpu.Config{Policy: cpu.PolicyStatic, ReservedCPUs: cpuset.Of(0), Features: cpu.Features{
			BetaOptions: true, Features: features, ResizeExclusiveCPUs: true,
		}},
		Memory:   memory.Config{Policy: memory.PolicyStatic, AllowUnreserved: true, ResizePinned: true, Features: features},
		Topology: topology.Config{Policy: policy, Scope: scope}, Digest: "digest",
	}
	return nodesOn(t, config, twoNodesOf(), j, open)
}

// nodesOn is nodesUnder with another configuration and machine.
func nodesOn(t ledgertest.T, config managerset.Config, m *machine.Topology, j *ledgertest.Journal,
	open func(ledgertest.T, journal.Options) (*ledger.Ledger, journal.Report)) *twoNodes {
	set, err := managerset.New(config, m)
	must(t, err)
	recorder := history.New(history.Limits{Entries: 1000}, time.Now)
	l, _ := open(t, journal.Options{Journal: j, Rules: set.Rules, History: recorder})
	inventory := device.NewInventory(nil, time.Unix(0, 0))
	session := inventory.Registered(gpu, device.Options{}, time.Unix(0, 0))
	var gpus []device.Device
	for i := range 4 {
		gpus = append(gpus, device.Device{ID: "g" + strconv.Itoa(i), Healthy: true, Nodes: 1 << (i / 2), Topology: true})
	}
	inventory.Listed(session, gpus, time.Unix(0, 0))
	far := inventory.Registered(farNIC, device.Options{}, time.Unix(0, 0))
	inventory.Listed(far, []device.Device{{ID: "n2", Healthy: true, Nodes: 1 << 2, Topology: true}}, time.Unix(0, 0))
	served := &plugins{}
	sets, err := managerset.NewManagers(set, device.New(inventory, served), nil)
	must(t, err)
	h := &twoNodes{ledger: l, journal: j, mover: &mover{}, config: config, sets: sets, inventory: inventory, plugins: served}
	h.cgroups = &cgroups{
		ledger: l.View, pods: map[string]bool{}, containers: map[string]string{}, runs: map[string][]int{}, fail: map[string]error{},
	}
	ids := 0
	h.Engine = live.New(admission.New(admission.Config{
		Features: config.CPU.Features.Features, DeferWaits: true,
		Resources: admission.Resources{Started: time.Unix(1000, 0), Grace: time.Hour},
	}, admission.Parts{
		Ledger: l, History: recorder, CgroupManager: h.cgroups, Starter: &plugins{},
		Managers: func(v *ledger.View) (*hint.Bus, *topology.Manager) {
			if s := sets.On(v); s != nil {
				return s.Bus, s.Topology
			}
			return nil, nil
		},
		Environment: admission.Environment{
			Now:   func() time.Time { return time.Unix(1000, 0) },
			NewID: func() string { ids++; return "adm-" + strconv.Itoa(ids) },
		},
	}), live.Options{BytesPerSecond: 7, Mover: h.mover})
	return h
}

// farNIC is a resource of a device that is near to NUMA node 2, which the machine does not have at first.
const farNIC = "example.com/far-nic"

// podOf is a Guaranteed pod with containers of some CPUs and GiB each.
func podOf(uid string, containers ...[2]int64) workload.Pod {
	p := workload.Pod{UID: uid, Name: uid, Namespace: "default"}
	for i, c := range containers {
		q := workload.Quantities{workload.CPU: c[0] * 1000, workload.Memory: c[1] * gi}
		p.Containers = append(p.Containers, workload.Container{Name: "c" + strconv.Itoa(i), Requests: q, Limits: q})
	}
	return p
}

// asWhole makes a pod whose containers share the resources of the pod.
func asWhole(uid string, cpus, gib int64) workload.Pod {
	q := workload.Quantities{workload.CPU: cpus * 1000, workload.Memory: gib * gi}
	own := workload.Quantities{workload.CPU: 1000, workload.Memory: gi}
	return workload.Pod{UID: uid, Name: uid, Namespace: "default", Resources: &workload.Resources{Requests: q, Limits: q},
		Containers: []workload.Container{{Name: "c0", Requests: own, Limits: own}, {Name: "c1"}}}
}

func (h *twoNodes) admit(t ledgertest.T, pods ...workload.Pod) {
	t.Helper()
	for _, p := range pods {
		v, err := h.Admit(context.Background(), admission.Request{Pod: p})
		must(t, err)
		if v.Outcome != admission.Admitted {
			t.Fatalf("pod %s: %s", p.UID, v.Message)
		}
	}
}

// has describes the CPUs and memory nodes of a pod's containers.
func (h *twoNodes) has(uid string) string {
	var out []string
	pod, ok := h.ledger.View().Pod(uid)
	if !ok {
		return "nothing"
	}
	for _, c := range pod.Pod.Containers {
		set, _, _ := h.ledger.View().ContainerCPUs(ledger.Owner{Pod: uid, Container: c.Name})
		out = append(out, fmt.Sprintf("%s@%s", set, pod.MemoryNodes(c.Name)))
	}
	if pod.Move != nil {
		out = append(out, "moving")
	}
	return strings.Join(out, " ")
}

// advance makes all steps of a pod's move.
func (h *twoNodes) advance(t ledgertest.T, uid string) (steps []string) {
	t.Helper()
	for range 50 {
		m, err := h.Advance(context.Background(), uid, false)
		must(t, err)
		if m.Step != nil {
			steps = append(steps, m.Step.String()+" => "+h.has(uid))
		}
		if m.Done {
			return steps
		}
	}
	t.Fatalf("pod %s does not arrive: %q", uid, steps)
	return nil
}

func TestResizeAsAMove(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		scope   hint.Scope
		pods    []workload.Pod // the first one is resized
		to      workload.Pod
		most    live.Disruption
		outcome admission.Outcome
		text    string // of the message
		begin   string
		end     string
		// maxMove limits the move, and forbidden is how much the move would disturb that the limits forbid.
		maxMove, forbidden live.Disruption
	}{
		"CPUs and memory": {
			hint.ContainerScope, []workload.Pod{podOf("a", [2]int64{2, 2}), podOf("b", [2]int64{4, 1})}, podOf("a", [2]int64{6, 2}),
			live.AnyDisruption,
			admission.Admitted, "", "1-2,8-13@0-1 moving", "8-13@1", 0, 0,
		},
		"memory alone": {
			hint.ContainerScope, []workload.Pod{podOf("a", [2]int64{2, 2}), podOf("b", [2]int64{2, 6})}, podOf("a", [2]int64{2, 5}),
			live.MovesMemory,
			admission.Admitted, "", "1-2,8-9@0-1 moving", "8-9@1", 0, 0,
		},
		"one container of two": {
			hint.ContainerScope, []workload.Pod{podOf("a", [2]int64{2, 2}, [2]int64{2, 2}), podOf("b", [2]int64{2, 1})},
			podOf("a", [2]int64{2, 2}, [2]int64{6, 2}), live.AnyDisruption,
			admission.Admitted, "", "1-2@0 3-4,8-13@0-1 moving", "1-2@0 8-13@1", 0, 0,
		},
		"both containers, with the scope of pods": {
			hint.PodScope, []workload.Pod{podOf("a", [2]int64{2, 2}, [2]int64{2, 2}), podOf("b", [2]int64{2, 1})},
			podOf("a", [2]int64{2, 2}, [2]int64{6, 2}), live.AnyDisruption,
			admission.Admitted, "", "1-2,8-9@0-1 3-4,10-15@0-1 moving", "8-9@1 10-15@1", 0, 0,
		},
		"a pod as a whole, on its node": {
			hint.PodScope, []workload.Pod{asWhole("a", 2, 2)}, asWhole("a", 4, 2), live.MovesCPUs,
			admission.Admitted, "", "1@0 2-4@0 moving", "1@0 2-4@0", 0, 0,
		},
		"a pod as a whole, to another node": {
			hint.PodScope, []workload.Pod{asWhole("a", 2, 2), podOf("b", [2]int64{4, 1})}, asWhole("a", 4, 2), live.AnyDisruption,
			admission.Admitted, "", "1,8@0-1 2,9-11@0-1 moving", "8@1 9-11@1", 0, 0,
		},
		"not without the right to": {
			hint.ContainerScope, []workload.Pod{podOf("a", [2]int64{2, 2}), podOf("b", [2]int64{4, 1})}, podOf("a", [2]int64{6, 2}),
			live.MovesCPUs,
			admission.Deferred, "and 1 are free there; max_disruption does not allow the move", "1-2@0", "1-2@0", 0, live.MovesMemory,
		},
		"nor without any": {
			hint.ContainerScope, []workload.Pod{podOf("a", [2]int64{2, 2}), podOf("b", [2]int64{4, 1})}, podOf("a", [2]int64{6, 2}),
			live.NoDisruption,
			admission.Deferred, "needs 4 more CPUs on NUMA nodes 0, and 1 are free there; max_disruption does not allow the move",
			"1-2@0", "1-2@0", 0, live.MovesMemory,
		},
		"in place only": {
			hint.ContainerScope, []workload.Pod{podOf("a", [2]int64{2, 2}), podOf("b", [2]int64{4, 1})}, podOf("a", [2]int64{6, 2}),
			live.AnyDisruption,
			admission.Deferred, "and 1 are free there; max_move_disruption does not allow the move", "1-2@0", "1-2@0",
			live.NoDisruption, live.MovesMemory,
		},
		"in place only, and no other node has enough": {
			hint.ContainerScope, []workload.Pod{podOf("a", [2]int64{2, 2})}, podOf("a", [2]int64{9, 2}), live.AnyDisruption,
			admission.Rejected, "which have 7 allocatable CPUs, and now requests 9", "1-2@0", "1-2@0", live.NoDisruption, 0,
		},
		"a move of memory is allowed": {
			hint.ContainerScope, []workload.Pod{podOf("a", [2]int64{2, 2}), podOf("b", [2]int64{4, 1})}, podOf("a", [2]int64{6, 2}),
			live.AnyDisruption,
			admission.Admitted, "", "1-2,8-13@0-1 moving", "8-13@1", live.MovesMemory, 0,
		},
		"no other node has enough now": {
			hint.ContainerScope, []workload.Pod{podOf("a", [2]int64{2, 2}), podOf("b", [2]int64{4, 1}), podOf("c", [2]int64{6, 1})},
			podOf("a", [2]int64{6, 2}), live.AnyDisruption,
			admission.Deferred, "other NUMA nodes cannot serve it", "1-2@0", "1-2@0", 0, 0,
		},
		"no node has ever enough": {
			hint.ContainerScope, []workload.Pod{podOf("a", [2]int64{2, 2})}, podOf("a", [2]int64{9, 2}), live.AnyDisruption,
			admission.Rejected, "other NUMA nodes cannot serve it", "1-2@0", "1-2@0", 0, 0,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newTwoNodes(t, row.scope)
			h.admit(t, row.pods...)
			sized := func(p workload.Pod) live.ResizeRequest {
				req := resizeTo(p, false)
				if p.Resources != nil {
					req.Changes = append(req.Changes, workload.Change{Requests: p.Resources.Requests, Limits: p.Resources.Limits})
				}
				return req
			}
			req := sized(row.to)
			req.DryRun, req.MaxDisruption, req.MaxMove = true, row.most, row.maxMove
			dry, err := h.Resize(t.Context(), req)
			must(t, err)
			if h.has("a") != strings.TrimSuffix(row.begin, " moving") && row.outcome != admission.Admitted {
				t.Errorf("a dry run: has %s", h.has("a"))
			}
			req.DryRun = false
			got, err := h.Resize(t.Context(), req)
			must(t, err)
			if got.Outcome != row.outcome || dry.Outcome != row.outcome || !strings.Contains(got.Message, row.text) ||
				got.Message != dry.Message {
				t.Errorf("%v, %v: %s", got.Outcome, dry.Outcome, got.Message)
			}
			if got.MoveDisruption != row.forbidden || dry.MoveDisruption != row.forbidden {
				t.Errorf("the move that is not allowed: %s, want %s", got.MoveDisruption, row.forbidden)
			}
			if h.has("a") != row.begin || (got.Plan != nil) != (row.outcome == admission.Admitted) {
				t.Errorf("begin: has %s, plan %+v", h.has("a"), got.Plan)
			}
			if row.outcome == admission.Admitted {
				pod, _ := h.ledger.View().Pod("a")
				if pod.Move == nil || pod.Move.BytesPerSecond != 7 || len(h.mover.views) > 0 {
					t.Errorf("the move %+v", pod.Move)
				}
				// Another resize waits until the move has ended.
				more := row.to
				more.Containers = slices.Clone(more.Containers)
				more.Containers[0].Requests, more.Containers[0].Limits = maps.Clone(more.Containers[0].Requests),
					maps.Clone(more.Containers[0].Limits)
				more.Containers[0].Requests[workload.Memory]++
				more.Containers[0].Limits[workload.Memory]++
				if v, err := h.Resize(t.Context(), sized(more)); err != nil || v.Outcome != admission.Deferred ||
					!strings.Contains(v.Message, "is moving") {
					t.Errorf("another resize: %+v, %v", v.Verdict, err)
				}
			}
			steps := h.advance(t, "a")
			if h.has("a") != row.end {
				t.Errorf("end: has %s after %q", h.has("a"), steps)
			}
			ledgertest.Check(t, h.ledger)
		})
	}
}

// A container keeps what it has until its memory has moved, and a step is made after the one before it
// was carried out.
func TestMoveStepByStep(t *testing.T) {
	t.Parallel()
	h := newTwoNodes(t, hint.ContainerScope)
	h.admit(t, podOf("a", [2]int64{2, 2}), podOf("b", [2]int64{4, 1}))
	_, err := h.Resize(t.Context(), resizeTo(podOf("a", [2]int64{6, 2}), false))
	must(t, err)
	h.mover.settled = errdefs.Unavailablef("container a/c0 is on CPUs 1-2")
	before := h.ledger.View()
	if _, err := h.Advance(t.Context(), "a", false); class(t, err) != errdefs.Unavailable || h.ledger.View() != before {
		t.Errorf("it has not arrived: %v", err)
	}
	h.mover.settled = nil
	want := []string{
		"migrate a/c0: at most 2147483648 bytes to NUMA nodes 1 => 1-2,8-13@1 moving",
		"narrow a/c0: CPUs 1-2,8-13 to 8-13 memory of NUMA nodes 0-1 to 1 => 8-13@1",
	}
	if got := h.advance(t, "a"); fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("got %q", got)
	}
	if m, err := h.Advance(t.Context(), "a", false); err != nil || !m.Done || m.Step != nil {
		t.Errorf("after the end: %+v, %v", m, err)
	}
	if m, err := h.Advance(t.Context(), "none", false); err != nil || !m.Done {
		t.Errorf("an unknown pod: %+v, %v", m, err)
	}
}

// Memory of containers that cannot be observed does not move.
func TestMoveOfUnobservedMemory(t *testing.T) {
	t.Parallel()
	h := newTwoNodes(t, hint.ContainerScope)
	h.admit(t, podOf("a", [2]int64{2, 2}), podOf("b", [2]int64{4, 1}))
	h.mover.refuses = errdefs.Refuse(errdefs.Infeasible, "its cgroup is not known")
	got, err := h.Resize(t.Context(), resizeTo(podOf("a", [2]int64{6, 2}), false))
	if err != nil || got.Outcome != admission.Rejected || got.Message != "its cgroup is not known" || h.has("a") != "1-2@0" {
		t.Errorf("%+v, %v", got.Verdict, err)
	}
	// No limit of the request would help.
	req := resizeTo(podOf("a", [2]int64{6, 2}), false)
	req.MaxMove = live.NoDisruption
	got, err = h.Resize(t.Context(), req)
	if err != nil || got.Outcome != admission.Deferred || strings.Contains(got.Message, "max_move_disruption") ||
		got.MoveDisruption != live.AnyDisruption {
		t.Errorf("in place only: %+v, %v", got, err)
	}
}

// Devices stay, and so do CPUs near them.
func TestMoveStaysNearDevices(t *testing.T) {
	t.Parallel()
	h := newTwoNodes(t, hint.ContainerScope)
	near := podOf("a", [2]int64{2, 2})
	near.Containers[0].Limits[gpu], near.Containers[0].Requests[gpu] = 1, 1
	h.admit(t, near, podOf("b", [2]int64{4, 1}))
	to := podOf("a", [2]int64{6, 2})
	got, err := h.Resize(t.Context(), resizeTo(to, false))
	if err != nil || got.Outcome != admission.Deferred || h.has("a") != "1-2@0" {
		t.Errorf("%+v, %v, has %s", got.Verdict, err, h.has("a"))
	}
}

// TestMoveAfterCrashes fails each commit of a move, before or after it was written, and continues with
// a new engine on what was written.
func TestMoveAfterCrashes(t *testing.T) {
	t.Parallel()
	for commit := range 3 {
		for _, lost := range []bool{false, true} {
			t.Run(fmt.Sprintf("commit %d, written %v", commit+1, lost), func(t *testing.T) {
				t.Parallel()
				h := newTwoNodes(t, hint.ContainerScope)
				h.admit(t, podOf("a", [2]int64{2, 2}), podOf("b", [2]int64{4, 1}))
				fail := h.journal.FailNext
				if lost {
					fail = h.journal.LoseNext
				}
				crash := errors.New("crash")
				fail(commit+1, crash)
				resize := func(h *twoNodes) error {
					_, err := h.Resize(t.Context(), resizeTo(podOf("a", [2]int64{6, 2}), false))
					for i := 0; err == nil && i < 10; i++ {
						var m live.Moved
						if m, err = h.Advance(t.Context(), "a", false); m.Done {
							break
						}
					}
					return err
				}
				if err := resize(h); err == nil {
					t.Fatal("nothing failed")
				}
				again := openTwoNodes(t, hint.ContainerScope, h.journal.Reopen())
				if commit == 0 && !lost {
					if again.has("a") != "1-2@0" {
						t.Fatalf("after a crash before the first commit: %s", again.has("a"))
					}
					must(t, resize(again))
				} else {
					again.advance(t, "a")
				}
				if again.has("a") != "8-13@1" {
					t.Errorf("has %s", again.has("a"))
				}
				ledgertest.Check(t, again.ledger)
			})
		}
	}
}

// A move that no order of steps can make now is refused, and nothing changes.
func TestMoveWithoutRoom(t *testing.T) {
	t.Parallel()
	h := newTwoNodes(t, hint.ContainerScope)
	h.admit(t, podOf("a", [2]int64{2, 2}), podOf("b", [2]int64{4, 1}))
	_, err := h.Resize(t.Context(), resizeTo(podOf("a", [2]int64{6, 2}), false))
	must(t, err)
	pod, _ := h.ledger.View().Pod("a")
	lost := *pod
	move := *pod.Move
	move.To = append([]ledger.Claim{}, move.To...)
	for i := range move.To {
		if move.To[i].CPUs != nil {
			move.To[i].CPUs = &ledger.CPUs{Set: cpuset.Of(3, 4, 5, 6, 1, 2), Use: ledger.CPUExclusive} // those of pod b
		}
	}
	lost.Move = &move
	_, err = h.ledger.Update(t.Context(), func(d *ledger.Draft) error { d.PutPod(&lost); return nil })
	must(t, err)
	if _, err := h.Advance(t.Context(), "a", false); class(t, err) != errdefs.Refused ||
		!strings.Contains(err.Error(), "waits for CPUs 3-6") {
		t.Errorf("%v", err)
	}
}

// A resize that moves a pod is undone by a resize back, at each of the move's steps: the pod has what it had.
func TestResizeBackReversesMove(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		name       string
		scope      hint.Scope
		was, wants workload.Pod
		// steps are those before the last one.
		steps int
	}{
		{"a container", hint.ContainerScope, podOf("a", [2]int64{2, 2}), podOf("a", [2]int64{6, 3}), 2},
		{"a pod", hint.PodScope, podOf("a", [2]int64{1, 2}, [2]int64{1, 1}), podOf("a", [2]int64{3, 2}, [2]int64{3, 3}), 4},
	} {
		for steps := range row.steps {
			t.Run(fmt.Sprint(row.name, " after ", steps, " steps"), func(t *testing.T) {
				t.Parallel()
				h := newTwoNodes(t, row.scope)
				h.admit(t, row.was, podOf("b", [2]int64{4, 1}))
				had := h.has("a")
				r, err := h.Resize(t.Context(), resizeTo(row.wants, false))
				must(t, err)
				if r.Plan == nil || r.Disruption != live.MovesMemory {
					t.Fatalf("no move: %+v", r)
				}
				for range steps {
					_, err := h.Advance(t.Context(), "a", false)
					must(t, err)
				}
				other, err := h.Resize(t.Context(), resizeTo(podOf("a", [2]int64{7, 2}), false))
				must(t, err)
				if other.Outcome != admission.Deferred {
					t.Errorf("another resize of a moving pod: %+v", other)
				}
				back, err := h.Resize(t.Context(), resizeTo(row.was, false))
				must(t, err)
				if back.Outcome != admission.Admitted {
					t.Fatalf("%s", back.Message)
				}
				h.checkMove(t, "a")
				again, err := h.Resize(t.Context(), resizeTo(row.wants, false))
				must(t, err)
				if again.Outcome != admission.Deferred {
					t.Errorf("a move that is reversed is reversed again: %+v", again)
				}
				for moved := (live.Moved{}); !moved.Done; {
					moved, err = h.Advance(t.Context(), "a", false)
					must(t, err)
					h.checkMove(t, "a")
				}
				pod, _ := h.ledger.View().Pod("a")
				if pod.Pod.Containers[0].Requests[workload.CPU] != row.was.Containers[0].Requests[workload.CPU] {
					t.Errorf("requests %v", pod.Pod.Containers[0].Requests)
				}
				if h.has("a") != had {
					t.Errorf("has %s, had %s", h.has("a"), had)
				}
				ledgertest.Check(t, h.ledger)
			})
		}
	}
}

// Huge pages move with the rest of the memory, count in what moves, and are compared with the kernel's before that.
func TestMoveOfHugePages(t *testing.T) {
	t.Parallel()
	const pages, mi = "hugepages-2Mi", int64(1) << 20
	pod := func(uid string, cpus int64) workload.Pod {
		p := movable(podOf(uid, [2]int64{cpus, 2}), workload.MovableAnywhere)
		p.Containers[0].Requests[pages], p.Containers[0].Limits[pages] = 16*mi, 16*mi
		return p
	}
	withPages := []machinetest.Option{machinetest.HugePages(0, 2048, 32), machinetest.HugePages(1, 2048, 32)}
	for name, move := range map[string]func(t *testing.T, h *twoNodes) (bytes uint64){
		"resize": func(t *testing.T, h *twoNodes) uint64 {
			got, err := h.Resize(t.Context(), resizeTo(pod("a", 6), false))
			must(t, err)
			if got.Outcome != admission.Admitted || got.Plan == nil {
				t.Fatalf("%+v", got.Verdict)
			}
			h.advance(t, "a")
			return got.Plan.Cost.Bytes
		},
		"defragmentation": func(t *testing.T, h *twoNodes) uint64 {
			h.admit(t, podOf("c", [2]int64{6, 1}))
			plan, err := h.PlanDefragment(t.Context(), live.DefragmentRequest{Pod: podOf("new", [2]int64{3, 1}), MaxMoves: 1})
			must(t, err)
			if len(plan.Moves) != 1 || plan.Moves[0].UID != "a" {
				t.Fatalf("moves %v: %s", plan.Moves, plan.Why)
			}
			h.carryOut(t, plan.Moves)
			return plan.Moves[0].Plan.Cost.Bytes
		},
		"replacement": func(t *testing.T, h *twoNodes) uint64 {
			h.become(t, twoNodesOf(append(slices.Clone(withPages), machinetest.Offline("1,2,7"))...))
			losses := live.Losses(h.ledger.View())
			if len(losses) != 1 {
				t.Fatalf("losses %v", losses)
			}
			plan, err := h.PlanReplacement(t.Context(), losses[0])
			must(t, err)
			must(t, h.Relocate(t.Context(), plan, 0))
			h.advance(t, "a")
			return plan.Plan.Cost.Bytes
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := changing(t, topology.SingleNUMANode, hint.ContainerScope)
			h.become(t, twoNodesOf(withPages...))
			h.admit(t, pod("a", 2), podOf("b", [2]int64{4, 1}))
			if bytes := move(t, h); bytes != uint64(2*gi+16*mi) {
				t.Errorf("%d bytes move", bytes)
			}
			have, _ := h.ledger.View().Pod("a")
			if c, ok := have.Claim("c0", pages); !ok || c.Memory[0].Nodes != numa.Of(1) || have.Move != nil {
				t.Errorf("it has %+v, moves %v", c, have.Move)
			}
			if len(h.mover.checked) == 0 || !slices.ContainsFunc(h.mover.checked[0].To, func(c ledger.Claim) bool {
				return c.Resource == pages && c.Memory[0].Nodes == numa.Of(1)
			}) {
				t.Errorf("compared: %+v", h.mover.checked)
			}
		})
	}
}
