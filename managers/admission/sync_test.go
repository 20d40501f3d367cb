package admission_test

import (
	"context"
	"errors"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/berthd/berth/managers/admission"
	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/ledger/journal"
	"github.com/berthd/berth/managers/ledger/ledgertest"
	"github.com/berthd/berth/managers/topology"
)

func TestSyncRemovesTheDead(t *testing.T) {
	t.Parallel()
	h := newFixture(t, topology.BestEffort)
	for _, uid := range []string{"a", "b", "c"} {
		h.admit(t, guaranteed(uid, 1, 0))
	}
	h.cgroups.pods["orphan"], h.cgroups.pods["foreign"] = true, true
	removed, err := h.Sync(t.Context(), h.listed([]string{"b", "foreign", "nowhere"}))
	if err != nil || strings.Join(removed, ",") != "a,c" {
		t.Fatalf("%v %v", removed, err)
	}
	if want := map[string]bool{"b": true, "foreign": true}; !reflect.DeepEqual(h.cgroups.pods, want) {
		t.Errorf("cgroups %v, want %v", h.cgroups.pods, want)
	}
	if got := h.unknownLivePods(); got != "foreign" {
		t.Errorf("unknown live pods are %q", got)
	}
}

// TestSyncGoesOn: a pod that does not die keeps neither the others alive nor the
// uncertain state.
func TestSyncGoesOn(t *testing.T) {
	t.Parallel()
	h := newFixture(t, topology.BestEffort)
	for _, uid := range []string{"a", "b", "c"} {
		h.admit(t, guaranteed(uid, 1, 0))
	}
	h.makeUncertain(t)
	h.cgroups.pods["orphan"], h.cgroups.pods["foreign"] = true, true
	h.cgroups.fail["remove"] = errdefs.Deadlinef("process 77 does not die")
	removed, err := h.Sync(t.Context(), h.listed([]string{"c", "foreign"}))
	if class(t, err) != errdefs.Deadline || strings.Join(removed, ",") != "b" {
		t.Errorf("%v %v", removed, err)
	}
	view := h.ledger.View()
	if _, here := view.Pod("a"); !here || view.NumPods() != 2 || view.Uncertain() != "" || h.cgroups.pods["orphan"] ||
		h.unknownLivePods() != "foreign" {
		t.Errorf("%d pods, uncertain %q, cgroups %v, unknown live pods %s", view.NumPods(), view.Uncertain(), h.cgroups.pods,
			h.unknownLivePods())
	}
	if removed, err := h.Sync(t.Context(), h.listed([]string{"c"})); err != nil || strings.Join(removed, ",") != "a" ||
		h.unknownLivePods() != "" {
		t.Errorf("again: %v %v, unknown live pods %s", removed, err, h.unknownLivePods())
	}
}

// TestSyncWithoutTheTree: as long as the living pods were not observed, the uncertainty
// stays, and so do the unknown live pods.
func TestSyncWithoutTheTree(t *testing.T) {
	t.Parallel()
	h := newFixture(t, topology.BestEffort)
	h.cgroups.pods["foreign"], h.cgroups.pods["other"] = true, true
	if _, err := h.Sync(t.Context(), h.listed([]string{"foreign", "other"})); err != nil {
		t.Fatal(err)
	}
	h.makeUncertain(t)
	for _, fails := range []string{"observe", "sweep"} {
		h.cgroups.fail[fails] = errdefs.Unavailablef("no such mount")
		if _, err := h.Sync(t.Context(), h.listed([]string{"other"})); class(t, err) != errdefs.Unavailable {
			t.Errorf("%v", err)
		}
		if got := h.ledger.View().Uncertain(); got == "" || h.unknownLivePods() != "foreign,other" {
			t.Errorf("uncertain %q, unknown live pods %s", got, h.unknownLivePods())
		}
	}
	if _, err := h.Sync(t.Context(), h.listed([]string{"other"})); err != nil || h.ledger.View().Uncertain() != "" ||
		h.unknownLivePods() != "other" {
		t.Errorf("%v, uncertain %q, unknown live pods %s", err, h.ledger.View().Uncertain(), h.unknownLivePods())
	}
}

// TestSyncCannotBeWritten: what cannot be made to last does not end the uncertainty.
func TestSyncCannotBeWritten(t *testing.T) {
	t.Parallel()
	h := newFixture(t, topology.BestEffort)
	h.cgroups.pods["foreign"] = true
	h.makeUncertain(t)
	h.journal.FailNext(1, errors.New("disk full"))
	if _, err := h.Sync(t.Context(), h.listed([]string{"foreign"})); class(t, err) != errdefs.Unavailable {
		t.Fatal(err)
	}
	if got := h.ledger.View().Uncertain(); got == "" || h.unknownLivePods() != "" || !h.cgroups.pods["foreign"] {
		t.Errorf("uncertain %q, unknown live pods %q, cgroups %v", got, h.unknownLivePods(), h.cgroups.pods)
	}
}

// TestSyncSparesWhoCameLater: a list is no word on pods that were admitted after
// its maker looked.
func TestSyncSparesWhoCameLater(t *testing.T) {
	t.Parallel()
	h := newFixture(t, topology.BestEffort)
	h.admit(t, guaranteed("a", 1, 0))
	h.admit(t, guaranteed("b", 1, 0))
	known := h.ledger.View().Revision()
	h.admit(t, guaranteed("c", 1, 0))
	// What happens to a later does not make it a later pod.
	if _, err := h.PreStart(t.Context(), ledger.Owner{Pod: "a", Container: "main"}, "id", 0); err != nil {
		t.Fatal(err)
	}
	if removed, err := h.Sync(t.Context(), admission.SyncRequest{Living: []string{"b"}, Known: known}); err != nil ||
		strings.Join(removed, ",") != "a" {
		t.Fatalf("%v %v", removed, err)
	}
	if got := slices.Sorted(maps.Keys(h.cgroups.pods)); !slices.Equal(got, []string{"b", "c"}) {
		t.Errorf("cgroups %v", got)
	}
	if _, err := h.Sync(t.Context(), admission.SyncRequest{Living: nil,
		Known: h.ledger.View().Revision() + 1}); class(t, err) != errdefs.Precondition || h.ledger.View().NumPods() != 2 {
		t.Errorf("a revision of another ledger: %v, %d pods", err, h.ledger.View().NumPods())
	}
	if removed, err := h.Sync(t.Context(), admission.SyncRequest{Living: nil, Known: h.ledger.View().Revision()}); err != nil ||
		strings.Join(removed, ",") != "b,c" {
		t.Errorf("%v %v", removed, err)
	}
}

// TestSyncOfAnotherLedger: a list that was made with another ledger removes no pod,
// whether that ledger had come further or was there before.
func TestSyncOfAnotherLedger(t *testing.T) {
	t.Parallel()
	h := newFixture(t, topology.BestEffort)
	h.admit(t, guaranteed("a", 1, 0))
	l, _ := ledgertest.Open(t, journal.Options{Journal: ledgertest.NewJournal(), Rules: h.ledger.View().Rules(), Epoch: 7})
	h.Ledger = l
	h.admit(t, guaranteed("b", 1, 0))
	first, now := l.View().RevisionOf(0), l.View().Revision()
	for revision, other := range map[uint64]bool{first - 1: true, 1: true, first: false, now: false, now + 1: true} {
		removed, err := h.Sync(t.Context(), admission.SyncRequest{Known: revision, DryRun: true})
		if other && (class(t, err) != errdefs.Precondition || removed != nil) || !other && err != nil {
			t.Errorf("revision %d of a ledger that has those from %d to %d: %v, %v", revision, first, now, removed, err)
		}
	}
}

// TestSyncDryRun: it returns the pods to remove, changes nothing, and does not count as a Sync.
func TestSyncDryRun(t *testing.T) {
	t.Parallel()
	h := newFixture(t, topology.BestEffort)
	for _, uid := range []string{"a", "b", "c"} {
		h.admit(t, guaranteed(uid, 1, 0))
	}
	h.makeUncertain(t)
	h.cgroups.pods["orphan"] = true
	before := h.ledger.View()
	req := h.listed([]string{"b"})
	req.DryRun = true
	removed, err := h.Sync(t.Context(), req)
	if err != nil || strings.Join(removed, ",") != "a,c" {
		t.Errorf("%v %v", removed, err)
	}
	if h.ledger.View() != before || len(h.cgroups.pods) != 4 || h.Synced() {
		t.Errorf("the ledger has moved: %v; cgroups %v, synced %v", h.ledger.View() != before, h.cgroups.pods, h.Synced())
	}
}

// TestUnknownLive follows pods that outlived their ledger: no other pod gets anything
// exclusive until they are known again, whatever happens to berth meanwhile.
func TestUnknownLive(t *testing.T) {
	t.Parallel()
	j := ledgertest.NewJournal()
	h := build(t, topology.BestEffort, j)
	h.cgroups.pods["old"], h.cgroups.pods["older"] = true, true
	h.makeUncertain(t)
	if _, err := h.Sync(t.Context(), h.listed([]string{"old", "older"})); err != nil {
		t.Fatal(err)
	}
	pods := h.cgroups.pods
	h = build(t, topology.BestEffort, j.Reopen())
	h.cgroups.pods = pods
	if got := h.unknownLivePods(); got != "old,older" || h.ledger.View().Uncertain() != "" {
		t.Fatalf("after a restart %q are noted as living, uncertain: %q", got, h.ledger.View().Uncertain())
	}
	wait := func(want string) {
		t.Helper()
		v := h.admit(t, guaranteed("new", 2, 0))
		if v.Outcome != admission.Deferred || v.Condition == nil || v.Condition.Type != admission.StateUncertain ||
			!strings.Contains(v.Message, want) {
			t.Fatalf("verdict %v: %s", v.Outcome, v.Message)
		}
	}
	wait("pod old lives here")
	if v := h.admit(t, guaranteed("shared", 0, 0)); v.Outcome != admission.Admitted {
		t.Errorf("a pod that takes nothing from anybody: %s", v.Message)
	}
	v := h.admit(t, guaranteed("old", 1, 0))
	if v.Outcome != admission.Deferred || v.Condition.Type != admission.UnknownDevices ||
		!strings.Contains(v.Message, "running_allocations") {
		t.Fatalf("a living pod of which nothing is known: %v %s", v.Outcome, v.Message)
	}
	running := []admission.RunningAllocation{{Container: "main", CPUs: cpuset.Of(3)}}
	v, err := h.Admit(t.Context(), admission.Request{Pod: guaranteed("old", 1, 0), RunningAllocations: running})
	if err != nil || v.Outcome != admission.Admitted || h.cpus("old") != "3" {
		t.Fatalf("a living pod of which the agent knows: %v %s, on CPUs %s", err, v.Message, h.cpus("old"))
	}
	wait("pod older lives here")
	if _, known, err := h.Remove(t.Context(), "older", admission.Scope{}); err != nil || known {
		t.Fatal(known, err)
	}
	if got := h.unknownLivePods(); got != "" {
		t.Errorf("%q are noted as living", got)
	}
	if v := h.admit(t, guaranteed("new", 2, 0)); v.Outcome != admission.Admitted {
		t.Errorf("with all pods known: %s", v.Message)
	}
}

// makeUncertain makes the ledger one that may not know every pod.
func (h *fixture) makeUncertain(t *testing.T) {
	t.Helper()
	if _, err := h.ledger.Update(context.Background(), func(d *ledger.Draft) error { d.SetUncertain("lost"); return nil }); err != nil {
		t.Fatal(err)
	}
}

// unknownLivePods lists the unknown live pods.
func (h *fixture) unknownLivePods() string {
	var uids []string
	for s := range h.ledger.View().UnknownLivePods() {
		uids = append(uids, s.UID)
	}
	return strings.Join(uids, ",")
}

// TestFailedSyncIsNone: as long as cgroups could not be looked at or removed, or the result
// could not be stored, the agent counts as one that has not called SyncPods.
func TestFailedSyncIsNone(t *testing.T) {
	t.Parallel()
	for name, fail := range map[string]func(h *fixture){
		"look":   func(h *fixture) { h.cgroups.fail["observe"] = errdefs.Unavailablef("no such mount") },
		"sweep":  func(h *fixture) { h.cgroups.fail["sweep"] = errdefs.Unavailablef("device or resource busy") },
		"commit": func(h *fixture) { h.journal.FailNext(1, errors.New("disk full")) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newFixture(t, topology.BestEffort)
			h.makeUncertain(t)
			h.cgroups.pods["nobody"] = true
			fail(h)
			if _, err := h.Sync(t.Context(), h.listed(nil)); class(t, err) != errdefs.Unavailable || h.Synced() {
				t.Errorf("%v, synced %t", err, h.Synced())
			}
			if _, err := h.Sync(t.Context(), h.listed(nil)); err != nil || !h.Synced() {
				t.Errorf("again: %v, synced %t", err, h.Synced())
			}
		})
	}
}
