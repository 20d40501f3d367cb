package admission_test

import (
	"context"
	"errors"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/berthd/berth/managers/admission"
	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/ledger/claimrecord"
	"github.com/berthd/berth/managers/ledger/history"
	"github.com/berthd/berth/managers/live"
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

// resizeTo requests the amounts of a pod.
func resizeTo(p workload.Pod, dry bool) live.ResizeRequest {
	req := live.ResizeRequest{UID: p.UID, DryRun: dry}
	for _, c := range p.Containers {
		req.Changes = append(req.Changes, workload.Change{Container: c.Name, Requests: c.Requests, Limits: c.Limits})
	}
	return req
}

// ownedResize is resizeTo for an owner.
func ownedResize(p workload.Pod, owner string) live.ResizeRequest {
	req := resizeTo(p, false)
	req.Owner = owner
	return req
}

func TestResize(t *testing.T) {
	t.Parallel()
	h := newFixture(t, topology.Restricted)
	admitted := h.admit(t, burstable("a", 500, 2<<20))
	got, err := h.Resize(t.Context(), resizeTo(burstable("a", 700, 4<<20), false))
	if err != nil || got.Outcome != admission.Admitted || got.Repeated {
		t.Fatalf("%+v, %v", got, err)
	}
	if !slices.Equal(h.cgroups.sizes, []int64{700}) {
		t.Errorf("cgroups were told %v", h.cgroups.sizes)
	}
	record, _ := h.ledger.View().Pod("a")
	if record.Pod.Containers[0].Requests[workload.CPU] != 700 || record.AdmissionID != admitted.Pod.AdmissionID ||
		record.QoS != workload.Burstable {
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
	again, err := h.Resize(t.Context(), resizeTo(burstable("a", 700, 4<<20), false))
	if err != nil || !again.Repeated || len(h.cgroups.sizes) != 1 {
		t.Errorf("the same again: %+v, %v, %v", again.Verdict, err, h.cgroups.sizes)
	}
}

// TestResizeOfAnInitContainer: an ordinary init container is resized, unless it has exclusive CPUs.
func TestResizeOfAnInitContainer(t *testing.T) {
	t.Parallel()
	h := newFixture(t, topology.Restricted)
	with := func(p workload.Pod, milliCPU int64) workload.Pod {
		q := workload.Quantities{workload.CPU: milliCPU, workload.Memory: 1 << 20}
		p.Containers = append([]workload.Container{{Name: "setup", Role: workload.Init, Requests: q, Limits: q}}, p.Containers...)
		return p
	}
	h.admit(t, with(burstable("a", 500, 2<<20), 600))
	got, err := h.Resize(t.Context(), resizeTo(with(burstable("a", 500, 2<<20), 900), false))
	if err != nil || got.Outcome != admission.Admitted || len(got.Restarts) > 0 {
		t.Fatalf("%+v, %v", got.Verdict, err)
	}
	if p, _ := h.ledger.View().Pod("a"); p.Pod.Containers[0].Requests[workload.CPU] != 900 || len(p.Claims) > 0 {
		t.Errorf("the ledger has %+v", p)
	}
	h.admit(t, with(guaranteed("own", 2, 1), 2000))
	before := h.ledger.View()
	got, err = h.Resize(t.Context(), resizeTo(with(guaranteed("own", 2, 1), 3000), false))
	if err != nil || got.Outcome != admission.Rejected || got.Reason != errdefs.Infeasible ||
		!strings.Contains(got.Message, `"setup" is an ordinary init container`) {
		t.Errorf("exclusive CPUs: %+v, %v", got.Verdict, err)
	}
	if h.ledger.View() != before {
		t.Error("the ledger changed")
	}
}

func TestResizeDry(t *testing.T) {
	t.Parallel()
	h := newFixture(t, topology.Restricted)
	h.admit(t, burstable("a", 500, 2<<20))
	before := h.ledger.View()
	got, err := h.Resize(t.Context(), resizeTo(burstable("a", 700, 2<<20), true))
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
			got, err := h.Resize(t.Context(), resizeTo(p, dry))
			if err != nil || got.Outcome != outcome || got.Reason != reason || !strings.Contains(got.Message, message) || got.Pod != nil {
				t.Errorf("%s: %+v, %v", what, got, err)
			}
		}
	}
	check("more CPUs than its node has", guaranteed("own", 8, 1), admission.Rejected, errdefs.Infeasible,
		"on NUMA nodes 0, which have 7 allocatable CPUs")
	for _, dry := range []bool{true, false} {
		h.cgroups.fail["check resize"] = errdefs.Refuse(errdefs.ResizeDeferred, "in use")
		got, err := h.Resize(t.Context(), resizeTo(burstable("a", 500, 1<<20), dry))
		if err != nil || got.Outcome != admission.Deferred || got.Message != "in use" || got.RetryAfter == 0 {
			t.Errorf("memory in use: %+v, %v", got, err)
		}
	}
	invalid := map[string]workload.Pod{
		"more devices": guaranteed("own", 2, 2),
		"class":        guaranteed("a", 1, 0),
		"below request": {UID: "a", Containers: []workload.Container{{Name: "main",
			Limits: workload.Quantities{workload.Memory: 1 << 10}}}},
	}
	for what, p := range invalid {
		if _, err := h.Resize(t.Context(), resizeTo(p, false)); class(t, err) != errdefs.Invalid {
			t.Errorf("%s: %v", what, err)
		}
	}
	if _, err := h.Resize(t.Context(), resizeTo(burstable("b", 1, 2), false)); class(t, err) != errdefs.NotFound {
		t.Errorf("unknown: %v", err)
	}
	if h.ledger.View() != before || len(h.cgroups.sizes) > 0 {
		t.Error("a refusal changed something")
	}
}

// TestResizeOfExclusiveCPUs: node 0 has CPUs 1-7 to allocate.
func TestResizeOfExclusiveCPUs(t *testing.T) {
	t.Parallel()
	h := newFixture(t, topology.SingleNUMANode)
	h.admit(t, guaranteed("own", 2, 1))
	to := func(n int64, most live.Disruption) live.Resized {
		t.Helper()
		req := resizeTo(guaranteed("own", n, 1), false)
		req.MaxDisruption = most
		got, err := h.Resize(t.Context(), req)
		must(t, err)
		return got
	}
	if got := to(4, live.NoDisruption); got.Reason != errdefs.DisruptionNotAllowed || h.cpus("own") != "1-2" {
		t.Errorf("no disruption: %+v, has %s", got, h.cpus("own"))
	}
	// No other pod can get its new resources while the cgroups are written, and they have the earlier CPUs until the commit.
	h.cgroups.resizing = func() {
		if v, err := h.Admit(t.Context(), admission.Request{Pod: guaranteed("late", 4, 1), DryRun: true}); err != nil ||
			v.Outcome != admission.Admitted || len(v.Pod.Claims) == 0 {
			t.Errorf("another pod: %+v, %v", v, err)
		} else if set, _, _ := v.View.ContainerCPUs(ledger.Owner{Pod: "late", Container: "main"}); set.Overlaps(cpuset.Of(1, 2, 3, 4)) {
			t.Errorf("another pod gets CPUs %s", set)
		}
		if h.cpus("own") != "1-2" {
			t.Errorf("before the commit it has CPUs %s", h.cpus("own"))
		}
	}
	got := to(4, live.MovesCPUs)
	h.cgroups.resizing = nil
	if got.Outcome != admission.Admitted || got.Disruption != live.MovesCPUs || h.cpus("own") != "1-4" ||
		!has(ledger.StepPlanned, got.Trace) {
		t.Errorf("more: %+v, has %s", got.Verdict, h.cpus("own"))
	}
	if r, err := claimrecord.Decode("own", h.cgroups.records["own"]); err != nil ||
		!slices.ContainsFunc(r.Claims, func(c ledger.Claim) bool { return c.CPUs != nil && c.CPUs.Set == cpuset.Of(1, 2, 3, 4) }) {
		t.Errorf("its claim record has %+v, %v", r, err)
	}
	if !slices.Equal(h.cgroups.sets, []string{"1-2"}) {
		t.Errorf("the cgroups were given CPUs %q before the commit", h.cgroups.sets)
	}
	if again := to(4, live.MovesCPUs); !again.Repeated {
		t.Errorf("again: %+v", again.Verdict)
	}
	before := h.ledger.View()
	h.cgroups.fail["resize"] = errdefs.Unavailablef("device or resource busy")
	if _, err := h.Resize(t.Context(), resizeTo(guaranteed("own", 6, 1), false)); class(t, err) != errdefs.Unavailable ||
		h.ledger.View() != before {
		t.Errorf("the kernel refuses: %v, has %s", err, h.cpus("own"))
	}
	h.admit(t, guaranteed("other", 2, 1))
	if got := to(6, live.AnyDisruption); got.Outcome != admission.Deferred || got.RetryAfter == 0 {
		t.Errorf("its node is busy: %+v", got.Verdict)
	}
	if got := to(1, live.AnyDisruption); got.Outcome != admission.Admitted || h.cpus("own") != "1" {
		t.Errorf("less: %+v, has %s", got.Verdict, h.cpus("own"))
	}
	// An agent that has started again admits its pods again, with their new size.
	if v := h.admit(t, guaranteed("own", 1, 1)); !v.Repeated || h.cpus("own") != "1" {
		t.Errorf("admitted again: %+v, has %s", v, h.cpus("own"))
	}
}

// Memory of a Guaranteed pod may change where it is not pinned; its CPUs stay.
func TestResizeOfGuaranteedPods(t *testing.T) {
	t.Parallel()
	h := newFixture(t, topology.Restricted)
	h.admit(t, guaranteed("own", 2, 0))
	claims, _ := h.ledger.View().Pod("own")
	bigger := guaranteed("own", 2, 0)
	bigger.Containers[0].Requests[workload.Memory] = 2 << 20
	got, err := h.Resize(t.Context(), resizeTo(bigger, false))
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
	_, err := h.Resize(t.Context(), resizeTo(burstable("a", 700, 2<<20), false))
	if class(t, err) != errdefs.Unavailable || !slices.Equal(h.cgroups.sizes, []int64{700, 500}) {
		t.Errorf("the kernel refuses: %v, cgroups were told %v", err, h.cgroups.sizes)
	}
	h.cgroups.sizes = nil
	h.journal.FailNext(1, errors.New("disk full"))
	_, err = h.Resize(t.Context(), resizeTo(burstable("a", 700, 2<<20), false))
	if class(t, err) != errdefs.Unavailable || !slices.Equal(h.cgroups.sizes, []int64{700, 500}) {
		t.Errorf("the disk is full: %v, cgroups were told %v", err, h.cgroups.sizes)
	}
	if h.ledger.View() != before {
		t.Error("the ledger moved")
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := h.Resize(ctx, resizeTo(burstable("a", 700, 2<<20), false)); err == nil {
		t.Error("a caller that has gone is answered")
	}
}

// change requests amounts of the container main of pod a.
func change(q workload.Quantities) live.ResizeRequest {
	return live.ResizeRequest{UID: "a", Changes: []workload.Change{{Container: "main", Requests: q}}}
}

// TestResizeChangesOnlyWhatIsGiven: amounts that are absent stay, and a container that the
// pod does not have, or the pod as a whole, is refused.
func TestResizeChangesOnlyWhatIsGiven(t *testing.T) {
	t.Parallel()
	h := newFixture(t, topology.Restricted)
	h.admit(t, burstable("a", 500, 2<<20))
	if _, err := h.Resize(t.Context(), change(workload.Quantities{workload.CPU: 600})); err != nil {
		t.Fatal(err)
	}
	record, _ := h.ledger.View().Pod("a")
	main := record.Pod.Containers[0]
	if main.Requests[workload.CPU] != 600 || main.Requests[workload.Memory] != 1<<20 || main.Limits[workload.Memory] != 2<<20 {
		t.Errorf("the ledger has %+v", main)
	}
	unknown := change(nil)
	unknown.Changes[0].Container = "other"
	if _, err := h.Resize(t.Context(), unknown); class(t, err) != errdefs.NotFound {
		t.Errorf("an unknown container: %v", err)
	}
	whole := change(workload.Quantities{workload.CPU: 600})
	whole.Changes[0].Container = ""
	if _, err := h.Resize(t.Context(), whole); class(t, err) != errdefs.Invalid {
		t.Errorf("a pod without resources as a whole: %v", err)
	}
}

// TestResizeOfAnotherRevision: of two callers that read the same revision one changes the
// pod. The repeated call of that one is answered again.
func TestResizeOfAnotherRevision(t *testing.T) {
	t.Parallel()
	h := newFixture(t, topology.Restricted)
	read := h.admit(t, burstable("a", 500, 2<<20)).View.Revision()
	h.admit(t, burstable("other", 100, 2<<20)) // does not change pod a
	first, second := change(workload.Quantities{workload.CPU: 600}), change(workload.Quantities{workload.CPU: 700})
	first.IfRevision, second.IfRevision = read, read
	for i, repeated := range []bool{false, true} {
		got, err := h.Resize(t.Context(), first)
		if err != nil || got.Outcome != admission.Admitted || got.Repeated != repeated {
			t.Fatalf("attempt %d of the first: %+v, %v", i, got, err)
		}
	}
	for _, dry := range []bool{true, false} {
		second.DryRun = dry
		if _, err := h.Resize(t.Context(), second); class(t, err) != errdefs.Conflict {
			t.Errorf("the second, dry %v: %v", dry, err)
		}
	}
	second.DryRun, second.IfRevision = false, h.ledger.View().Revision()
	if got, err := h.Resize(t.Context(), second); err != nil || got.Outcome != admission.Admitted {
		t.Errorf("the second after reading again: %+v, %v", got, err)
	}
	second.IfRevision = h.ledger.View().Revision() + 1
	second.Changes[0].Requests = workload.Quantities{workload.CPU: 800}
	if _, err := h.Resize(t.Context(), second); class(t, err) != errdefs.Precondition {
		t.Errorf("a revision that was never: %v", err)
	}
}

// TestResizeNames: the name of a resize is that of one size, and of nothing else.
func TestResizeNames(t *testing.T) {
	t.Parallel()
	h := newFixture(t, topology.Restricted)
	admitted := h.admit(t, burstable("a", 500, 2<<20)).Pod.AdmissionID
	req := change(workload.Quantities{workload.CPU: 600})
	req.AdmissionID = "grow"
	for _, repeated := range []bool{false, true} {
		got, err := h.Resize(t.Context(), req)
		if err != nil || got.ID != "grow" || got.Repeated != repeated {
			t.Fatalf("%+v, %v", got, err)
		}
	}
	for name, row := range map[string]struct {
		id  string
		cpu int64
		bad bool
	}{
		"another size": {"grow", 700, true}, "the admission's": {admitted, 700, true}, "a new one": {"more", 700, false},
	} {
		req := change(workload.Quantities{workload.CPU: row.cpu})
		req.AdmissionID, req.DryRun = row.id, true
		_, err := h.Resize(t.Context(), req)
		var code errdefs.Code
		if err != nil {
			code, _ = errdefs.CodeOf(err, errdefs.Exists)
		}
		if (code == errdefs.AdmissionIDUsed) != row.bad || err != nil && class(t, err) != errdefs.Exists {
			t.Errorf("%s: %v", name, err)
		}
	}
	if got, err := h.Resize(t.Context(), change(workload.Quantities{workload.CPU: 650})); err != nil || got.ID == "" || got.ID == "grow" {
		t.Errorf("without a name: %+v, %v", got, err)
	}
}

// TestResizeDisruption: a resize returns its disruption, and does not disturb more than
// its caller allows.
func TestResizeDisruption(t *testing.T) {
	t.Parallel()
	h := newFixture(t, topology.Restricted)
	pod := burstable("a", 500, 2<<20)
	pod.Containers[0].ResizePolicy = map[workload.Resource]string{workload.Memory: workload.RestartContainer}
	h.admit(t, pod)
	for _, row := range []struct {
		req  live.ResizeRequest
		max  live.Disruption
		want live.Disruption
	}{
		{change(workload.Quantities{workload.CPU: 600}), live.NoDisruption, live.NoDisruption},
		{change(workload.Quantities{workload.Memory: 2 << 20}), live.MovesMemory, 0},
		{change(workload.Quantities{workload.Memory: 2 << 20}), live.RestartsContainers, live.RestartsContainers},
		{change(workload.Quantities{workload.Memory: 1 << 19}), live.AnyDisruption, live.RestartsContainers},
	} {
		row.req.MaxDisruption = row.max
		before := h.ledger.View()
		got, err := h.Resize(t.Context(), row.req)
		if err != nil || got.Disruption != row.want {
			t.Errorf("%+v: %+v, %v", row.req, got, err)
		}
		if row.want == 0 && (got.Outcome != admission.Rejected || got.Reason != errdefs.DisruptionNotAllowed || h.ledger.View() != before) {
			t.Errorf("more than is allowed: %+v", got)
		}
	}
}

// A deferred resize is repeated until something changes: the history has it once for each size and
// each reason.
func TestRepeatedDeferredResizeIsRecordedOnce(t *testing.T) {
	t.Parallel()
	h := newFixture(t, topology.Restricted)
	h.admit(t, burstable("a", 500, 2<<20))
	recorded := func() (n int) {
		if err := h.History.Entries(t.Context(), 0, func(e *history.Entry, err error) bool {
			if err != nil {
				t.Error(err)
			}
			if e.Verdict == "deferred" {
				n++
			}
			return true
		}); err != nil {
			t.Fatal(err)
		}
		return n
	}
	for i, c := range []struct {
		size   int64
		reason string
		want   int
	}{{1 << 20, "in use", 1}, {1 << 20, "in use", 1}, {1 << 20, "in use", 1}, {1 << 19, "in use", 2}, {1 << 19, "still in use", 3},
		{1 << 19, "still in use", 3}, {1 << 20, "in use", 4}} {
		h.cgroups.fail["check resize"] = errdefs.Refuse(errdefs.ResizeDeferred, "%s", c.reason)
		if got, err := h.Resize(t.Context(), resizeTo(burstable("a", 500, c.size), false)); err != nil ||
			got.Outcome != admission.Deferred {
			t.Fatalf("resize %d: %+v, %v", i, got, err)
		}
		if n := recorded(); n != c.want {
			t.Errorf("after resize %d: %d entries, want %d", i, n, c.want)
		}
	}
	delete(h.cgroups.fail, "check resize")
	if got, err := h.Resize(t.Context(), resizeTo(burstable("a", 500, 1<<20), false)); err != nil || got.Outcome != admission.Admitted {
		t.Fatalf("%+v, %v", got, err)
	}
	h.cgroups.fail["check resize"] = errdefs.Refuse(errdefs.ResizeDeferred, "in use")
	if got, err := h.Resize(t.Context(), resizeTo(burstable("a", 500, 1<<19), false)); err != nil || got.Outcome != admission.Deferred ||
		recorded() != 5 {
		t.Errorf("after a resize that was carried out: %+v, %v, %d entries", got, err, recorded())
	}
}
