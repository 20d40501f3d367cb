package reconcile

import (
	"slices"
	"testing"
	"time"

	"github.com/berthd/berth/managers/admission"
	"github.com/berthd/berth/managers/cgroup"
	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/ledger/ledgertest"
	"github.com/berthd/berth/managers/machine/machinetest"
	"github.com/berthd/berth/managers/placement"
	"github.com/berthd/berth/server/internal/runtime"
)

// tracked returns a tracker on a view with pod a, whose container c has CPU 1, pod b, whose container c has none, and a binding
// of each container.
func tracked(now *time.Time, bound ...ledger.Binding) *tracker {
	draft := ledger.NewDraft(ledger.Empty(ledger.Rules{Machine: machinetest.Build("4c")}))
	draft.PutPod(ledgertest.With(ledgertest.Pod("a", "c"), ledgertest.Exclusive("c", "1")))
	draft.PutPod(ledgertest.Pod("b", "c"))
	for _, b := range bound {
		draft.Bind(b)
	}
	t := newTracker(func() time.Time { return *now }, cgroup.Cgroupfs)
	t.view = draft.View()
	return t
}

func closed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// TestTrackerStarts: a container with a requested start is tracked until the last request ends, unless it is bound or its start
// was allowed. Nothing of it is left then.
func TestTrackerStarts(t *testing.T) {
	t.Parallel()
	a := ledger.Binding{ID: "a1", Owner: ledger.Owner{Pod: "a", Container: "c"}}
	for name, row := range map[string]struct {
		bound          []ledger.Binding
		allowed, again bool
		left           bool
	}{
		"refused":             {},
		"refused, asks again": {again: true, left: true},
		"bound":               {bound: []ledger.Binding{a}, left: true},
		"allowed":             {allowed: true, left: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			now := time.Unix(1000, 0)
			tr := tracked(&now, row.bound...)
			key := tr.key(a)
			if key != ofID("a1") {
				t.Fatalf("key %v", key)
			}
			tr.beginStart(key)
			if row.again {
				tr.beginStart(key)
			}
			tr.planStart(tr.view, key, admission.Start{Binding: a})
			tr.locate("a1", cgroup.Name{"somewhere"})
			tr.writes = map[string]*write{"a1": {}}
			if row.allowed {
				tr.record(placement.Event{Kind: placement.Allow, Key: key})
			}
			if uids := tr.podsOfStarts([]string{"a1", "b1"}); row.allowed != slices.Equal(uids, []string{"a"}) {
				t.Errorf("allowed %t, and pods with a start are %q", row.allowed, uids)
			}
			freed := tr.freed
			tr.endStart(tr.view, key, "a1")
			c, there := tr.Get(key)
			_, known := tr.located.Load("a1")
			if there != row.left || known != row.left || (len(tr.cgroups) == 1) != row.left || (len(tr.writes) == 1) != row.left ||
				closed(freed) == row.left {
				t.Errorf("left: %+v, cgroup %t %v, writes %v, freed %t", c, known, tr.cgroups, tr.writes, closed(freed))
			}
			if row.left && c.OwnCPUs != cpuset.Of(1) {
				t.Errorf("own CPUs %v", c.OwnCPUs)
			}
			if len(tr.starting) > 0 != row.again {
				t.Errorf("requested: %v", tr.starting)
			}
			tr.countPhases()
			if got := *tr.phases.Load(); len(got) > 0 != row.left {
				t.Errorf("phases %v", got)
			}
		})
	}
}

// TestTrackerGivesUp: a start without a binding that takes too long is forgotten; a bound container stays.
func TestTrackerGivesUp(t *testing.T) {
	t.Parallel()
	now := time.Unix(1000, 0)
	bound := ledger.Binding{ID: "b1", Owner: ledger.Owner{Pod: "b", Container: "c"}}
	tr := tracked(&now, bound)
	for _, b := range []ledger.Binding{bound, {ID: "a1", Owner: ledger.Owner{Pod: "a", Container: "c"}}} {
		tr.planStart(tr.view, tr.key(b), admission.Start{Binding: b})
		tr.record(placement.Event{Kind: placement.Allow, Key: tr.key(b)})
	}
	if got := tr.concerned(nil); len(got) != 2 || got["a1"].Pod != "a" || got["b1"].Pod != "b" {
		t.Errorf("a list of all is about %v", got)
	}
	if got := tr.concerned([]string{"a1"}); len(got) != 1 || got["a1"].Pod != "a" {
		t.Errorf("a list of one is about %v", got)
	}
	list := &listing{at: now.Add(time.Second)}
	if !tr.cannotStart(list, "a1", ledger.Owner{Pod: "a", Container: "c"}) {
		t.Error("a container that a later list of all lacks may start")
	}
	list.sandboxes = []runtime.Sandbox{{ID: "s", Pod: "a", Ready: true}}
	if tr.cannotStart(list, "a1", ledger.Owner{Pod: "a", Container: "c"}) {
		t.Error("a container whose pod has a sandbox cannot start")
	}
	tr.giveUp()
	if _, there := tr.Get(ofID("a1")); !there {
		t.Error("a start is given up at once")
	}
	now = now.Add(placement.StartTime + time.Second)
	tr.giveUp()
	if _, there := tr.Get(ofID("a1")); there {
		t.Error("a start that takes too long is still tracked")
	}
	if _, there := tr.Get(ofID("b1")); !there {
		t.Error("a bound container is forgotten")
	}
}

// TestTrackerGrants: exclusive CPUs on which another container may run are taken out of a write, with an error.
func TestTrackerGrants(t *testing.T) {
	t.Parallel()
	now := time.Unix(1000, 0)
	tr := tracked(&now)
	other, mine := cgroup.Name{"kubepods", "podb", "c"}, ofID("a1")
	tr.watch(other, placement.Owner{Pod: "b", Container: "c"})
	tr.record(placement.Event{Kind: placement.ShownRunning, Key: ofCgroup(other)})
	tr.record(placement.Event{Kind: placement.KernelRuns, Key: ofCgroup(other), CPUs: cpuset.Of(0, 1)})
	tr.planStart(tr.view, mine, admission.Start{Binding: ledger.Binding{ID: "a1", Owner: ledger.Owner{Pod: "a", Container: "c"}}})
	if !tr.mayRun(ofCgroup(other)) || tr.mayRun(mine) {
		t.Error("a running container may run, one whose start is requested may not")
	}
	v := cgroup.Values{Cpuset: cgroup.Cpuset{CPUs: cpuset.Of(1)}}
	if err := tr.granted(mine, &v); errdefs.ClassOf(err) != errdefs.Unavailable || !v.CPUs.IsEmpty() {
		t.Errorf("CPUs in use: %v, written %v", err, v.CPUs)
	}
	tr.record(placement.Event{Kind: placement.KernelRuns, Key: ofCgroup(other), CPUs: cpuset.Of(0)})
	v.CPUs = cpuset.Of(1)
	if err := tr.granted(mine, &v); err != nil || v.CPUs != cpuset.Of(1) {
		t.Errorf("CPUs that were left: %v, written %v", err, v.CPUs)
	}
}
