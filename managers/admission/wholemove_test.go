package admission_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/berthd/berth/managers/admission"
	"github.com/berthd/berth/managers/device"
	"github.com/berthd/berth/managers/fit"
	"github.com/berthd/berth/managers/hint"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/live"
	"github.com/berthd/berth/managers/machine/machinetest"
	"github.com/berthd/berth/managers/managerset"
	"github.com/berthd/berth/managers/topology"
	"github.com/berthd/berth/managers/workload"
)

// TestInitMovesWithItsApp: when a resize moves an app container to another NUMA node, the init container that ran on its CPUs follows:
// else the pod would hold CPUs and memory of the old node for it.
func TestInitMovesWithItsApp(t *testing.T) {
	t.Parallel()
	h := planningOn(t, "", topology.SingleNUMANode, hint.ContainerScope, topology.ByPod, nil)
	h.admit(t, withInit(podOf("a", [2]int64{1, 1}, [2]int64{2, 2}), 1), podOf("b", [2]int64{5, 1}))
	q := workload.Quantities{workload.CPU: 6000}
	v, err := h.Resize(t.Context(), live.ResizeRequest{UID: "a", MaxDisruption: live.AnyDisruption,
		Changes: []workload.Change{{Container: "c1", Requests: q, Limits: q}}})
	must(t, err)
	if v.Outcome != admission.Admitted {
		t.Fatalf("%v: %s", v.Outcome, v.Message)
	}
	h.advance(t, "a")
	if got, want := h.has("a"), "8@1 8-13@1"; got != want {
		t.Errorf("the pod has %s, want %s", got, want)
	}
}

// TestWholeMoveFallsBack: a pod that moves is planned as at its admission, also if only the plan in its order fits. On nodes of ten CPUs,
// the init container has the NIC of node 1, where five CPUs are free. With the apps first, the one of five CPUs is on node 0, and the
// one of nine fits nowhere.
func TestWholeMoveFallsBack(t *testing.T) {
	t.Parallel()
	h := planningOn(t, "1s3n10c1t", topology.SingleNUMANode, hint.ContainerScope, topology.ByPod, nil)
	h.lists(device.Options{}, 1)
	fill := podOf("fill", [2]int64{10, 1})
	a := movable(withInit(podOf("a", [2]int64{1, 1}, [2]int64{5, 1}, [2]int64{9, 1}), 1), workload.MovableAnywhere)
	a.Containers[0].Requests[nic] = 1
	h.admit(t, fill, podOf("c", [2]int64{5, 1}), a)
	_, _, err := h.Remove(t.Context(), "fill", admission.Scope{})
	must(t, err)
	if got, want := h.has("a"), "15@1 15-19@1 20-28@2"; got != want {
		t.Fatalf("the pod has %s, want %s", got, want)
	}
	wants := podOf("new", [2]int64{10, 1})
	wants.Containers[0].Requests["example.com/far-nic"], wants.Containers[0].Limits["example.com/far-nic"] = 1, 1
	plan, err := h.PlanDefragment(t.Context(), live.DefragmentRequest{Pod: wants, MaxMoves: 1})
	must(t, err)
	if !plan.Fits() {
		t.Fatalf("no plan: %s", plan.Why)
	}
	h.carryOut(t, plan.Moves)
	if got, want := h.has("a"), "15@1 15-19@1 0-8@0"; got != want {
		t.Errorf("the pod has %s, want %s", got, want)
	}
	h.admit(t, wants)
}

// TestMoveOfSomeFallsBack: a resize that moves the app containers is planned in the pod's order if only that fits.
func TestMoveOfSomeFallsBack(t *testing.T) {
	t.Parallel()
	h := planningOn(t, "1s3n10c1t", topology.SingleNUMANode, hint.ContainerScope, topology.ByPod, nil)
	h.lists(device.Options{}, 1)
	a := movable(withInit(podOf("a", [2]int64{1, 1}, [2]int64{4, 1}, [2]int64{8, 1}), 1), workload.MovableAnywhere)
	a.Containers[0].Requests[nic] = 1
	h.admit(t, podOf("fill", [2]int64{10, 1}), podOf("c", [2]int64{5, 1}), a, podOf("d", [2]int64{2, 1}))
	_, _, err := h.Remove(t.Context(), "fill", admission.Scope{})
	must(t, err)
	q5, q9 := workload.Quantities{workload.CPU: 5000}, workload.Quantities{workload.CPU: 9000}
	v, err := h.Resize(t.Context(), live.ResizeRequest{UID: "a", MaxDisruption: live.AnyDisruption,
		Changes: []workload.Change{{Container: "c1", Requests: q5, Limits: q5}, {Container: "c2", Requests: q9, Limits: q9}}})
	must(t, err)
	if v.Outcome != admission.Admitted {
		t.Fatalf("%v: %s", v.Outcome, v.Message)
	}
	h.advance(t, "a")
	if got, want := h.has("a"), "15@1 15-19@1 0-8@0"; got != want {
		t.Errorf("the pod has %s, want %s", got, want)
	}
}

// TestDefragmentWithInit: a pod moves whole, with its init container on the CPUs of its app, and the pod that wants the node is planned
// in the same way.
func TestDefragmentWithInit(t *testing.T) {
	t.Parallel()
	h := planningOn(t, "1s2n8c1t", topology.SingleNUMANode, hint.ContainerScope, topology.ByPod, nil)
	small := movable(withInit(podOf("small", [2]int64{2, 1}, [2]int64{2, 1}), 1), workload.MovableAnywhere)
	h.admit(t, small, podOf("stays", [2]int64{6, 1}), podOf("other", [2]int64{5, 1}))
	_, _, err := h.Remove(t.Context(), "stays", admission.Scope{})
	must(t, err)
	wants := withInit(podOf("new", [2]int64{1, 1}, [2]int64{8, 1}), 1)
	plan, err := h.PlanDefragment(t.Context(), live.DefragmentRequest{Pod: wants, MaxMoves: 1})
	must(t, err)
	if !plan.Fits() {
		t.Fatalf("no plan: %s", plan.Why)
	}
	h.carryOut(t, plan.Moves)
	h.admit(t, wants)
	if got := h.has("small") + ", " + h.has("new"); got != "13-14@1 13-14@1, 0@0 0-7@0" {
		t.Errorf("the pods have %s", got)
	}
}

// TestFitOfAPodWithInit: the search for where a pod fits counts its init container as an admission does, and says that it runs on CPUs of
// the app.
func TestFitOfAPodWithInit(t *testing.T) {
	t.Parallel()
	for planning, want := range map[topology.Planning]fit.When{topology.ByContainer: fit.Later, topology.ByPod: fit.Now} {
		h := planningOn(t, "1s2n8c1t", topology.SingleNUMANode, hint.ContainerScope, planning, nil)
		h.admit(t, podOf("busy", [2]int64{4, 1}))
		p := withInit(podOf("p", [2]int64{1, 1}, [2]int64{8, 1}), 1)
		set, err := managerset.New(h.config, h.ledger.View().Machine())
		must(t, err)
		if set, err = set.Join(nil, nil); err != nil {
			t.Fatal(err)
		}
		out, _, err := fit.Try(t.Context(), h.Config, h.ledger.View(), set, time.Unix(1000, 0), []workload.Pod{p}, fit.Search{})
		must(t, err)
		if out[0].When != want {
			t.Errorf("%s: %s, want %s", planning, out[0].When, want)
		}
		says := slices.ContainsFunc(out[0].Verdict.Trace.Steps, func(s ledger.Step) bool {
			return strings.Contains(s.Text, "init container c0 runs on CPUs")
		})
		if says != (planning == topology.ByPod) {
			t.Errorf("%s: the trace %+v", planning, out[0].Verdict.Trace.Steps)
		}
	}
}

// TestLostCPUsOfAPodWithInit: an init container and its app lose the same CPUs, and get the same ones for them, on their node or on
// another one.
func TestLostCPUsOfAPodWithInit(t *testing.T) {
	t.Parallel()
	for offline, want := range map[string]string{"0": "2@0 1-2@0", "1": "0@0 0,2@0", "0,2-7": "8@1 8-9@1"} {
		h := planningOn(t, "", topology.SingleNUMANode, hint.ContainerScope, topology.ByPod, nil)
		h.admit(t, withInit(podOf("a", [2]int64{1, 1}, [2]int64{2, 2}), 1))
		for _, c := range []string{"c0", "c1"} {
			_, err := h.PreStart(t.Context(), ledger.Owner{Pod: "a", Container: c}, "id-"+c, 0)
			must(t, err)
		}
		h.become(t, twoNodesOf(machinetest.Offline(offline)))
		if refused := h.replace(t); len(refused) > 0 {
			t.Errorf("%s offline: %v", offline, refused)
		}
		if got := h.has("a"); got != want {
			t.Errorf("%s offline: the pod has %s, want %s", offline, got, want)
		}
	}
}

// TestMovesWaitForTheApp: while an init container may run on CPUs of the app, these are neither replaced nor moved to another node.
func TestMovesWaitForTheApp(t *testing.T) {
	t.Parallel()
	const why = "init container c0 runs on CPUs 0 of container c1 until the pod's app containers start"
	six := workload.Quantities{workload.CPU: 6000}
	for name, change := range map[string]func(t *testing.T, h *twoNodes) (refusal string){
		"replacement": func(t *testing.T, h *twoNodes) string {
			t.Helper()
			h.become(t, twoNodesOf(machinetest.Offline("0")))
			return h.replace(t)["a"]
		},
		"move": func(t *testing.T, h *twoNodes) string {
			t.Helper()
			v, err := h.Resize(t.Context(), live.ResizeRequest{UID: "a", MaxDisruption: live.AnyDisruption,
				Changes: []workload.Change{{Container: "c1", Requests: six, Limits: six}}})
			must(t, err)
			return v.Message
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := planningOn(t, "", topology.SingleNUMANode, hint.ContainerScope, topology.ByPod, nil)
			h.admit(t, withInit(podOf("a", [2]int64{1, 1}, [2]int64{2, 2}), 1), podOf("b", [2]int64{5, 1}))
			had := h.has("a")
			start := func(container string) {
				_, err := h.PreStart(t.Context(), ledger.Owner{Pod: "a", Container: container}, "id-"+container, 0)
				must(t, err)
			}
			start("c0")
			if got := change(t, h); !strings.Contains(got, why) || h.has("a") != had {
				t.Errorf("while the init container may run, the pod has %s: %s", h.has("a"), got)
			}
			start("c1")
			if got := change(t, h); got != "" {
				t.Errorf("when the app runs: %s", got)
			}
		})
	}
}

// BenchmarkInits decides about pods with more and more init containers: the time grows with their number, not faster.
func BenchmarkInits(b *testing.B) {
	for _, planning := range []topology.Planning{topology.ByContainer, topology.ByPod} {
		for _, apps := range []int{1, 10} {
			for _, inits := range []int{1, 10, 20, 40, 80} {
				b.Run(fmt.Sprintf("%s/apps %d/inits %d", planning, apps, inits), func(b *testing.B) {
					h := planningOn(b, "1s8n16c1t", topology.SingleNUMANode, hint.ContainerScope, planning, nil)
					amounts := slices.Repeat([][2]int64{{2, 1}}, inits+apps)
					for i := range inits {
						amounts[i] = [2]int64{1, 1}
					}
					p := withInit(podOf("p", amounts...), inits)
					for b.Loop() {
						v, err := h.Admit(b.Context(), admission.Request{Pod: p, DryRun: true})
						must(b, err)
						if v.Outcome != admission.Admitted {
							b.Fatal(v.Message)
						}
					}
				})
			}
		}
	}
}
