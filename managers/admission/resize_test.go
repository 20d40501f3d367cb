package admission_test

import (
	"context"
	"errors"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/berthd/berth/managers/admission"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/topology"
	"github.com/berthd/berth/managers/workload"
)

// burstable makes a pod with one container that requests cpu and is limited in
// memory, half of which it requests.
func burstable(uid string, milliCPU, bytes int64) workload.Pod {
	return workload.Pod{
		UID: uid, Name: uid, Namespace: "default",
		Containers: []workload.Container{{
			Name:     "main",
			Requests: workload.Quantities{workload.CPU: milliCPU, workload.Memory: bytes / 2},
			Limits:   workload.Quantities{workload.Memory: bytes},
		}},
	}
}

func TestResize(t *testing.T) {
	t.Parallel()
	h := newFixture(t, topology.Restricted)
	admitted := h.admit(t, burstable("a", 500, 2<<20))
	got, err := h.Resize(t.Context(), admission.Request{Pod: burstable("a", 700, 4<<20)})
	if err != nil || got.Outcome != admission.Admitted || got.Repeated {
		t.Fatalf("%+v, %v", got, err)
	}
	if !slices.Equal(h.cgroups.sizes, []int64{700}) {
		t.Errorf("cgroups were told %v", h.cgroups.sizes)
	}
	record, _ := h.ledger.View().Pod("a")
	if record.Pod.Containers[0].Requests[workload.CPU] != 700 || record.AdmissionID != admitted.Pod.AdmissionID || record.QoS != workload.Burstable {
		t.Errorf("the ledger has %+v", record)
	}
	if !has(ledger.StepCommitted, record.Trace) || record.Trace != got.Trace {
		t.Errorf("trace %+v", record.Trace)
	}
	if v := h.admit(t, burstable("a", 700, 4<<20)); !v.Repeated {
		t.Error("the pod as it is now is not taken for admitted")
	}
	if _, err := h.Admit(t.Context(), admission.Request{Pod: burstable("a", 500, 2<<20)}); class(t, err) != errdefs.Precondition {
		t.Errorf("the pod as it was: %v", err)
	}
	again, err := h.Resize(t.Context(), admission.Request{Pod: burstable("a", 700, 4<<20)})
	if err != nil || !again.Repeated || len(h.cgroups.sizes) != 1 {
		t.Errorf("the same again: %+v, %v, %v", again.Verdict, err, h.cgroups.sizes)
	}
}

func TestResizeDry(t *testing.T) {
	t.Parallel()
	h := newFixture(t, topology.Restricted)
	h.admit(t, burstable("a", 500, 2<<20))
	before := h.ledger.View()
	got, err := h.Resize(t.Context(), admission.Request{Pod: burstable("a", 700, 2<<20), DryRun: true})
	if err != nil || got.Outcome != admission.Admitted || got.Pod.Pod.Containers[0].Requests[workload.CPU] != 700 || !got.Trace.DryRun {
		t.Errorf("%+v, %v", got, err)
	}
	if h.ledger.View() != before || len(h.cgroups.sizes) > 0 {
		t.Error("a dry run changed something")
	}
}

func TestRefusedResizes(t *testing.T) {
	t.Parallel()
	h := newFixture(t, topology.Restricted)
	h.admit(t, guaranteed("own", 2, 1))
	h.admit(t, burstable("a", 500, 2<<20))
	before := h.ledger.View()
	check := func(what string, p workload.Pod, outcome admission.Outcome, reason errdefs.Reason, message string) {
		t.Helper()
		for _, dry := range []bool{true, false} {
			got, err := h.Resize(t.Context(), admission.Request{Pod: p, DryRun: dry})
			if err != nil || got.Outcome != outcome || got.Reason != reason || !strings.Contains(got.Message, message) || got.Pod != nil {
				t.Errorf("%s: %+v, %v", what, got, err)
			}
		}
	}
	check("a holder of CPUs", guaranteed("own", 3, 1), admission.Rejected, errdefs.Infeasible,
		`Resize is infeasible for Guaranteed Pods alongside CPU Manager policy "static"`)
	for _, dry := range []bool{true, false} {
		h.cgroups.fail["check resize"] = errdefs.Refuse(errdefs.ResizeDeferred, "in use")
		got, err := h.Resize(t.Context(), admission.Request{Pod: burstable("a", 500, 1<<20), DryRun: dry})
		if err != nil || got.Outcome != admission.Deferred || got.Message != "in use" || got.RetryAfter == 0 {
			t.Errorf("memory in use: %+v, %v", got, err)
		}
	}
	invalid := map[string]workload.Pod{
		"more devices": guaranteed("own", 2, 2),
		"class":        guaranteed("a", 1, 0),
		"no limit":     {UID: "a", Name: "a", Namespace: "default", Containers: []workload.Container{{Name: "main", Requests: workload.Quantities{workload.CPU: 500}}}},
		"not a pod":    {UID: "a"},
	}
	for what, p := range invalid {
		if _, err := h.Resize(t.Context(), admission.Request{Pod: p}); class(t, err) != errdefs.Invalid {
			t.Errorf("%s: %v", what, err)
		}
	}
	if _, err := h.Resize(t.Context(), admission.Request{Pod: burstable("b", 1, 2)}); class(t, err) != errdefs.NotFound {
		t.Errorf("unknown: %v", err)
	}
	if h.ledger.View() != before || len(h.cgroups.sizes) > 0 {
		t.Error("a refusal changed something")
	}
}

// Memory of a Guaranteed pod may change where nobody pins it, cpu may not.
func TestResizeOfGuaranteedPods(t *testing.T) {
	t.Parallel()
	h := newFixture(t, topology.Restricted)
	h.admit(t, guaranteed("own", 2, 0))
	claims, _ := h.ledger.View().Pod("own")
	bigger := guaranteed("own", 2, 0)
	bigger.Containers[0].Requests[workload.Memory] = 2 << 20
	got, err := h.Resize(t.Context(), admission.Request{Pod: bigger})
	if err != nil || got.Outcome != admission.Admitted {
		t.Fatalf("%+v, %v", got, err)
	}
	if now, _ := h.ledger.View().Pod("own"); !reflect.DeepEqual(now.Claims, claims.Claims) {
		t.Errorf("claims changed to %v", now.Claims)
	}
}

func TestFailedResizesAreUndone(t *testing.T) {
	t.Parallel()
	h := newFixture(t, topology.Restricted)
	h.admit(t, burstable("a", 500, 2<<20))
	before := h.ledger.View()
	h.cgroups.fail["resize"] = errdefs.Unavailablef("device or resource busy")
	_, err := h.Resize(t.Context(), admission.Request{Pod: burstable("a", 700, 2<<20)})
	if class(t, err) != errdefs.Unavailable || !slices.Equal(h.cgroups.sizes, []int64{700, 500}) {
		t.Errorf("the kernel refuses: %v, cgroups were told %v", err, h.cgroups.sizes)
	}
	h.cgroups.sizes = nil
	h.journal.FailNext(1, errors.New("disk full"))
	_, err = h.Resize(t.Context(), admission.Request{Pod: burstable("a", 700, 2<<20)})
	if class(t, err) != errdefs.Unavailable || !slices.Equal(h.cgroups.sizes, []int64{700, 500}) {
		t.Errorf("the disk is full: %v, cgroups were told %v", err, h.cgroups.sizes)
	}
	if h.ledger.View() != before {
		t.Error("the ledger moved")
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := h.Resize(ctx, admission.Request{Pod: burstable("a", 700, 2<<20)}); err == nil {
		t.Error("a caller that has gone is answered")
	}
}
