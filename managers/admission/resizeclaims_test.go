package admission_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/berthd/berth/managers/admission"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/ledger/ledgertest"
	"github.com/berthd/berth/managers/live"
	"github.com/berthd/berth/managers/topology"
	"github.com/berthd/berth/managers/workload"
)

// withMemory makes a Guaranteed pod with exclusive CPUs and GiB of memory.
func withMemory(uid string, cpus, gib int64) workload.Pod {
	p := guaranteed(uid, cpus, 0)
	p.Containers[0].Requests[workload.Memory] = gib << 30
	return p
}

// contents spells the claims of a pod.
func (h *fixture) contents(uid string) (out []string) {
	p, _ := h.ledger.View().Pod(uid)
	for i := range p.Claims {
		out = append(out, p.Claims[i].Content())
	}
	return out
}

// meanwhile runs something once inside the next write of a pod's new size.
func (h *fixture) meanwhile(do func()) {
	h.cgroups.resizing = func() {
		h.cgroups.resizing = nil
		do()
	}
}

// While a lost pod may have what is free, a container gets none of it. It may give something back.
func TestGrowingPodsWaitForUnknownOnes(t *testing.T) {
	t.Parallel()
	for name, unknown := range map[string]func(t *testing.T, h *fixture){
		"the ledger was lost": func(t *testing.T, h *fixture) { h.makeUncertain(t) },
		"a living pod":        func(t *testing.T, h *fixture) { h.found(t, ledger.UnknownLivePod{UID: "u"}) },
	} {
		for _, during := range []bool{false, true} {
			h := setup{shape: "1s2n4c1t,mem=9Gi", policy: topology.BestEffort, memory: true}.open(t)
			h.admit(t, withMemory("a", 2, 2))
			h.admit(t, burstable("shared", 500, 2<<20))
			before := h.contents("a")
			for _, size := range []workload.Pod{withMemory("a", 3, 2), withMemory("a", 2, 3), withMemory("a", 1, 12)} {
				h.makeCertain(t)
				if during {
					h.meanwhile(func() { unknown(t, h) })
				} else {
					unknown(t, h)
				}
				for _, dry := range []bool{!during, false} {
					got, err := h.Resize(t.Context(), resizeTo(size, dry))
					if err != nil || got.Outcome != admission.Deferred || got.Reason != errdefs.ResizeDeferred ||
						got.Condition == nil || got.Condition.Type != admission.StateUncertain ||
						!strings.Contains(got.Message, "nothing exclusive is allocated until the agent has") {
						t.Errorf("%s, during the resize %v: %v %s, %v", name, during, got.Outcome, got.Message, err)
					}
				}
				if now := h.contents("a"); !slices.Equal(now, before) {
					t.Errorf("%s, during the resize %v: it has %v", name, during, now)
				}
			}
			for _, size := range []workload.Pod{withMemory("a", 1, 1), burstable("shared", 700, 2<<20)} {
				if got, err := h.Resize(t.Context(), resizeTo(size, false)); err != nil || got.Outcome != admission.Admitted {
					t.Errorf("%s, to less, or to more shared CPUs: %v %s, %v", name, got.Outcome, got.Message, err)
				}
			}
			ledgertest.Check(t, h.ledger)
		}
	}
}

// makeCertain ends the uncertain state, and removes what is unknown.
func (h *fixture) makeCertain(t *testing.T) {
	t.Helper()
	if _, err := h.ledger.Update(t.Context(), func(d *ledger.Draft) error {
		d.SetUncertain("")
		for u := range d.Base().UnknownLivePods() {
			d.ForgetUnknownLive(u.UID)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
}

// A pod that appears with reserved CPUs or memory during a resize keeps them, and the resize is
// decided again.
func TestResizeIsDecidedAgainAfterAnImport(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		size    workload.Pod
		other   ledger.Claim
		unknown bool
		want    []string
	}{
		"its CPUs": {withMemory("a", 3, 2), ledgertest.Exclusive("c", "2"), false,
			[]string{"CPUs 1,3-4 (exclusive)", "2147483648 bytes of memory on NUMA nodes 0"}},
		"its CPUs, of a living pod": {withMemory("a", 3, 2), ledgertest.Exclusive("c", "2"), true,
			[]string{"CPUs 1,3-4 (exclusive)", "2147483648 bytes of memory on NUMA nodes 0"}},
		"its memory":                  {withMemory("a", 1, 5), ledgertest.Memory("c", "memory", "0", 4<<30), false, nil},
		"its memory, of a living pod": {withMemory("a", 1, 5), ledgertest.Memory("c", "memory", "0", 4<<30), true, nil},
		"other memory": {withMemory("a", 1, 5), ledgertest.Memory("c", "memory", "0", 2<<30), false,
			[]string{"CPUs 1 (exclusive)", "5368709120 bytes of memory on NUMA nodes 0"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := setup{shape: "1s2n8c1t,mem=9Gi", policy: topology.Restricted, memory: true}.open(t)
			h.admit(t, withMemory("a", 1, 2))
			before := h.contents("a")
			h.meanwhile(func() {
				if _, err := h.ledger.Update(t.Context(), func(d *ledger.Draft) error {
					other := ledgertest.With(ledgertest.Pod("other", "c"), row.other)
					if row.unknown {
						d.PutUnknownLive(ledger.UnknownLivePod{UID: "other", Source: ledger.FromClaimRecord, Digest: "d",
							Claims: other.Claims})
					} else {
						d.PutPod(other)
					}
					return nil
				}); err != nil {
					t.Error(err)
				}
			})
			req := resizeTo(row.size, false)
			req.MaxDisruption = live.MovesCPUs // no move to node 1
			got, err := h.Resize(t.Context(), req)
			outcome, want := admission.Admitted, row.want
			if want == nil {
				outcome, want = admission.Deferred, before
			}
			if err != nil || got.Outcome != outcome || !slices.Equal(h.contents("a"), want) {
				t.Errorf("%v %s, %v, has %v; want %v", got.Outcome, got.Message, err, h.contents("a"), want)
			}
			use := h.ledger.View().MemoryUse().Held("memory")
			if use[0] > 8<<30 {
				t.Errorf("%d bytes are given out on node 0", use[0])
			}
			ledgertest.Check(t, h.ledger)
		})
	}
}

// What a pod has and what it gets is reserved by NUMA node until the resize is over, so that after
// a failed one no node has given out more than it has.
func TestFailedWideningLeavesNoOvercommitment(t *testing.T) {
	t.Parallel()
	for _, late := range []int64{1, 7} {
		h := setup{shape: "1s2n4c1t,mem=9Gi", policy: topology.BestEffort, memory: true}.open(t)
		h.taken(t, "x", "1-3")
		h.admit(t, withMemory("a", 1, 7))
		before := h.contents("a")
		if before[1] != "7516192768 bytes of memory on NUMA nodes 1" {
			t.Fatalf("it has %v", before)
		}
		h.meanwhile(func() {
			if v, err := h.Admit(t.Context(), admission.Request{Pod: withMemory("late", 1, late), DryRun: true}); (err == nil &&
				v.Outcome == admission.Admitted) != (late == 1) {
				t.Errorf("%d GiB: %v %s, %v", late, v.Outcome, v.Message, err)
			}
		})
		h.cgroups.fail = map[string]error{"resize": errdefs.Unavailablef("device or resource busy")}
		if _, err := h.Resize(t.Context(), resizeTo(withMemory("a", 1, 9), false)); class(t, err) != errdefs.Unavailable ||
			!slices.Equal(h.contents("a"), before) {
			t.Errorf("%v, it has %v", err, h.contents("a"))
		}
		h.nothingReserved(t)
	}
}

// Memory of a pod that appears between the plan and the commit of an admission is not given out
// again.
func TestAdmissionIsPlannedAgainAfterAnImportOfMemory(t *testing.T) {
	t.Parallel()
	h := setup{shape: "1s2n8c1t,mem=9Gi", policy: topology.Restricted, memory: true}.open(t)
	h.cgroups.recording = func() {
		if _, err := h.ledger.Update(t.Context(), func(d *ledger.Draft) error {
			d.PutPod(ledgertest.With(ledgertest.Pod("other", "c"), ledgertest.Memory("c", "memory", "0", 4<<30)))
			return nil
		}); err != nil {
			t.Error(err)
		}
	}
	want := []string{"CPUs 8 (exclusive)", "5368709120 bytes of memory on NUMA nodes 1"}
	if v := h.admit(t, withMemory("a", 1, 5)); v.Outcome != admission.Admitted || !slices.Equal(h.contents("a"), want) {
		t.Errorf("%v %s, has %v; want %v", v.Outcome, v.Message, h.contents("a"), want)
	}
	ledgertest.Check(t, h.ledger)
}

// A resize to more memory gets other NUMA nodes where an admission of that size would.
func TestResizeFollowsTheTopologyPolicy(t *testing.T) {
	t.Parallel()
	for _, policy := range []topology.Policy{topology.None, topology.BestEffort, topology.Restricted, topology.SingleNUMANode} {
		for _, gib := range []int64{8, 12, 17} {
			s := setup{shape: "1s2n4c1t,mem=9Gi", policy: policy, memory: true}
			want := s.open(t).dryRun(t, withMemory("new", 2, gib)).Outcome
			h := s.open(t)
			h.admit(t, withMemory("a", 2, 2))
			before := h.contents("a")
			got, err := h.Resize(t.Context(), resizeTo(withMemory("a", 2, gib), false))
			if err != nil || got.Outcome != want {
				t.Errorf("%s, %d GiB: %v %s, %v; an admission is %v", policy, gib, got.Outcome, got.Message, err, want)
			}
			if want == admission.Rejected && (got.Reason != errdefs.Infeasible || !slices.Equal(h.contents("a"), before) ||
				!strings.Contains(got.Message, `container "main"`)) {
				t.Errorf("%s, %d GiB: %s %s, has %v", policy, gib, got.Reason, got.Message, h.contents("a"))
			}
			ledgertest.Check(t, h.ledger)
		}
	}
}
