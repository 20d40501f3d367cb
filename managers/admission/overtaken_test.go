package admission_test

import (
	"context"
	"sync"
	"testing"

	"github.com/berthd/berth/managers/admission"
	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/topology"
)

// TestTakeOverBesideAHungPlugin: a living pod on a CPU that the rules have reserved since is
// taken over, also while the plugin of another pod hangs.
func TestTakeOverBesideAHungPlugin(t *testing.T) {
	t.Parallel()
	h := newFixture(t, topology.BestEffort)
	inside, leave, done := make(chan struct{}), make(chan struct{}), make(chan struct{})
	h.plugins.allocate = func(context.Context) error { close(inside); <-leave; return nil }
	go func() {
		defer close(done)
		_, _ = h.Admit(context.Background(), admission.Request{Pod: guaranteed("slow", 1, 1)})
	}()
	<-inside
	v, err := h.Admit(t.Context(), admission.Request{
		Pod: guaranteed("u", 1, 0), RunningAllocations: []admission.RunningAllocation{{Container: "main", CPUs: cpuset.Of(8)}},
	})
	if err != nil || v.Outcome != admission.Admitted {
		t.Errorf("%v, %v", v.Outcome, err)
	}
	close(leave)
	<-done
	_, _, err = h.Remove(t.Context(), "u", admission.Scope{}) // the ledger is checked at the end
	must(t, err)
}

// TestTakeOverInFlight: while a pod with unknown devices is being taken over, others that request
// devices are put off, as before and after.
func TestTakeOverInFlight(t *testing.T) {
	t.Parallel()
	h := newFixture(t, topology.BestEffort)
	h.found(t, ledger.UnknownLivePod{UID: "u", Source: ledger.FromKernel, DevicesUnknown: true})
	inside, leave, done := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	h.cgroups.recording = func() { close(inside); <-leave }
	go func() {
		_, err := h.Admit(context.Background(), admission.Request{Pod: guaranteed("u", 1, 1),
			RunningAllocations: []admission.RunningAllocation{{
				Container: "main", CPUs: cpuset.Of(2), Devices: map[string][]string{gpu: {"g0"}},
			}}})
		done <- err
	}()
	<-inside
	v, err := h.Admit(t.Context(), admission.Request{Pod: guaranteed("p", 1, 1)})
	if err != nil || v.Outcome != admission.Deferred || v.Condition.Type != admission.UnknownDevices {
		t.Errorf("%v %v, %v", v.Outcome, v.Condition, err)
	}
	close(leave)
	must(t, <-done)
}

// TestUnknownDevicesTurnUpMeanwhile: a living pod with unknown devices is found between the plan and the commit of another.
func TestUnknownDevicesTurnUpMeanwhile(t *testing.T) {
	t.Parallel()
	h := newFixture(t, topology.BestEffort)
	h.cgroups.recording = func() {
		h.found(t, ledger.UnknownLivePod{UID: "u", Source: ledger.FromKernel, DevicesUnknown: true})
	}
	if v := h.admit(t, guaranteed("p", 1, 1)); v.Outcome != admission.Deferred || v.Condition.Type != admission.UnknownDevices {
		t.Errorf("%v %v", v.Outcome, v.Condition)
	}
}

// TestWhoWaitsHasNoTurn: a pod that waits for another's reservation does not hold up who
// calls the same plugin and fits.
func TestWhoWaitsHasNoTurn(t *testing.T) {
	t.Parallel()
	h, c := choosing(t, topology.None)
	inside, leave := make(chan struct{}), make(chan struct{})
	h.cgroups.recording = func() { close(inside); <-leave }
	var wg sync.WaitGroup
	c.during = func(n int) {
		if n == 1 { // of pod waits, which fits until then
			wg.Go(func() { h.admit(t, guaranteed("slow", 8, 0)) })
			<-inside
		}
	}
	waits := make(chan struct{}, 100)
	h.Waits = func(context.Context) { waits <- struct{}{} }
	wg.Go(func() {
		v := h.admit(t, guaranteed("waits", 7, 1))
		if v.Outcome != admission.Deferred && v.Outcome != admission.Rejected {
			t.Errorf("%v", v.Outcome)
		}
	})
	<-waits // for its plugin
	<-waits // for pod slow
	if v, err := h.Admit(t.Context(), admission.Request{Pod: guaranteed("fits", 1, 1)}); err != nil || v.Outcome != admission.Admitted {
		t.Errorf("%v, %v", v.Outcome, err)
	}
	close(leave)
	wg.Wait()
}
