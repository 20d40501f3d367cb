package admission_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/berthd/berth/managers/admission"
	"github.com/berthd/berth/managers/device"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/topology"
)

// TestWaiting admits a pod while its devices cannot be had: with deferrals it is
// deferred and admitted later, without them it is rejected as by the
// kubelet. What the policy makes of an absence of devices is no matter.
func TestWaiting(t *testing.T) {
	t.Parallel()
	unhealthy := func(h *fixture) {
		h.inventory.Listed(h.session, []device.Device{{ID: "g0", Nodes: 1, Topology: true}, {ID: "g1", Nodes: 2, Topology: true}},
			time.Unix(0, 0))
	}
	for name, row := range map[string]struct {
		policy topology.Policy
		away   func(h *fixture)
		gpus   int64
		want   string // empty: rejected in any case
		reason errdefs.Reason
		text   string
	}{
		"plugin gone": {
			policy: topology.None, gpus: 1, want: "PluginAway", reason: errdefs.UnexpectedAdmissionError,
			away: func(h *fixture) { h.inventory.Gone(h.session, time.Unix(0, 0)) },
			text: "Allocate failed due to no healthy devices present; cannot allocate unhealthy devices example.com/gpu, which is unexpected",
		},
		"plugin gone, aligned": {
			policy: topology.SingleNUMANode, gpus: 1, want: "PluginAway", reason: errdefs.TopologyAffinityError,
			away: func(h *fixture) { h.inventory.Gone(h.session, time.Unix(0, 0)) },
			text: "Resources cannot be allocated with Topology locality",
		},
		"nothing healthy": {
			policy: topology.None, gpus: 2, want: "NoHealthyDevice", reason: errdefs.UnexpectedAdmissionError, away: unhealthy,
			text: "Allocate failed due to no healthy devices present; cannot allocate unhealthy devices example.com/gpu, which is unexpected",
		},
		"nothing healthy, aligned": {
			policy: topology.Restricted, gpus: 1, want: "NoHealthyDevice", reason: errdefs.TopologyAffinityError, away: unhealthy,
			text: "Resources cannot be allocated with Topology locality",
		},
		"nothing healthy, and too few": {
			policy: topology.None, gpus: 3, reason: errdefs.UnexpectedAdmissionError, away: unhealthy,
			text: "Allocate failed due to no healthy devices present; cannot allocate unhealthy devices example.com/gpu, which is unexpected",
		},
		"too few, aligned": {
			policy: topology.SingleNUMANode, gpus: 3, reason: errdefs.TopologyAffinityError, away: func(*fixture) {},
			text: "Resources cannot be allocated with Topology locality",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newFixture(t, row.policy)
			row.away(h)
			before := h.ledger.View()
			check := func(v admission.Verdict, deferred bool) {
				t.Helper()
				if v.Message != row.text || v.Trace.Message != row.text {
					t.Errorf("message %q, want %q", v.Message, row.text)
				}
				if !deferred || row.want == "" {
					if v.Outcome != admission.Rejected || v.Reason != row.reason || v.Condition != nil {
						t.Errorf("%v %s %v, want a rejection for %s", v.Outcome, v.Reason, v.Condition, row.reason)
					}
					return
				}
				want := admission.Condition{Type: row.want, Provider: device.Name, Resource: gpu}
				if v.Outcome != admission.Deferred || v.Reason != "" || v.RetryAfter != 5*time.Second || v.Condition == nil ||
					*v.Condition != want {
					t.Errorf("%v %q %v %v, want %v", v.Outcome, v.Reason, v.RetryAfter, v.Condition, want)
				}
			}
			pod := guaranteed("pod", 0, row.gpus)
			h.DeferWaits = false
			check(h.admit(t, pod), false)
			h.DeferWaits = true
			check(h.admit(t, pod), true)
			dry, err := h.Admit(context.Background(), admission.Request{Pod: pod, DryRun: true})
			must(t, err)
			check(dry, true)
			if after := h.ledger.View(); after.NumPods() != before.NumPods() || len(h.cgroups.pods) != 0 || len(h.plugins.calls) != 0 {
				t.Error("a pod that waits has left something")
			}
			if row.want == "" {
				return
			}
			h.session = h.inventory.Registered(gpu, device.Options{}, time.Unix(1, 0))
			h.inventory.Listed(h.session, []device.Device{
				{ID: "g0", Healthy: true, Nodes: 1, Topology: true}, {ID: "g1", Healthy: true, Nodes: 1, Topology: true},
			}, time.Unix(0, 0))
			if v := h.admit(t, pod); v.Outcome != admission.Admitted || v.Condition != nil {
				t.Errorf("after the wait: %v %s", v.Outcome, v.Message)
			}
		})
	}
}

// TestPluginGoesUnderWay admits a pod whose plugin goes between the plan and its
// Allocate, and then one whose plugin refuses: only the first is worth a wait.
func TestPluginGoesUnderWay(t *testing.T) {
	t.Parallel()
	h := newFixture(t, topology.Restricted)
	pod := guaranteed("pod", 2, 1)
	away := fmt.Errorf("the plugin was lost: %w", device.ErrAway)
	for _, row := range []struct {
		waits bool
		fail  error
		want  admission.Outcome
	}{
		{false, away, admission.Rejected}, {true, away, admission.Deferred}, {true, errors.New("no"), admission.Rejected},
	} {
		h.DeferWaits, h.plugins.fail = row.waits, row.fail
		v := h.admit(t, pod)
		if v.Outcome != row.want || v.Message != "Allocate failed due to "+row.fail.Error()+", which is unexpected" {
			t.Errorf("%v %q, want %v for %q", v.Outcome, v.Message, row.want, row.fail)
		}
		if row.want == admission.Deferred && (v.Condition == nil || *v.Condition != (admission.Condition{Type: "PluginAway",
			Provider: device.Name, Resource: gpu})) {
			t.Errorf("condition %v", v.Condition)
		}
		if h.ledger.View().NumPods() != 0 || len(h.cgroups.pods) != 0 {
			t.Error("something is left")
		}
	}
	if v := h.admit(t, pod); v.Outcome != admission.Admitted {
		t.Errorf("once the plugin answers: %v %s", v.Outcome, v.Message)
	}
}

// TestWaitsEnd: a plugin that is away is waited for during the grace, and
// devices that are not healthy for as long as their plugin is there.
func TestWaitsEnd(t *testing.T) {
	t.Parallel()
	listed := []device.Device{{ID: "g0", Nodes: 1, Topology: true}}
	for name, row := range map[string]struct {
		event func(h *fixture, at time.Time)
		ends  bool
	}{
		"gone": {func(h *fixture, at time.Time) { h.inventory.Gone(h.session, at) }, true},
		"without list": {func(h *fixture, at time.Time) {
			h.inventory.Gone(h.session, at)
			h.inventory.Registered(gpu, device.Options{}, at)
		}, true},
		"all unhealthy": {func(h *fixture, at time.Time) { h.inventory.Listed(h.session, listed, at) }, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newFixture(t, topology.None)
			h.Resources.Grace = time.Minute
			row.event(h, time.Unix(2000, 0))
			for _, step := range []struct {
				now  int64
				want admission.Outcome
			}{{2000, admission.Deferred}, {2059, admission.Deferred}, {2060, admission.Rejected}, {1 << 30, admission.Rejected}} {
				if !row.ends {
					step.want = admission.Deferred
				}
				h.now.Store(step.now)
				v := h.admit(t, guaranteed("pod", 0, 1))
				if v.Outcome != step.want || (v.Condition == nil) != (step.want == admission.Rejected) {
					t.Errorf("at %d: %v %v %q, want %v", step.now, v.Outcome, v.Condition, v.Message, step.want)
				}
			}
		})
	}
}

// TestUncertainIsACondition checks that a pod's condition is the missing Sync, and that
// the call fails with as much where there are no deferrals.
func TestUncertainIsACondition(t *testing.T) {
	t.Parallel()
	h := newFixture(t, topology.None)
	_, err := h.ledger.Update(context.Background(), func(d *ledger.Draft) error { d.SetUncertain("the ledger was lost"); return nil })
	must(t, err)
	v := h.admit(t, guaranteed("pod", 1, 0))
	if v.Outcome != admission.Deferred || v.Condition == nil || *v.Condition != (admission.Condition{Type: admission.StateUncertain}) {
		t.Errorf("%v %v", v.Outcome, v.Condition)
	}
	h.DeferWaits = false
	_, err = h.Admit(context.Background(), admission.Request{Pod: guaranteed("pod", 1, 0)})
	var wait *errdefs.Error
	if !errors.As(err, &wait) || wait.Class != errdefs.Unavailable || wait.Reason != admission.StateUncertain ||
		wait.RetryAfter != 5*time.Second {
		t.Errorf("without deferrals: %#v", err)
	}
}
