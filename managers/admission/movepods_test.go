package admission_test

import (
	"strings"
	"testing"

	"github.com/berthd/berth/managers/admission"
	"github.com/berthd/berth/managers/hint"
	"github.com/berthd/berth/managers/ledger/ledgertest"
	"github.com/berthd/berth/managers/live"
	"github.com/berthd/berth/managers/topology"
	"github.com/berthd/berth/managers/workload"
)

// A container that is allocated again takes over nothing of an init container that another container of the pod has now.
func TestMoveBesideAnInitContainer(t *testing.T) {
	t.Parallel()
	of := func(second int64) workload.Pod {
		p := podOf("a", [2]int64{3, 3}, [2]int64{second, 1}, [2]int64{1, 2})
		p.Containers[0].Role = workload.Init
		return p
	}
	for policy, want := range map[topology.Policy]string{
		topology.SingleNUMANode: "deferred 5-7@0 5-6@0 7@0", // it has to be near what it takes over
		topology.BestEffort:     "admitted 5-7@0 5-6,8@0 7@0",
	} {
		h := changing(t, policy, hint.ContainerScope)
		h.admit(t, podOf("b", [2]int64{2, 1}), podOf("c", [2]int64{2, 1}), of(2))
		if had := h.has("a"); had != "5-7@0 5-6@0 7@0" {
			t.Fatalf("it has %s", had)
		}
		got, err := h.Resize(t.Context(), resizeTo(of(3), false))
		must(t, err)
		h.advance(t, "a")
		if has := got.Outcome.String() + " " + h.has("a"); has != want {
			t.Errorf("policy %s: %s: %s", policy, has, got.Message)
		}
		h.checkOwners(t)
	}
}

// A container cannot grow into memory that another container of its pod has to release first.
func TestResizeWaitsForMemoryOfItsPod(t *testing.T) {
	t.Parallel()
	h := newTwoNodes(t, hint.ContainerScope)
	h.admit(t, podOf("a", [2]int64{1, 1}, [2]int64{1, 3}), podOf("b", [2]int64{1, 5}))
	got, err := h.Resize(t.Context(), resizeTo(podOf("a", [2]int64{1, 3}, [2]int64{1, 4}), false))
	must(t, err)
	if got.Outcome != admission.Deferred || !strings.Contains(got.Message, "one container after the other") || h.has("a") != "1@0 2@0" {
		t.Errorf("%s %s; it has %s", got.Outcome, got.Message, h.has("a"))
	}
}

// TestResizeWithinAPodAsAWhole: amounts of a container that shares what its pod has as a whole change in place.
func TestResizeWithinAPodAsAWhole(t *testing.T) {
	t.Parallel()
	h := newTwoNodes(t, hint.PodScope)
	sharing := func(milliCPU, bytes int64) workload.Pod {
		p := asWhole("a", 4, 3)
		p.Containers[1].Requests = workload.Quantities{workload.CPU: milliCPU, workload.Memory: bytes}
		p.Containers[1].Limits = workload.Quantities{workload.CPU: 2 * milliCPU, workload.Memory: gi}
		return p
	}
	h.admit(t, sharing(500, 1<<20))
	before := h.has("a")
	for _, p := range []workload.Pod{sharing(600, 1<<20), sharing(600, 2<<20), sharing(300, 1<<20)} {
		req := resizeTo(p, false)
		req.MaxMove = live.NoDisruption
		got, err := h.Resize(t.Context(), req)
		must(t, err)
		if got.Outcome != admission.Admitted || got.Disruption != live.NoDisruption || got.Plan != nil || h.has("a") != before {
			t.Errorf("%v %s: had %s, has %s, plan %+v", got.Outcome, got.Message, before, h.has("a"), got.Plan)
		}
	}
	ledgertest.Check(t, h.ledger)
}
