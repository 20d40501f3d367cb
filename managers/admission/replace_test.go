package admission_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/berthd/berth/managers/admission"
	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/hint"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/ledger/check"
	"github.com/berthd/berth/managers/ledger/ledgertest"
	"github.com/berthd/berth/managers/live"
	"github.com/berthd/berth/managers/machine"
	"github.com/berthd/berth/managers/machine/machinetest"
	"github.com/berthd/berth/managers/managerset"
	"github.com/berthd/berth/managers/numa"
	"github.com/berthd/berth/managers/topology"
	"github.com/berthd/berth/managers/workload"
)

// changing is twoNodes on a machine that changes.
func changing(t ledgertest.T, policy topology.Policy, scope hint.Scope) *twoNodes {
	return nodesUnder(t, policy, scope, ledgertest.NewJournal(), ledgertest.OpenChanging)
}

// become changes the machine, as berthd does.
func (h *twoNodes) become(t ledgertest.T, m *machine.Topology) {
	t.Helper()
	set, err := managerset.New(h.config, m)
	must(t, err)
	must(t, h.sets.Stage(set))
	_, err = h.ChangeMachine(context.Background(), set.Rules)
	must(t, err)
	h.sets.Activate(h.ledger.View().Rules())
}

// replace begins and ends all moves of pods that have lost something, and returns the refusals by pod. Each step is
// compared with the invariants.
func (h *twoNodes) replace(t ledgertest.T) (refused map[string]string) {
	t.Helper()
	refused = map[string]string{}
	for {
		losses := slices.DeleteFunc(live.Losses(h.ledger.View()), func(l live.Loss) bool { return refused[l.UID] != "" })
		if len(losses) == 0 {
			return refused
		}
		l := losses[0]
		before, near, had := h.online(l.UID), h.nearDevices(l.UID), h.exclusive(l.UID)
		plan, err := h.PlanReplacement(context.Background(), l)
		if err == nil {
			err = h.Relocate(context.Background(), plan, 0)
		}
		if err != nil {
			if errdefs.ClassOf(err) != errdefs.Refused {
				t.Fatalf("replace what %s has lost: %v", l.UID, err)
			}
			refused[l.UID] = err.Error()
			continue
		}
		pod, _ := h.ledger.View().Pod(l.UID)
		if pod.Move == nil || pod.Move.Reason != l.String() {
			t.Fatalf("the move %+v for %s", pod.Move, l)
		}
		for done := false; !done; {
			h.checkOwners(t)
			for name, n := range h.online(l.UID) {
				if c := pod.Pod.Container(name); n < min(before[name], int(c.Requests[workload.CPU]/1000)) {
					t.Fatalf("container %s of pod %s has %d CPUs online, and had %d", name, l.UID, n, before[name])
				}
			}
			m, err := h.Advance(context.Background(), l.UID, false)
			must(t, err)
			done = m.Done
		}
		h.checkOwners(t)
		if has := h.exclusive(l.UID); has > had {
			t.Fatalf("pod %s had %d CPUs, and has %d: %s", l.UID, had, has, h.has(l.UID))
		}
		for name := range near {
			if !h.nearDevices(l.UID)[name] {
				t.Fatalf("container %s of pod %s was near its devices, and is not: %s", name, l.UID, h.has(l.UID))
			}
		}
	}
}

// exclusive counts the CPUs that the containers of a pod have together.
func (h *twoNodes) exclusive(uid string) int {
	var all cpuset.Set
	pod, _ := h.ledger.View().Pod(uid)
	for _, c := range pod.Claims {
		if c.CPUs != nil {
			all = all.Union(c.CPUs.Set)
		}
	}
	return all.Len()
}

// nearDevices returns the containers with CPUs and memory on the NUMA nodes of their devices only.
func (h *twoNodes) nearDevices(uid string) map[string]bool {
	devices, has := map[string]numa.Mask{}, map[string]numa.Mask{}
	pod, _ := h.ledger.View().Pod(uid)
	for _, c := range pod.Claims {
		name := c.Owner.Container
		switch {
		case c.Devices != nil:
			for _, d := range c.Devices.Devices {
				devices[name] = devices[name].Union(d.Nodes)
			}
		case c.CPUs != nil: // those of the whole machine: offline ones have no node
			has[name] = has[name].Union(twoNodesOf().NodesOf(c.CPUs.Set))
		}
		for _, b := range c.Memory {
			has[name] = has[name].Union(b.Nodes)
		}
	}
	near := map[string]bool{}
	for name, nodes := range devices {
		if has[name].IsSubsetOf(nodes) {
			near[name] = true
		}
	}
	return near
}

// online counts the CPUs online of a pod's containers.
func (h *twoNodes) online(uid string) map[string]int {
	view, out := h.ledger.View(), map[string]int{}
	pod, ok := view.Pod(uid)
	if !ok {
		return out
	}
	for _, c := range pod.Pod.Containers {
		set, _, _ := view.ContainerCPUs(ledger.Owner{Pod: uid, Container: c.Name})
		out[c.Name] = set.Intersect(view.Machine().CPUs()).Len()
	}
	return out
}

// checkOwners finds CPUs and memory that two pods have, and pods with fewer CPUs than they request. The running containers
// follow the ledger, and none is ever on exclusive CPUs of another one.
func (h *twoNodes) checkOwners(t ledgertest.T) {
	t.Helper()
	view := h.ledger.View()
	for _, f := range check.View(view) {
		if f.Kind == check.Structural {
			t.Fatalf("%s", f.Text)
		}
	}
	for p := range view.Pods() {
		for _, c := range p.Pod.Containers {
			set, _, _ := view.ContainerCPUs(ledger.Owner{Pod: p.UID(), Container: c.Name})
			if want := int(c.Requests[workload.CPU] / 1000); set.Len() < want {
				t.Fatalf("container %s of pod %s has CPUs %s, and requests %d", c.Name, p.UID(), set, want)
			}
		}
	}
	h.kernel.Follow(t, view)
}

func TestReplace(t *testing.T) {
	t.Parallel()
	less := func(node int, gib int64) *machine.Topology {
		return twoNodesOf(machinetest.Memory(node, uint64(gib*gi)))
	}
	without := func(cpus string) *machine.Topology { return twoNodesOf(machinetest.Offline(cpus)) }
	pod := func(uid string, cpus, gib int64) workload.Pod { return podOf(uid, [2]int64{cpus, gib}) }
	one, err := machine.New(machinetest.Describe("1s1n8c1t", machinetest.Memory(0, uint64(10*gi))))
	must(t, err)
	for name, row := range map[string]struct {
		scope   hint.Scope
		pods    []workload.Pod
		machine *machine.Topology
		has     []string // what the pods have then
		refused map[string]string
	}{
		"a CPU": {hint.ContainerScope, []workload.Pod{pod("a", 2, 2)}, without("2"), []string{"1,3@0"}, nil},
		"all CPUs of a pod": {hint.ContainerScope, []workload.Pod{pod("a", 2, 2), pod("b", 2, 2)}, without("1-2"),
			[]string{"5-6@0", "3-4@0"}, nil},
		"nothing of the pod": {hint.ContainerScope, []workload.Pod{pod("a", 2, 2)}, without("7"), []string{"1-2@0"}, nil},
		"its node is full": {hint.ContainerScope, []workload.Pod{pod("a", 3, 2), pod("b", 4, 2)}, without("2"),
			[]string{"8-10@1", "4-7@0"}, nil},
		"none is free": {hint.ContainerScope, []workload.Pod{pod("a", 3, 2), pod("b", 4, 2), pod("c", 6, 2)}, without("2,4"),
			[]string{"1-3@0", "4-7@0", "8-13@1"}, map[string]string{"a": "", "b": ""}},
		"with the scope of pods": {hint.PodScope, []workload.Pod{podOf("a", [2]int64{2, 2}, [2]int64{2, 2}), pod("b", 3, 1)},
			without("3"), []string{"8-9@1 10-11@1", "5-7@0"}, nil},
		"a pod as a whole":    {hint.PodScope, []workload.Pod{asWhole("a", 2, 2)}, without("2"), []string{"1@0 3@0"}, nil},
		"a pod with a device": {hint.ContainerScope, []workload.Pod{onGPU(pod("a", 2, 2))}, without("2"), []string{"1,3@0"}, nil},
		"far from its device": {hint.ContainerScope, []workload.Pod{onGPU(pod("a", 3, 2)), pod("b", 4, 2)}, without("2"),
			[]string{"1-3@0", "4-7@0"}, map[string]string{"a": ""}},
		"memory of a node": {hint.ContainerScope, []workload.Pod{pod("a", 1, 3), pod("b", 1, 6)}, less(0, 7),
			[]string{"8@1", "2@0"}, nil},
		"memory, and none is free": {hint.ContainerScope, []workload.Pod{pod("a", 1, 3), pod("b", 1, 6), pod("c", 7, 8)}, less(0, 7),
			[]string{"1@0", "2@0", "8-14@1"}, map[string]string{"a": "", "b": ""}},
		"a node": {hint.ContainerScope, []workload.Pod{pod("a", 5, 3), pod("b", 3, 3)}, one,
			[]string{"1-5@0", "8-10@1"}, map[string]string{"b": ""}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := changing(t, topology.SingleNUMANode, row.scope)
			h.admit(t, row.pods...)
			h.become(t, row.machine)
			got := h.replace(t)
			for uid, text := range row.refused {
				if why, ok := got[uid]; !ok || !strings.Contains(why, text) {
					t.Errorf("pod %s: %q, want %q", uid, why, text)
				}
			}
			for uid, why := range got {
				if _, ok := row.refused[uid]; !ok {
					t.Errorf("pod %s: %s", uid, why)
				}
			}
			for i, p := range row.pods {
				if has := h.has(p.UID); has != row.has[i] {
					t.Errorf("pod %s has %s, want %s", p.UID, has, row.has[i])
				}
			}
			if len(row.refused) == 0 {
				if f := check.View(h.ledger.View()); len(f) > 0 {
					t.Errorf("findings %v", f)
				}
			}
		})
	}
}

// TestReplaceNearDevices: where the topology policy would let an admission take CPUs far from a device, a pod
// that has CPUs near it stays there.
func TestReplaceNearDevices(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		offline string
		has     string
		refused bool
	}{
		"near ones are free":    {"2", "1,3-4@0", false},
		"only far ones are":     {"4-7", "1-3@0", false},
		"only far ones, for it": {"2,4-7", "1-3@0", true},
		"none of its own":       {"1-3", "4-6@0", false},
	} {
		for _, policy := range []topology.Policy{topology.None, topology.BestEffort} {
			t.Run(name+" with "+string(policy), func(t *testing.T) {
				t.Parallel()
				h := changing(t, policy, hint.ContainerScope)
				h.admit(t, onGPU(podOf("a", [2]int64{3, 2})))
				h.become(t, twoNodesOf(machinetest.Offline(row.offline)))
				if got := h.replace(t); (len(got) > 0) != row.refused {
					t.Errorf("refused %v", got)
				}
				if has := h.has("a"); has != row.has {
					t.Errorf("it has %s", has)
				}
			})
		}
	}
}

// TestReplaceOfInitContainers: an init container and the containers after it share CPUs before and after a replacement, so
// the pod never has more CPUs than it requests.
func TestReplaceOfInitContainers(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		init, app int64
		others    []workload.Pod
		offline   string
		has       string
	}{
		"the same CPUs":           {2, 2, nil, "2", "1,3@0 1,3@0"},
		"both are lost":           {2, 2, nil, "1-2", "3-4@0 3-4@0"},
		"the init container more": {3, 2, nil, "1", "2-4@0 2-3@0"},
		"the app container more":  {1, 3, nil, "1", "4@0 2-4@0"},
		"one CPU is free": {2, 2, []workload.Pod{podOf("b", [2]int64{4, 1}), podOf("c", [2]int64{8, 1})}, "2",
			"1,7@0 1,7@0"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := changing(t, topology.SingleNUMANode, hint.ContainerScope)
			p := podOf("a", [2]int64{row.init, 2}, [2]int64{row.app, 2})
			p.Containers[0].Role = workload.Init
			h.admit(t, append([]workload.Pod{p}, row.others...)...)
			h.become(t, twoNodesOf(machinetest.Offline(row.offline)))
			if refused := h.replace(t); len(refused) > 0 || h.has("a") != row.has {
				t.Errorf("refused %v, it has %s, want %s", refused, h.has("a"), row.has)
			}
		})
	}
}

// TestReplaceMeanwhile: what a plan would take may be taken, and the machine may have changed again.
func TestReplaceMeanwhile(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		do    func(t *testing.T, h *twoNodes)
		class errdefs.Class
	}{
		"the pod has left": {func(t *testing.T, h *twoNodes) {
			_, _, err := h.Remove(t.Context(), "a", admission.Scope{})
			must(t, err)
		}, errdefs.NotFound},
		"the room is taken": {func(t *testing.T, h *twoNodes) { h.admit(t, podOf("b", [2]int64{5, 1})) }, errdefs.Refused},
		"the new CPU is lost, too": {func(t *testing.T, h *twoNodes) { h.become(t, twoNodesOf(machinetest.Offline("2-3"))) },
			errdefs.Refused},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := changing(t, topology.SingleNUMANode, hint.ContainerScope)
			h.admit(t, podOf("a", [2]int64{2, 2}))
			h.become(t, twoNodesOf(machinetest.Offline("2")))
			plan, err := h.PlanReplacement(t.Context(), live.Losses(h.ledger.View())[0])
			must(t, err)
			row.do(t, h)
			before := h.ledger.View()
			if err := h.Relocate(t.Context(), plan, 0); class(t, err) != row.class || h.ledger.View() != before {
				t.Errorf("%v", err)
			}
		})
	}
}

// TestReplaceAnOldLoss: a plan is made for what the pod lacks then, and not for what it lacked before.
func TestReplaceAnOldLoss(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct{ offline, has string }{
		"the CPU is back":                  {"", "4-5@0"},
		"the CPU is back, and another not": {"5", "1,4@0"},
		"the other CPU is lost, too":       {"4-5", "1-2@0"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := changing(t, topology.SingleNUMANode, hint.ContainerScope)
			h.admit(t, podOf("x", [2]int64{3, 1}), podOf("a", [2]int64{2, 2}))
			h.become(t, twoNodesOf(machinetest.Offline("4")))
			l := live.Losses(h.ledger.View())[0]
			h.become(t, twoNodesOf(machinetest.Offline(row.offline)))
			_, _, err := h.Remove(t.Context(), "x", admission.Scope{}) // now others are free, too
			must(t, err)
			plan, err := h.PlanReplacement(t.Context(), l)
			if row.offline == "" {
				if class(t, err) != errdefs.Conflict {
					t.Errorf("%v", err)
				}
				return
			}
			must(t, err)
			must(t, h.Relocate(t.Context(), plan, 0))
			if h.advance(t, "a"); h.has("a") != row.has {
				t.Errorf("it has %s, want %s", h.has("a"), row.has)
			}
		})
	}
}

// TestReplaceOfAnUnacknowledgedChange: a pod whose change was not acknowledged has the CPUs of both sides. It keeps the
// acknowledged ones if only others are lost.
func TestReplaceOfAnUnacknowledgedChange(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct{ offline, has string }{
		"a CPU of the change": {"9", "4-5@0"},
		"a CPU before it":     {"4", "1,5@0"},
		"one of both":         {"4,9", "1,5@0"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := changing(t, topology.SingleNUMANode, hint.ContainerScope)
			h.admit(t, podOf("x", [2]int64{3, 1}), podOf("a", [2]int64{2, 2}))
			_, err := h.ledger.Update(t.Context(), func(d *ledger.Draft) error {
				p, _ := d.View().Pod("a")
				record := *p
				record.Acknowledged, record.Claims = p.Claims, slices.Clone(p.Claims)
				for i := range record.Claims {
					if c := &record.Claims[i]; c.CPUs != nil {
						c.CPUs = &ledger.CPUs{Set: c.CPUs.Set.Union(cpuset.Of(8, 9)), Use: c.CPUs.Use}
					}
				}
				d.PutPod(&record)
				return nil
			})
			must(t, err)
			h.become(t, twoNodesOf(machinetest.Offline(row.offline)))
			_, _, err = h.Remove(t.Context(), "x", admission.Scope{}) // now others are free, too
			must(t, err)
			if refused := h.replace(t); len(refused) > 0 || h.has("a") != row.has {
				t.Errorf("refused %v, it has %s, want %s", refused, h.has("a"), row.has)
			}
		})
	}
}

// TestReplaceAfterCrashes fails each commit of a replacement, before or after it was written. A new engine on what
// was written ends the move, or plans it again.
func TestReplaceAfterCrashes(t *testing.T) {
	t.Parallel()
	for commit := range 3 {
		for _, lost := range []bool{false, true} {
			t.Run(fmt.Sprintf("commit %d, written %v", commit+1, lost), func(t *testing.T) {
				t.Parallel()
				h := changing(t, topology.SingleNUMANode, hint.ContainerScope)
				h.admit(t, podOf("a", [2]int64{3, 2}), podOf("b", [2]int64{4, 2}))
				less := twoNodesOf(machinetest.Offline("2"))
				h.become(t, less)
				fail := h.journal.FailNext
				if lost {
					fail = h.journal.LoseNext
				}
				fail(commit+1, errors.New("crash"))
				plan, err := h.PlanReplacement(t.Context(), live.Losses(h.ledger.View())[0])
				must(t, err)
				err = h.Relocate(t.Context(), plan, 0)
				for done := false; err == nil && !done; {
					var m live.Moved
					m, err = h.Advance(t.Context(), "a", false)
					done = m.Done
				}
				if err == nil {
					t.Fatal("nothing failed")
				}
				again := nodesUnder(t, topology.SingleNUMANode, hint.ContainerScope, h.journal.Reopen(), ledgertest.OpenChanging)
				again.become(t, less)
				again.advance(t, "a")
				if refused := again.replace(t); len(refused) > 0 || again.has("a") != "8-10@1" {
					t.Errorf("refused %v; it has %s", refused, again.has("a"))
				}
				ledgertest.Check(t, again.ledger)
			})
		}
	}
}

// TestRandomReplacements: on random histories of admissions, removals, resizes and changes of the machine, each step
// of each replacement keeps the invariants, and who was not refused has nothing that the machine lacks. A replacement gives no
// pod more CPUs, and takes no container away from its devices.
func TestRandomReplacements(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(r *rapid.T) {
		scope := rapid.SampledFrom([]hint.Scope{hint.ContainerScope, hint.PodScope}).Draw(r, "scope")
		policy := rapid.SampledFrom([]topology.Policy{topology.SingleNUMANode, topology.Restricted, topology.BestEffort,
			topology.None}).Draw(r, "policy")
		h := changing(r, policy, scope)
		for i := range rapid.IntRange(8, 24).Draw(r, "operations") {
			uid := fmt.Sprint("p", i)
			switch rapid.IntRange(0, 6).Draw(r, "operation") {
			case 0, 1, 2:
				var p workload.Pod
				if rapid.IntRange(0, 4).Draw(r, "whole") == 0 {
					p = asWhole(uid, rapid.Int64Range(2, 4).Draw(r, "cpus"), rapid.Int64Range(2, 4).Draw(r, "gib"))
				} else {
					for range rapid.SampledFrom([]int{1, 1, 2}).Draw(r, "containers") {
						p.Containers = append(p.Containers, workload.Container{})
					}
					var amounts [][2]int64
					for range p.Containers {
						amounts = append(amounts, [2]int64{rapid.Int64Range(1, 5).Draw(r, "cpus"), rapid.Int64Range(1, 4).Draw(r, "gib")})
					}
					p = podOf(uid, amounts...)
				}
				if rapid.IntRange(0, 4).Draw(r, "gpu") == 0 {
					p = onGPU(p)
				}
				h.tryAdmit(r, p)
			case 3:
				h.removeOne(r)
			case 4:
				if uid := h.resizeOne(r); uid != "" {
					h.advance(r, uid)
				}
			default:
				h.drawChange(r)
			}
			refused := h.replace(r)
			h.checkOwners(r)
			for _, l := range live.Losses(h.ledger.View()) {
				if refused[l.UID] == "" {
					r.Fatalf("pod %s: %s", l.UID, l)
				}
			}
		}
	})
}

// TestMovesOnAFullNode: pods request more CPU than the node still has, because CPUs went offline. Moves request nothing
// new, except those of a resize to more.
func TestMovesOnAFullNode(t *testing.T) {
	t.Parallel()
	sharing := func(uid string, cpus ...int64) (p workload.Pod) {
		for _, n := range cpus {
			p.Containers = append(p.Containers, podOf(uid, [2]int64{n, 1}).Containers...)
			last := &p.Containers[len(p.Containers)-1]
			last.Name, last.Limits = fmt.Sprint("c", len(p.Containers)-1), nil
		}
		p.UID, p.Name, p.Namespace = uid, uid, "default"
		return p
	}
	full := func(t *testing.T) *twoNodes {
		h := changing(t, topology.SingleNUMANode, hint.ContainerScope)
		h.config.Fit = true
		h.become(t, twoNodesOf())
		h.admit(t, podOf("a", [2]int64{2, 2}), podOf("c", [2]int64{2, 6}), sharing("b", 6, 6))
		h.become(t, twoNodesOf(machinetest.Offline("2")))
		return h
	}
	t.Run("replacement", func(t *testing.T) {
		t.Parallel()
		h := full(t)
		if refused := h.replace(t); len(refused) > 0 || h.has("a") != "1,5@0" {
			t.Errorf("refused %v, pod a has %s", refused, h.has("a"))
		}
	})
	t.Run("defragmentation", func(t *testing.T) {
		t.Parallel()
		h := changing(t, topology.SingleNUMANode, hint.ContainerScope)
		h.config.Fit = true
		h.become(t, twoNodesOf())
		h.admit(t, movable(podOf("a", [2]int64{2, 2}), workload.MovableAnywhere), podOf("c", [2]int64{2, 6}), podOf("e", [2]int64{4, 1}))
		plan, err := h.PlanDefragment(t.Context(), live.DefragmentRequest{Pod: podOf("big", [2]int64{5, 1}), MaxMoves: 1})
		must(t, err)
		if !plan.Fits() || len(plan.Moves) != 1 {
			t.Fatalf("%d moves, fits %v: %s", len(plan.Moves), plan.Fits(), plan.Why)
		}
		h.admit(t, sharing("b", 4, 4))
		h.become(t, twoNodesOf(machinetest.Offline("14-15")))
		must(t, h.Relocate(t.Context(), plan.Moves[0], 0))
		if h.advance(t, "a"); h.has("a") != "12-13@1" {
			t.Errorf("pod a has %s", h.has("a"))
		}
	})
	for name, row := range map[string]struct {
		to      [2]int64
		outcome admission.Outcome
		text    string
	}{
		"resize to more memory": {[2]int64{2, 5}, admission.Admitted, ""},
		"resize to fewer CPUs":  {[2]int64{1, 5}, admission.Admitted, ""},
		"resize to more CPUs": {[2]int64{6, 2}, admission.Deferred,
			"Node didn't have enough resource: cpu, requested: 6000, used: 14000, capacity: 15000"},
		"resize to more than the node has": {[2]int64{15, 2}, admission.Rejected, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := full(t)
			got, err := h.Resize(t.Context(), resizeTo(podOf("a", row.to), false))
			must(t, err)
			if got.Outcome != row.outcome || !strings.Contains(got.Message, row.text) {
				t.Errorf("%v %s: %s", got.Outcome, got.Reason, got.Message)
			}
			if (got.Plan != nil) != (row.outcome == admission.Admitted) {
				t.Errorf("plan %+v", got.Plan)
			}
			h.checkOwners(t)
		})
	}
}

// TestMovesWaitForNoPod: another operation on a pod, such as a removal whose processes do not end, holds up neither the begin
// nor the steps of a move.
func TestMovesWaitForNoPod(t *testing.T) {
	t.Parallel()
	h := changing(t, topology.SingleNUMANode, hint.ContainerScope)
	h.admit(t, podOf("a", [2]int64{2, 2}), podOf("b", [2]int64{2, 2}))
	h.become(t, twoNodesOf(machinetest.Offline("2")))
	plan, err := h.PlanReplacement(t.Context(), live.Losses(h.ledger.View())[0])
	must(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	busy := func(uid string, do func() error) {
		t.Helper()
		must(t, h.Alone(ctx, uid, func(context.Context, *ledger.View) error {
			before := h.ledger.View()
			cancel() // what waits for the pod has an error of another class
			if err := do(); class(t, err) != errdefs.Unavailable || h.ledger.View() != before {
				t.Errorf("%v", err)
			}
			return nil
		}))
		ctx, cancel = context.WithCancel(t.Context())
	}
	busy("a", func() error { return h.Relocate(ctx, plan, 0) })
	must(t, h.Relocate(t.Context(), plan, 0))
	busy("a", func() error { _, err := h.Advance(ctx, "a", false); return err })
	if h.advance(t, "a"); h.has("a") != "1,5@0" {
		t.Errorf("pod a has %s", h.has("a"))
	}
}
