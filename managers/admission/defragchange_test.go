package admission_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/berthd/berth/managers/admission"
	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/device"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/hint"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/ledger/check"
	"github.com/berthd/berth/managers/live"
	"github.com/berthd/berth/managers/machine"
	"github.com/berthd/berth/managers/machine/machinetest"
	"github.com/berthd/berth/managers/memory"
	"github.com/berthd/berth/managers/topology"
	"github.com/berthd/berth/managers/workload"
)

// drawChange changes the CPUs that are online and the memory of the nodes.
func (h *twoNodes) drawChange(r *rapid.T) {
	var offline cpuset.Builder
	for range rapid.IntRange(0, 5).Draw(r, "offline") {
		offline.Add(rapid.IntRange(1, 15).Draw(r, "cpu"))
	}
	sizes := rapid.SliceOfN(rapid.SampledFrom([]int64{10, 10, 8, 6}), 2, 2).Draw(r, "gib of nodes")
	h.become(r, twoNodesOf(machinetest.Offline(offline.Set().String()),
		machinetest.Memory(0, uint64(sizes[0]*gi)), machinetest.Memory(1, uint64(sizes[1]*gi))))
}

// tryAdmit admits a pod if it fits.
func (h *twoNodes) tryAdmit(r *rapid.T, p workload.Pod) admission.Verdict {
	v, err := h.Admit(context.Background(), admission.Request{Pod: p})
	must(r, err)
	return v
}

// drawPod draws one of the admitted pods; empty if there is none.
func (h *twoNodes) drawPod(r *rapid.T, label string) string {
	var uids []string
	for p := range h.ledger.View().Pods() {
		uids = append(uids, p.UID())
	}
	if len(uids) == 0 {
		return ""
	}
	return rapid.SampledFrom(uids).Draw(r, label)
}

// removeOne removes a pod, if there is one.
func (h *twoNodes) removeOne(r *rapid.T) {
	if uid := h.drawPod(r, "removed"); uid != "" {
		_, _, err := h.Remove(context.Background(), uid, admission.Scope{})
		must(r, err)
	}
}

// resizeOne requests other CPUs for the first container of a pod that is not one as a whole; uid is empty if it did not.
func (h *twoNodes) resizeOne(r *rapid.T) (uid string) {
	uid = h.drawPod(r, "resized")
	if pod, ok := h.ledger.View().Pod(uid); !ok || pod.Pod.Resources != nil {
		return ""
	}
	q := workload.Quantities{workload.CPU: rapid.Int64Range(1, 6).Draw(r, "cpus") * 1000}
	_, err := h.Resize(context.Background(), live.ResizeRequest{UID: uid,
		Changes: []workload.Change{{Container: "c0", Requests: q, Limits: q}}})
	must(r, err)
	return uid
}

// advanceWhileChanging makes the steps of a pod's move on a machine that changes between them.
func (h *twoNodes) advanceWhileChanging(r *rapid.T, uid string) (changed bool) {
	for range 50 {
		h.checkOwners(r)
		if rapid.IntRange(0, 5).Draw(r, "the machine changes between steps") == 0 {
			h.drawChange(r)
			changed = true
			h.checkOwners(r)
		}
		m, err := h.Advance(context.Background(), uid, false)
		must(r, err)
		if m.Done {
			h.checkOwners(r)
			return changed
		}
	}
	r.Fatalf("pod %s does not arrive: it has %s", uid, h.has(uid))
	return changed
}

// TestDeviceOnANodeThatAppears: a plugin lists a device that is near to a NUMA node before the node is there. From the
// moment at which the node appears, a pod gets the device with CPUs and memory of that node; when the node is gone, others
// do not get them.
func TestDeviceOnANodeThatAppears(t *testing.T) {
	t.Parallel()
	h := changing(t, topology.SingleNUMANode, hint.PodScope)
	wants := func(uid string) workload.Pod {
		p := podOf(uid, [2]int64{2, 1})
		p.Containers[0].Limits[farNIC], p.Containers[0].Requests[farNIC] = 1, 1
		return p
	}
	refused := func(uid string) {
		t.Helper()
		v, err := h.Admit(t.Context(), admission.Request{Pod: wants(uid)})
		must(t, err)
		if v.Outcome != admission.Rejected {
			t.Errorf("pod %s: %v, it has %s", uid, v.Outcome, h.has(uid))
		}
	}
	refused("before")
	before := h.ledger.View().Machine()
	h.become(t, machinetest.Build("3s1n8c1t", machinetest.Memory(0, uint64(10*gi)), machinetest.Memory(1, uint64(10*gi)),
		machinetest.Memory(2, uint64(10*gi))))
	h.admit(t, wants("near"))
	if got := h.has("near"); got != "16-17@2" {
		t.Errorf("it has %s", got)
	}
	refused("second") // there is one device
	h.become(t, before)
	h.checkOwners(t)
	if got := h.has("near"); got != "16-17@2" {
		t.Errorf("without the node it has %s", got)
	}
	_, _, err := h.Remove(t.Context(), "near", admission.Scope{})
	must(t, err)
	refused("after")
}

// TestPluginOfANodeThatAppears: a device of a NUMA node that has appeared is given out with CPUs and memory of the node, as soon as
// its plugin registers, and no more after the plugin has taken it off its list.
func TestPluginOfANodeThatAppears(t *testing.T) {
	t.Parallel()
	const nic = "example.com/new-nic"
	h := changing(t, topology.SingleNUMANode, hint.PodScope)
	wants := func(uid string) admission.Request {
		p := podOf(uid, [2]int64{2, 1})
		p.Containers[0].Limits[nic], p.Containers[0].Requests[nic] = 1, 1
		return admission.Request{Pod: p}
	}
	h.become(t, machinetest.Build("3s1n8c1t", machinetest.Memory(0, uint64(10*gi)), machinetest.Memory(1, uint64(10*gi)),
		machinetest.Memory(2, uint64(10*gi))))
	at := time.Unix(0, 0)
	session := h.inventory.Registered(nic, device.Options{}, at)
	devices := []device.Device{
		{ID: "n0", Healthy: true, Nodes: 1 << 2, Topology: true},
		{ID: "n1", Healthy: true, Nodes: 1 << 2, Topology: true},
	}
	h.inventory.Listed(session, devices, at)
	v, err := h.Admit(t.Context(), wants("near"))
	must(t, err)
	if got := h.has("near"); got != "16-17@2" {
		t.Errorf("it has %s: %s", got, v.Message)
	}
	taken, _ := h.ledger.View().Claim(ledger.Owner{Pod: "near", Container: "c0"}, nic)
	h.inventory.Listed(session,
		slices.DeleteFunc(devices, func(d device.Device) bool { return !slices.Contains(taken.Devices.IDs(), d.ID) }), at)
	if v, err := h.Admit(t.Context(), wants("after")); err != nil || v.Outcome == admission.Admitted {
		t.Errorf("without the device: %v, %v, it has %s", v.Outcome, err, h.has("after"))
	}
}

// TestPagesTakeMemory: huge pages take the memory of their node at once. Pods that have it lose it, which is a finding, and
// others do not get it.
func TestPagesTakeMemory(t *testing.T) {
	t.Parallel()
	h := changing(t, topology.SingleNUMANode, hint.ContainerScope)
	with := func(pages uint64) *machine.Topology {
		return twoNodesOf(machinetest.HugePages(0, 2048, pages), machinetest.HugePages(1, 2048, 0))
	}
	d, now := machine.Debounce{For: 5 * time.Second}, time.Unix(1000, 0)
	set := func(pages uint64) {
		t.Helper()
		next, _ := d.Observe(h.ledger.View().Machine(), with(pages), now)
		h.become(t, next)
	}
	h.become(t, with(0))
	h.admit(t, podOf("a", [2]int64{1, 4}))
	set(2560) // 5 of 10 GiB
	h.admit(t, podOf("b", [2]int64{1, 2}))
	if got := h.has("b"); got != "8@1" {
		t.Errorf("with 1 GiB left on node 0, pod b has %s", got)
	}
	set(4096)
	f, l := check.View(h.ledger.View()), live.Losses(h.ledger.View())
	if len(f) != 1 || f[0].Rule != check.RuleMemory || len(l) != 1 || l[0].UID != "a" || l[0].Short != 1 {
		t.Errorf("pods have 4 GiB of node 0, where 2 are left: findings %v, losses %v", f, l)
	}
	if refused := h.replace(t); len(refused) > 0 || h.has("a") != "9@1" {
		t.Errorf("pod a has %s: %v", h.has("a"), refused)
	}
}

// TestRandomDefragmentsOnChangingMachines: on random histories of admissions, removals, resizes, moves and changes of the
// machine, also between the steps of a move, no CPU ever has two owners, no container runs on exclusive CPUs of another one,
// no pod has fewer CPUs than it requests, and each move ends. On a machine that does not change during the moves of a
// plan, the pod is admitted after them.
func TestRandomDefragmentsOnChangingMachines(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(r *rapid.T) {
		scope := rapid.SampledFrom([]hint.Scope{hint.ContainerScope, hint.PodScope}).Draw(r, "scope")
		policy := rapid.SampledFrom([]topology.Policy{topology.SingleNUMANode, topology.Restricted, topology.BestEffort,
			topology.None}).Draw(r, "policy")
		h := changing(r, policy, scope)
		for i := range rapid.IntRange(8, 20).Draw(r, "operations") {
			uid := fmt.Sprint("p", i)
			switch op := rapid.IntRange(0, 8).Draw(r, "operation"); {
			case op <= 2:
				p := movable(podOf(uid, [2]int64{rapid.Int64Range(1, 4).Draw(r, "cpus"), rapid.Int64Range(1, 3).Draw(r, "gib")}),
					rapid.SampledFrom([]workload.Movable{workload.MovableAnywhere, workload.MovableAnywhere, workload.MovableWithinNodes,
						workload.NeverMovable}).Draw(r, "movable"))
				h.tryAdmit(r, p)
			case op == 3:
				h.removeOne(r)
			case op == 4:
				if uid := h.resizeOne(r); uid != "" {
					h.advanceWhileChanging(r, uid)
				}
			case op <= 6:
				h.drawChange(r)
			default:
				p := podOf(uid, [2]int64{rapid.Int64Range(2, 7).Draw(r, "wanted"), 1})
				plan, err := h.PlanDefragment(context.Background(), live.DefragmentRequest{Pod: p,
					MaxMoves: rapid.IntRange(1, 4).Draw(r, "moves")})
				must(r, err)
				if !plan.Fits() {
					continue
				}
				changed := false
				for _, m := range plan.Moves {
					err := h.Relocate(context.Background(), m, 0)
					if changed && err != nil && errdefs.ClassOf(err) != errdefs.Internal {
						break // the plan was made for the machine before
					}
					must(r, err)
					changed = h.advanceWhileChanging(r, m.UID) || changed
				}
				if v := h.tryAdmit(r, p); v.Outcome != admission.Admitted && !changed {
					r.Fatalf("pod %s after %d moves: %s", uid, len(plan.Moves), v.Message)
				}
			}
			h.checkOwners(r)
		}
	})
}

// TestMovesUnderAnotherPolicy: a pod that has CPUs as a whole does not move under a policy that allocates by container, nor one
// that has them by container under a policy that allocates as a whole. It holds up no move of others.
func TestMovesUnderAnotherPolicy(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		then, now topology.Policy
		resize    admission.Outcome
	}{
		"as a whole before":   {topology.SingleNUMANode, topology.None, admission.Rejected},
		"by container before": {topology.None, topology.SingleNUMANode, admission.Admitted}, // in place
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := changing(t, row.then, hint.PodScope)
			h.config.Memory = memory.Config{Policy: memory.PolicyNone}
			h.become(t, twoNodesOf())
			h.admit(t, movable(asWhole("whole", 3, 1), workload.MovableAnywhere))
			h.config.Topology.Policy = row.now
			h.become(t, twoNodesOf())
			h.admit(t, movable(podOf("single", [2]int64{2, 1}), workload.MovableAnywhere))
			had := h.has("whole")
			for cpus := range int64(15) {
				wants := podOf("new", [2]int64{cpus + 1, 1})
				plan, err := h.PlanDefragment(t.Context(), live.DefragmentRequest{Pod: wants, MaxMoves: 2})
				must(t, err)
				for _, m := range plan.Moves {
					if m.UID == "whole" {
						t.Errorf("for %d CPUs: %v", cpus+1, m.Plan.Steps)
					}
				}
			}
			got, err := h.Resize(t.Context(), live.ResizeRequest{UID: "whole", Changes: []workload.Change{{
				Requests: workload.Quantities{workload.CPU: 5000}, Limits: workload.Quantities{workload.CPU: 5000},
			}}})
			must(t, err)
			if got.Outcome != row.resize || h.has("whole") != had {
				t.Errorf("resize: %s %s; it has %s", got.Outcome, got.Message, h.has("whole"))
			}
			h.become(t, twoNodesOf(machinetest.Offline("1")))
			h.replace(t)
			h.checkOwners(t)
		})
	}
}
