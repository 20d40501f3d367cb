package admission_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/berthd/berth/managers/admission"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/hint"
	"github.com/berthd/berth/managers/hint/hinttest"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/topology"
	"github.com/berthd/berth/managers/workload"
)

// resizer is a provider that checks resizes, and fails.
type resizer struct {
	hinttest.Slots
	err error
}

func (r *resizer) Resize(context.Context, *ledger.View, *workload.Pod, *workload.Pod, hint.Widening) ([]ledger.Claim, error) {
	err := r.err
	r.err = nil
	return nil, err
}

// TestResizeIsNotRejectedForWhatPasses has for each kind of failure on the way of a resize
// what its caller gets: a controller drops a rejected resize permanently. The pod stays as
// it was, and the repeated call succeeds.
func TestResizeIsNotRejectedForWhatPasses(t *testing.T) {
	t.Parallel()
	emfile := errdefs.Unavailablef("open cgroup.procs: too many open files")
	below := errdefs.Refuse(errdefs.ResizeDeferred, "cannot decrease memory limits: below current usage")
	for name, c := range map[string]struct {
		arrange func(t *testing.T, h *fixture)
		class   errdefs.Class
		// defers: the answer is a verdict, deferred.
		defers bool
	}{
		"no descriptors to look": {func(_ *testing.T, h *fixture) { h.cgroups.fail["check resize"] = emfile }, errdefs.Unavailable,
			false},
		"no descriptors to write":  {func(_ *testing.T, h *fixture) { h.cgroups.fail["resize"] = emfile }, errdefs.Unavailable, false},
		"no descriptors to record": {func(_ *testing.T, h *fixture) { h.cgroups.fail["record"] = emfile }, errdefs.Unavailable, false},
		"systemd is silent": {func(_ *testing.T, h *fixture) {
			h.cgroups.fail["resize"] = errdefs.Deadlinef("systemd does not answer")
		}, errdefs.Deadline, false},
		"a failure without a class": {func(_ *testing.T, h *fixture) { h.cgroups.fail["resize"] = errors.New("write: no such device") },
			errdefs.Internal, false},
		"its cgroup has just gone": {func(_ *testing.T, h *fixture) {
			h.cgroups.fail["record"] = errdefs.NotFoundf("there is no such cgroup")
		}, errdefs.Unavailable, false},
		"it uses more, at the look":  {func(_ *testing.T, h *fixture) { h.cgroups.fail["check resize"] = below }, 0, true},
		"it uses more, at the write": {func(_ *testing.T, h *fixture) { h.cgroups.fail["resize"] = below }, 0, true},
		"the disk is full": {func(_ *testing.T, h *fixture) {
			h.journal.FailNext(1, errdefs.Unavailablef("no space left on device"))
		}, errdefs.Unavailable, false},
		"the ledger moves": {func(_ *testing.T, h *fixture) { h.journal.FailNext(1, errdefs.Conflictf("moved")) }, errdefs.Unavailable,
			false},
		"a provider is away": {func(t *testing.T, h *fixture) {
			h.with(t, &resizer{err: errdefs.Unavailablef("connection refused")})
		}, errdefs.Unavailable, false},
		"a provider is late": {func(t *testing.T, h *fixture) { h.with(t, &resizer{err: errdefs.Deadlinef("no answer")}) },
			errdefs.Deadline, false},
		"a provider is broken": {func(t *testing.T, h *fixture) {
			h.with(t, &resizer{err: errors.New("nil pointer")})
		}, errdefs.Internal, false},
		"a provider is away, whose word before was no": {func(t *testing.T, h *fixture) {
			h.with(t, &resizer{err: errdefs.Unavailablef("cannot ask again after: %w", errdefs.Refuse(errdefs.Infeasible, "too large"))})
		}, errdefs.Unavailable, false},
		"another pod's reservation": {func(t *testing.T, h *fixture) {
			h.with(t, &resizer{err: errdefs.Refuse(errdefs.ResizeDeferred, "Node didn't have enough resource: cpu")})
		}, 0, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newFixture(t, topology.BestEffort)
			h.admit(t, burstable("s", 500, 2<<20))
			c.arrange(t, h)
			got, err := h.Resize(t.Context(), resizeTo(burstable("s", 700, 2<<20), false))
			switch {
			case c.defers && (err != nil || got.Outcome != admission.Deferred || got.RetryAfter != h.RetryAfter || got.Trace.Admitted):
				t.Errorf("%v %s, %v; want a deferral", got.Outcome, got.Message, err)
			case !c.defers && (err == nil || errdefs.ClassOf(err) != c.class):
				t.Errorf("%v %s, %v; want an error of class %v", got.Outcome, got.Message, err, c.class)
			}
			p, _ := h.ledger.View().Pod("s")
			if p.Pod.Containers[0].Requests[workload.CPU] != 500 || len(h.cgroups.sizes) > 0 &&
				h.cgroups.sizes[len(h.cgroups.sizes)-1] != 500 {
				t.Errorf("the pod has %v, its cgroups %v", p.Pod.Containers[0].Requests, h.cgroups.sizes)
			}
			h.nothingReserved(t)
			if got, err = h.Resize(t.Context(), resizeTo(burstable("s", 700, 2<<20), false)); err != nil ||
				got.Outcome != admission.Admitted {
				t.Errorf("again: %v %s, %v", got.Outcome, got.Message, err)
			}
		})
	}
}

// TestResizeWithoutItsPlugin: a pod with devices is resized while their plugin is away.
func TestResizeWithoutItsPlugin(t *testing.T) {
	t.Parallel()
	h := newFixture(t, topology.BestEffort)
	with := func(milliCPU int64) workload.Pod {
		p := burstable("s", milliCPU, 2<<20)
		p.Containers[0].Requests[gpu], p.Containers[0].Limits[gpu] = 1, 1
		return p
	}
	h.admit(t, with(500))
	calls := len(h.plugins.calls)
	h.inventory.Gone(h.session, time.Unix(1, 0))
	got, err := h.Resize(t.Context(), resizeTo(burstable("s", 700, 2<<20), false))
	if err != nil || got.Outcome != admission.Admitted || len(h.plugins.calls) != calls {
		t.Errorf("%v %s, %v, calls %v", got.Outcome, got.Message, err, h.plugins.calls)
	}
}

// TestLivingPodIsNotUnknown: as long as the ledger may lack pods, or knows that one lives
// without a record, no answer claims that a pod is not here.
func TestLivingPodIsNotUnknown(t *testing.T) {
	t.Parallel()
	calls := map[string]func(h *fixture) error{
		"Resize": func(h *fixture) error {
			_, err := h.Resize(context.Background(), resizeTo(burstable("u", 700, 2<<20), false))
			return err
		},
		"Resize, dry": func(h *fixture) error {
			_, err := h.Resize(context.Background(), resizeTo(burstable("u", 700, 2<<20), true))
			return err
		},
		"PreStart": func(h *fixture) error {
			_, err := h.PreStart(context.Background(), ledger.Owner{Pod: "u", Container: "main"}, "id", 0)
			return err
		},
	}
	for name, row := range map[string]struct {
		arrange func(t *testing.T, h *fixture)
		class   errdefs.Class
		code    errdefs.Code
		says    string
	}{
		"not here": {func(*testing.T, *fixture) {}, errdefs.NotFound, errdefs.PodNotFound, "pod u is not admitted"},
		"perhaps":  {func(t *testing.T, h *fixture) { h.makeUncertain(t) }, errdefs.Unavailable, "LEDGER_UNCERTAIN", "lost"},
		"lives": {func(t *testing.T, h *fixture) {
			h.found(t, ledger.UnknownLivePod{UID: "u", Source: ledger.FromClaimRecord})
		}, errdefs.Unavailable, "LEDGER_UNCERTAIN", "admit it again first"},
	} {
		for call, do := range calls {
			h := newFixture(t, topology.BestEffort)
			row.arrange(t, h)
			err := do(h)
			code, _ := errdefs.CodeOf(err, class(t, err))
			if class(t, err) != row.class || code != row.code || !strings.Contains(err.Error(), row.says) {
				t.Errorf("%s, %s: %v of class %v and code %s; want %v, %s", call, name, err, errdefs.ClassOf(err), code, row.class,
					row.code)
			}
		}
	}
}
