package admission_test

import (
	"context"
	"errors"
	"testing"

	"github.com/berthd/berth/managers/admission"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/hint"
	"github.com/berthd/berth/managers/hint/hinttest"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/ledger/ledgertest"
	"github.com/berthd/berth/managers/topology"
)

// vetoer is a validator that fails.
type vetoer struct {
	hinttest.Slots
	err error
}

func (v *vetoer) Validate(context.Context, *ledger.View, hint.Request) error { return v.err }

// TestLivingPodIsNotRejected: a controller fails a rejected pod permanently, and this one runs.
func TestLivingPodIsNotRejected(t *testing.T) {
	t.Parallel()
	asks := guaranteed("u", 2, 0)
	digest := build(t, topology.BestEffort, ledgertest.NewJournal()).admit(t, asks).Pod.Digest
	for name, fail := range map[string]func(h *fixture){
		"a validator is away": func(h *fixture) { h.with(t, &vetoer{err: errdefs.Unavailablef("connection refused")}) },
		"a validator fails":   func(h *fixture) { h.with(t, &vetoer{err: errors.New("broken")}) },
		"a validator refuses": func(h *fixture) { h.with(t, &vetoer{err: errdefs.Refuse("Veto", "not here")}) },
		"the kernel takes no value": func(h *fixture) {
			h.cgroups.fail["ensure"] = errdefs.Preconditionf("write cpu.max: invalid argument")
		},
		"its cgroup has just gone": func(h *fixture) { h.cgroups.fail["record"] = errdefs.NotFoundf("there is no such cgroup") },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newFixture(t, topology.BestEffort)
			h.found(t, ledger.UnknownLivePod{UID: "u", Source: ledger.FromClaimRecord, Digest: digest, Claims: owned("main", "5-6")})
			fail(h)
			if v, err := h.Admit(t.Context(), admission.Request{Pod: asks}); err == nil && v.Outcome == admission.Rejected {
				t.Errorf("a living pod got the verdict rejected, %s: %s", v.Reason, v.Message)
			}
		})
	}
}

// watcher is a validator that records which pods were passed to it as running.
type watcher struct {
	hinttest.Slots
	running map[string]bool
}

func (w *watcher) Validate(_ context.Context, _ *ledger.View, req hint.Request) error {
	w.running[req.Pod.UID] = req.Running
	return nil
}

// TestValidatorsKnowRunningPods: what a running pod holds is in use, so a validator must not
// look for it among what is free.
func TestValidatorsKnowRunningPods(t *testing.T) {
	t.Parallel()
	asks := guaranteed("u", 2, 0)
	digest := build(t, topology.BestEffort, ledgertest.NewJournal()).admit(t, asks).Pod.Digest
	h := newFixture(t, topology.BestEffort)
	h.found(t, ledger.UnknownLivePod{UID: "u", Source: ledger.FromClaimRecord, Digest: digest, Claims: owned("main", "5-6")})
	w := &watcher{running: map[string]bool{}}
	h.with(t, w)
	h.admit(t, asks)
	h.admit(t, guaranteed("new", 1, 0))
	if !w.running["u"] || w.running["new"] {
		t.Errorf("running: %v", w.running)
	}
	clear(w.running)
	view := h.ledger.View()
	bus, policy := h.Managers(view)
	if _, err := h.Foresee(t.Context(), admission.Change{Rules: view.Rules(), Bus: bus, Policy: policy}); err != nil {
		t.Fatal(err)
	}
	if !w.running["u"] || !w.running["new"] {
		t.Errorf("under other rules, running: %v", w.running)
	}
}

// TestCgroupGoesMeanwhile: a removal of the cgroup between its creation and the claim record is no verdict on the pod.
func TestCgroupGoesMeanwhile(t *testing.T) {
	t.Parallel()
	h := newFixture(t, topology.BestEffort)
	h.cgroups.fail["record"] = errdefs.NotFoundf("there is no such cgroup")
	if v, err := h.Admit(t.Context(), admission.Request{Pod: guaranteed("a", 1, 0)}); err == nil {
		t.Errorf("the verdict %v %s: %s", v.Outcome, v.Reason, v.Message)
	}
}
