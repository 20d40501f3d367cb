package admission_test

import (
	"fmt"
	"testing"

	"github.com/berthd/berth/managers/admission"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/live"
	"github.com/berthd/berth/managers/topology"
	"github.com/berthd/berth/managers/workload"
)

// TestRefusedIDs: the admission id of a refused attempt belongs to its pod and specification.
func TestRefusedIDs(t *testing.T) {
	t.Parallel()
	h := newFixture(t, topology.Restricted)
	refused, err := h.Admit(t.Context(), admission.Request{Pod: guaranteed("u", 1000, 0), AdmissionID: "first"})
	if err != nil || refused.Outcome != admission.Rejected {
		t.Fatalf("%+v, %v", refused, err)
	}
	deferred, err := h.Admit(t.Context(), admission.Request{Pod: guaranteed("waits", 0, 9), AdmissionID: "later"})
	if err != nil || deferred.Outcome == admission.Admitted {
		t.Fatalf("%+v, %v", deferred, err)
	}
	if _, err := h.Admit(t.Context(), admission.Request{Pod: guaranteed("dry", 1000, 0), AdmissionID: "dry", DryRun: true}); err != nil {
		t.Fatal(err)
	}
	for name, row := range map[string]struct {
		req  admission.Request
		used bool
	}{
		"the same again":                   {admission.Request{Pod: guaranteed("u", 1000, 0), AdmissionID: "first"}, false},
		"another specification":            {admission.Request{Pod: guaranteed("u", 1, 0), AdmissionID: "first"}, true},
		"another specification, dry":       {admission.Request{Pod: guaranteed("u", 1, 0), AdmissionID: "first", DryRun: true}, true},
		"another pod":                      {admission.Request{Pod: guaranteed("v", 1000, 0), AdmissionID: "first"}, true},
		"after a deferral":                 {admission.Request{Pod: guaranteed("waits", 1, 0), AdmissionID: "later"}, true},
		"another owner":                    {admission.Request{Pod: guaranteed("w", 1000, 0), AdmissionID: "first", Owner: "other"}, false},
		"the id of a dry run":              {admission.Request{Pod: guaranteed("dry", 2000, 0), AdmissionID: "dry"}, false},
		"another specification, a new id":  {admission.Request{Pod: guaranteed("u", 999, 0), AdmissionID: "second"}, false},
		"another specification without id": {admission.Request{Pod: guaranteed("u", 998, 0)}, false},
	} {
		v, err := h.Admit(t.Context(), row.req)
		if !row.used {
			if err != nil || v.Outcome != admission.Rejected {
				t.Errorf("%s: %+v, %v", name, v, err)
			}
			continue
		}
		if code, _ := errdefs.CodeOf(err, errdefs.Exists); err == nil || class(t, err) != errdefs.Exists ||
			code != errdefs.AdmissionIDUsed {
			t.Errorf("%s: %+v, %v", name, v, err)
		}
	}
}

// TestRefusedIDsOfResizes: the id of a refused resize belongs to its amounts.
func TestRefusedIDsOfResizes(t *testing.T) {
	t.Parallel()
	h := newFixture(t, topology.Restricted)
	pod := burstable("a", 500, 4<<20)
	pod.Containers[0].ResizePolicy = map[workload.Resource]string{workload.Memory: workload.RestartContainer}
	h.admit(t, pod)
	req := change(workload.Quantities{workload.Memory: 1 << 20})
	req.AdmissionID, req.MaxDisruption = "shrink", live.NoDisruption
	for range 2 {
		if got, err := h.Resize(t.Context(), req); err != nil || got.Outcome != admission.Rejected {
			t.Fatalf("%+v, %v", got, err)
		}
	}
	other := change(workload.Quantities{workload.Memory: 3 << 20})
	other.AdmissionID = "shrink"
	if _, err := h.Resize(t.Context(), other); class(t, err) != errdefs.Exists {
		t.Errorf("other amounts: %v", err)
	}
	// The caller may decide after the refusal that the disruption is acceptable.
	req.MaxDisruption = live.AnyDisruption
	if got, err := h.Resize(t.Context(), req); err != nil || got.Outcome != admission.Admitted {
		t.Errorf("the same amounts: %+v, %v", got, err)
	}
}

// TestRefusedIDsAreBounded: the oldest ids are forgotten first.
func TestRefusedIDsAreBounded(t *testing.T) {
	t.Parallel()
	var r admission.RefusedIDs
	for i := range admission.RememberedRefusals + 2 {
		r.Remember("default", fmt.Sprint(i), "u", fmt.Sprint(i))
	}
	for i, remembered := range map[int]bool{0: false, 1: false, 2: true, admission.RememberedRefusals + 1: true} {
		if err := r.Check("default", fmt.Sprint(i), "u", "other"); (err != nil) != remembered {
			t.Errorf("id %d: %v", i, err)
		}
	}
	if n := r.Len(); n != admission.RememberedRefusals {
		t.Errorf("%d ids are remembered", n)
	}
}

// TestRepeatedResizesUndoNothing: a resize whose answer was lost is repeated after a later
// resize. The later one stays.
func TestRepeatedResizesUndoNothing(t *testing.T) {
	t.Parallel()
	h := newFixture(t, topology.Restricted)
	h.admit(t, burstable("a", 500, 4<<20))
	resize := func(id string, milli int64) (live.Resized, error) {
		req := change(workload.Quantities{workload.CPU: milli})
		req.AdmissionID = id
		return h.Resize(t.Context(), req)
	}
	for i := range int64(3) {
		if got, err := resize(fmt.Sprint("id-", i), 600+i); err != nil || got.Outcome != admission.Admitted || got.Repeated {
			t.Fatalf("resize %d: %+v, %v", i, got, err)
		}
	}
	for i := range int64(2) {
		got, err := resize(fmt.Sprint("id-", i), 600+i)
		if code, _ := errdefs.CodeOf(err, errdefs.Exists); err == nil || class(t, err) != errdefs.Exists ||
			code != errdefs.AdmissionIDUsed {
			t.Errorf("resize %d again: %+v, %v", i, got, err)
		}
	}
	if got, err := resize("id-2", 602); err != nil || !got.Repeated {
		t.Errorf("the last resize again: %+v, %v", got, err)
	}
	if got, err := resize("id-0", 602); err != nil || !got.Repeated {
		t.Errorf("an earlier id with the pod's size changes nothing: %+v, %v", got, err)
	}
	for i := range int64(40) {
		if got, err := resize(fmt.Sprint("more-", i), 700+i); err != nil || got.Outcome != admission.Admitted {
			t.Fatalf("%+v, %v", got, err)
		}
	}
	if p, _ := h.ledger.View().Pod("a"); len(p.EarlierResizeIDs) != 16 || p.EarlierResizeIDs[0] != "more-23" || p.ResizeID != "more-39" {
		t.Errorf("remembered %q and %q", p.EarlierResizeIDs, p.ResizeID)
	}
	if got, err := resize("new", 600); err != nil || got.Outcome != admission.Admitted || got.Repeated {
		t.Errorf("an earlier size with a new id: %+v, %v", got, err)
	}
}
