package admission_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/berthd/berth/managers/admission"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/topology"
)

// TestWaitForPodThatEnds goes through what becomes of a pod that fits only without another
// one, whose removal is under way.
func TestWaitForPodThatEnds(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		removal error // how it ends
		defers  bool
		timeout time.Duration
		outcome admission.Outcome
		class   errdefs.Class // of an error
	}{
		"the other pod goes":       {timeout: time.Hour, outcome: admission.Admitted},
		"the other pod stays":      {removal: errors.New("no"), timeout: time.Hour, outcome: admission.Rejected},
		"the deadline comes first": {defers: true, timeout: time.Minute, outcome: admission.Deferred},
		"nobody is deferred":       {timeout: time.Minute, class: errdefs.Unavailable},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				h := newFixture(t, topology.BestEffort)
				h.Now, h.WithTimeout, h.DeferWaits = time.Now, context.WithTimeout, c.defers
				h.admit(t, guaranteed("first", 8, 0))
				h.cgroups.removing = func() { time.Sleep(10 * time.Minute) }
				if c.removal != nil {
					h.cgroups.fail["remove"] = c.removal
				}
				var wg sync.WaitGroup
				wg.Go(func() { _, _, _ = h.Remove(t.Context(), "first", admission.Scope{}) })
				synctest.Wait()
				if v := h.admit(t, guaranteed("beside", 6, 0)); v.Outcome != admission.Admitted {
					t.Fatalf("a pod that fits beside: %+v", v)
				}
				if v := h.admit(t, guaranteed("never", 9, 0)); v.Outcome != admission.Rejected {
					t.Fatalf("a pod that does not fit with the other one gone: %+v", v)
				}
				const why = "second fits without the resources of pods that are ending: first"
				dry, err := h.Admit(t.Context(), admission.Request{Pod: guaranteed("second", 7, 0), DryRun: true})
				if c.defers && (dry.Outcome != admission.Deferred || !strings.HasSuffix(dry.Message, why)) || !c.defers &&
					class(t, err) != errdefs.Unavailable {
					t.Errorf("a dry run: %+v, %v", dry, err)
				}
				ctx, cancel := context.WithTimeout(t.Context(), c.timeout)
				defer cancel()
				v, err := h.Admit(ctx, admission.Request{Pod: guaranteed("second", 7, 0)})
				if ctx.Err() != nil {
					t.Error("the answer came too late")
				}
				switch {
				case c.class != 0:
					if class(t, err) != c.class || !strings.Contains(err.Error(), why) {
						t.Errorf("%v", err)
					}
				case err != nil || v.Outcome != c.outcome:
					t.Errorf("%v %s, %v", v.Outcome, v.Message, err)
				case v.Outcome == admission.Deferred && (v.Condition.Type != admission.PodsEnding || !strings.HasSuffix(v.Message, why)):
					t.Errorf("%+v: %s", v.Condition, v.Message)
				case v.Outcome == admission.Admitted && h.cpus("second") == "":
					t.Error("it has no CPUs")
				}
				wg.Wait()
				h.nothingReserved(t)
			})
		})
	}
}
