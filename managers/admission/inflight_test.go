package admission_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/berthd/berth/managers/admission"
	"github.com/berthd/berth/managers/device"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/hint"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/ledger/ledgertest"
	"github.com/berthd/berth/managers/topology"
	"github.com/berthd/berth/managers/workload"
)

// hang makes the next Allocate hang until release is called; entered is closed when it
// does.
func (p *plugins) hang() (entered <-chan struct{}, release func()) {
	in, out := make(chan struct{}), make(chan struct{})
	p.allocate = func(ctx context.Context) error {
		p.allocate = nil
		p.mu.Unlock()
		defer p.mu.Lock()
		close(in)
		select {
		case <-out:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return in, sync.OnceFunc(func() { close(out) })
}

// TestHungPluginHoldsUpNobody: while a plugin hangs in Allocate, pods that do not need
// it come, change, go and are synchronised, and the policy is changed.
func TestHungPluginHoldsUpNobody(t *testing.T) {
	t.Parallel()
	h := newFixture(t, topology.BestEffort)
	h.admit(t, guaranteed("old", 1, 0))
	h.cgroups.pods["nobody"] = true
	entered, release := h.plugins.hang()
	defer release()
	var wg sync.WaitGroup
	wg.Go(func() {
		if v := h.admit(t, guaranteed("hung", 2, 1)); v.Outcome != admission.Admitted {
			t.Errorf("%v %s", v.Outcome, v.Message)
		}
	})
	<-entered

	if v := h.admit(t, guaranteed("next", 2, 0)); v.Outcome != admission.Admitted {
		t.Fatalf("%v %s", v.Outcome, v.Message)
	}
	if v := h.admit(t, guaranteed("gpu", 1, 1)); v.Outcome != admission.Admitted || v.Pod.Claims[1].Devices.Devices[0].ID == "g0" {
		t.Errorf("%v %s: %+v", v.Outcome, v.Message, v.Pod)
	}
	shared := guaranteed("shared", 1, 0)
	shared.Containers[0].Requests = workload.Quantities{workload.CPU: 100, workload.Memory: 1 << 20}
	shared.Containers[0].Limits = nil
	h.admit(t, shared)
	shared.Containers = slices.Clone(shared.Containers)
	shared.Containers[0].Requests = workload.Quantities{workload.CPU: 200, workload.Memory: 1 << 20}
	if r, err := h.Resize(t.Context(), resizeTo(shared, false)); err != nil || r.Outcome != admission.Admitted {
		t.Errorf("resize: %+v, %v", r, err)
	}
	if removed, err := h.Sync(t.Context(), h.listed([]string{"next", "gpu", "shared"})); err != nil ||
		!slices.Equal(removed, []string{"old"}) {
		t.Errorf("sync: %v, %v", removed, err)
	}
	if h.cgroups.pods["nobody"] {
		t.Error("sync has left a cgroup of nobody")
	}
	ch := other(t, h, h.ledger.View().Rules().ReservedCPUs, topology.None)
	if _, err := h.Reconfigure(t.Context(), ch); err != nil {
		t.Errorf("policy: %v", err)
	}
	if _, here := h.ledger.View().Pod("hung"); here {
		t.Fatal("the plugin does not hang")
	}
	release()
	wg.Wait()
	if h.cpus("hung") == h.cpus("next") {
		t.Error("CPUs were given twice")
	}
	h.nothingReserved(t)
}

// nothingReserved: with the last operation all reservations have ended.
func (h *fixture) nothingReserved(t *testing.T) {
	t.Helper()
	if left := h.Reserved(); len(left) > 0 {
		t.Errorf("reservations are left: %v", left)
	}
}

// TestWaitForReservation goes through what becomes of a pod that fits only without the
// reservation of another.
func TestWaitForReservation(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		plugin  error // what it answers at last
		defers  bool
		timeout time.Duration
		outcome admission.Outcome
		class   errdefs.Class // of an error
	}{
		"the other pod fails":           {plugin: errors.New("no"), timeout: time.Hour, outcome: admission.Admitted},
		"the other pod is admitted":     {timeout: time.Hour, outcome: admission.Rejected},
		"the deadline comes first":      {defers: true, timeout: time.Minute, outcome: admission.Deferred},
		"nobody is deferred":            {timeout: time.Minute, class: errdefs.Unavailable},
		"the deadline, a moment before": {defers: true, timeout: 10*time.Minute + 100*time.Millisecond, outcome: admission.Deferred},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				h := newFixture(t, topology.BestEffort)
				h.Now, h.WithTimeout, h.DeferWaits = time.Now, context.WithTimeout, c.defers
				h.plugins.allocate = func(context.Context) error {
					h.plugins.mu.Unlock()
					defer h.plugins.mu.Lock()
					time.Sleep(10 * time.Minute)
					return c.plugin
				}
				var wg sync.WaitGroup
				wg.Go(func() { h.admit(t, guaranteed("first", 1, 4)) })
				synctest.Wait()
				if v, err := h.Admit(t.Context(), admission.Request{Pod: guaranteed("second", 9, 0)}); err != nil ||
					v.Outcome != admission.Admitted {
					t.Fatalf("a pod that fits beside: %+v, %v", v, err)
				}
				dry, err := h.Admit(t.Context(), admission.Request{Pod: guaranteed("third", 1, 1), DryRun: true})
				if c.defers && (dry.Outcome != admission.Deferred || !strings.HasSuffix(dry.Message, "resized: first")) || !c.defers &&
					class(t, err) != errdefs.Unavailable {
					t.Errorf("a dry run: %+v, %v", dry, err)
				}
				ctx, cancel := context.WithTimeout(t.Context(), c.timeout)
				defer cancel()
				h.plugins.allocate = nil
				v, err := h.Admit(ctx, admission.Request{Pod: guaranteed("third", 1, 1)})
				if ctx.Err() != nil {
					t.Error("the answer came too late")
				}
				switch {
				case c.class != 0:
					if class(t, err) != c.class || !strings.Contains(err.Error(), "first") {
						t.Errorf("%v", err)
					}
				case err != nil || v.Outcome != c.outcome:
					t.Errorf("%v %s, %v", v.Outcome, v.Message, err)
				case v.Outcome == admission.Deferred && (v.Condition.Type != admission.AdmissionsInFlight ||
					!strings.HasSuffix(v.Message, "resized: first")):
					t.Errorf("%+v: %s", v.Condition, v.Message)
				}
				wg.Wait()
				h.nothingReserved(t)
			})
		})
	}
}

// chooser is a plugin that prefers the devices with the highest ids.
type chooser struct {
	*plugins
	offered []string
	// during is called inside Preferred, with the number of the call.
	during func(n int)
	// err is the answer, if it is set.
	err error
}

func (c *chooser) Preferred(_ context.Context, _ string, available, _ []string, size int) ([]string, error) {
	c.mu.Lock()
	c.offered = append(c.offered, strings.Join(available, ","))
	n := len(c.offered)
	c.mu.Unlock()
	if c.during != nil {
		c.during(n)
	}
	if c.err != nil {
		return nil, c.err
	}
	return available[len(available)-size:], nil
}

// choosing makes an engine whose plugin implements GetPreferredAllocation.
func choosing(t *testing.T, policy topology.Policy) (*fixture, *chooser) {
	t.Helper()
	h := newFixture(t, policy)
	c := &chooser{plugins: h.plugins}
	h.replaceDevices(t, device.New(h.inventory, c))
	session := h.inventory.Registered(gpu, device.Options{Preferred: true}, time.Unix(0, 0))
	h.session = session
	h.inventory.Listed(session, []device.Device{g("g0", 0), g("g1", 0), g("g2", 0), g("g3", 1)}, time.Unix(0, 0))
	return h, c
}

// TestPreferenceIsNeverFatal: a plugin that fails at GetPreferredAllocation is called once for a pod, which is admitted with the devices of
// berth's own choice. The trace has the resource and the plugin's error once for each container, also that of a dry run.
func TestPreferenceIsNeverFatal(t *testing.T) {
	t.Parallel()
	for _, err := range []error{errors.New("told to refuse"), errdefs.Deadlinef("told to refuse"), errdefs.Refuse("", "told to refuse")} {
		h, c := choosing(t, topology.BestEffort)
		c.err = err
		pod := guaranteed("a", 1, 1)
		for name, v := range map[string]admission.Verdict{"dry run": h.dryRun(t, pod), "admission": h.admit(t, pod)} {
			if v.Outcome != admission.Admitted || v.Pod.Claims[1].Devices.Devices[0].ID != "g0" {
				t.Fatalf("%s: %v %s: %+v", name, v.Outcome, v.Message, v.Pod)
			}
			var notes []ledger.Step
			for _, s := range v.Trace.Steps {
				if s.Kind == ledger.StepNoted && strings.Contains(s.Text, "GetPreferredAllocation failed: told to refuse") {
					notes = append(notes, s)
				}
			}
			if len(notes) != 1 || notes[0].Resource != gpu || notes[0].Container != "main" || notes[0].Provider != device.Name {
				t.Errorf("%s: noted %+v", name, notes)
			}
		}
		if len(c.offered) != 2 {
			t.Errorf("the plugin was called %d times for a dry run and an admission", len(c.offered))
		}
		c.err = nil
		if v := h.admit(t, guaranteed("b", 1, 1)); v.Outcome != admission.Admitted || v.Pod.Claims[1].Devices.Devices[0].ID != "g2" {
			t.Errorf("afterwards: %v %s: %+v", v.Outcome, v.Message, v.Pod)
		}
		h.nothingReserved(t)
	}
}

// TestPlanIsReplayed: a plugin is called once for a plan, without the admission lock,
// and again only if what it was offered has changed.
func TestPlanIsReplayed(t *testing.T) {
	t.Parallel()
	h, c := choosing(t, topology.BestEffort)
	c.during = func(n int) {
		if n == 1 {
			// Neither does the ledger stand still nor the other admissions.
			h.admit(t, guaranteed("beside", 1, 0))
		}
	}
	if v := h.admit(t, guaranteed("a", 1, 1)); v.Outcome != admission.Admitted || v.Pod.Claims[1].Devices.Devices[0].ID != "g2" {
		t.Fatalf("%v %s: %+v", v.Outcome, v.Message, v.Pod)
	}
	if want := []string{"g0,g1,g2"}; !slices.Equal(c.offered, want) {
		t.Errorf("offered %q, want %q", c.offered, want)
	}
	c.offered = nil
	c.during = func(n int) {
		if n == 1 {
			h.inventory.Listed(h.session, []device.Device{g("g0", 0), g("g1", 0), g("g2", 0), g("g4", 0), g("g3", 1)}, time.Unix(1, 0))
		}
	}
	if v := h.admit(t, guaranteed("b", 1, 1)); v.Outcome != admission.Admitted || v.Pod.Claims[1].Devices.Devices[0].ID != "g4" {
		t.Fatalf("%v %s: %+v", v.Outcome, v.Message, v.Pod)
	}
	if want := []string{"g0,g1", "g0,g1,g4"}; !slices.Equal(c.offered, want) {
		t.Errorf("offered %q, want %q", c.offered, want)
	}
}

// TestInputsThatNeverStandStill: a call is repeated three times at most.
func TestInputsThatNeverStandStill(t *testing.T) {
	t.Parallel()
	h, c := choosing(t, topology.BestEffort)
	devices := []device.Device{g("g0", 0), g("g1", 0), g("g2", 0)}
	c.during = func(n int) {
		devices = append(devices, g("h"+string(rune('0'+n)), 0))
		h.inventory.Listed(h.session, devices, time.Unix(int64(n), 0))
	}
	_, err := h.Admit(t.Context(), admission.Request{Pod: guaranteed("a", 1, 1)})
	if class(t, err) != errdefs.Unavailable || len(c.offered) != 4 {
		t.Errorf("%v after %d calls", err, len(c.offered))
	}
	h.nothingReserved(t)
}

// TestOvertakenBetweenTwoPlugins: a pod that needs two plugins has no turn at either. Four
// others that come between its calls make it fail for now, with an error that its caller
// repeats, and the fifth call finds them gone.
func TestOvertakenBetweenTwoPlugins(t *testing.T) {
	t.Parallel()
	h, c := choosing(t, topology.None)
	const nic = "example.com/nic"
	session := h.inventory.Registered(nic, device.Options{Preferred: true}, time.Unix(0, 0))
	h.inventory.Listed(session, []device.Device{g("n0", 0)}, time.Unix(0, 0))
	var devices []device.Device
	for i := range 8 {
		devices = append(devices, g(fmt.Sprintf("g%d", i), 0))
	}
	h.inventory.Listed(h.session, devices, time.Unix(1, 0))
	both := guaranteed("both", 1, 1)
	both.Containers[0].Requests[nic] = 1 // the limits are the same map

	others := 0
	c.during = func(n int) {
		during := c.during
		if n > 1 && others < 4 { // at the first call it has a turn
			others++
			c.during = nil
			h.admit(t, guaranteed(fmt.Sprintf("other%d", others), 1, 1))
			c.during = during
		}
	}
	if _, err := h.Admit(t.Context(), admission.Request{Pod: both}); class(t, err) != errdefs.Unavailable ||
		!errors.Is(err, hint.ErrInputsChanged) {
		t.Errorf("%v", err)
	}
	h.nothingReserved(t)
	if v := h.admit(t, both); v.Outcome != admission.Admitted || others != 4 {
		t.Errorf("repeated after %d others: %v %s", others, v.Outcome, v.Message)
	}
}

// TestAdmissionsOfOnePluginTakeTurns: many at once, and none of them finds that its
// devices were taken during the call of the plugin.
func TestAdmissionsOfOnePluginTakeTurns(t *testing.T) {
	t.Parallel()
	h, c := choosing(t, topology.BestEffort)
	var wg sync.WaitGroup
	for _, uid := range []string{"a", "b", "c"} {
		wg.Go(func() {
			if v := h.admit(t, guaranteed(uid, 1, 1)); v.Outcome != admission.Admitted {
				t.Errorf("%v %s", v.Outcome, v.Message)
			}
		})
	}
	wg.Wait()
	// The last one takes the only device that is left near its CPUs.
	if len(c.offered) > 3 {
		t.Errorf("asked %d times for three pods: %q", len(c.offered), c.offered)
	}
}

// TestTrialsCallNobody: a rejection is explained, and a policy tried, without a call to
// the plugin. Where the plan itself came as far as to the plugin, that is one call.
func TestTrialsCallNobody(t *testing.T) {
	t.Parallel()
	for policy, calls := range map[topology.Policy]int{topology.SingleNUMANode: 0, topology.BestEffort: 1} {
		h, c := choosing(t, policy)
		v := h.admit(t, guaranteed("a", 20, 1))
		if v.Outcome != admission.Rejected || v.Trace.Tried == 0 || len(v.Trace.Suggestions) == 0 {
			t.Errorf("%v %s, tried %d, suggested %+v", v.Outcome, v.Message, v.Trace.Tried, v.Trace.Suggestions)
		}
		h.admit(t, guaranteed("b", 1, 1))
		if _, err := h.Foresee(t.Context(), other(t, h, h.ledger.View().Rules().ReservedCPUs, topology.None)); err != nil {
			t.Error(err)
		}
		if len(c.offered) != calls+1 {
			t.Errorf("%s: the plugin was asked %d times, want %d", policy, len(c.offered), calls+1)
		}
	}
}

// TestAdmissionIDInFlight: the name of an admission that is under way is taken.
func TestAdmissionIDInFlight(t *testing.T) {
	t.Parallel()
	h := newFixture(t, topology.BestEffort)
	entered, release := h.plugins.hang()
	var wg sync.WaitGroup
	wg.Go(func() {
		if _, err := h.Admit(t.Context(), admission.Request{Pod: guaranteed("a", 1, 1), AdmissionID: "one"}); err != nil {
			t.Error(err)
		}
	})
	<-entered
	_, err := h.Admit(t.Context(), admission.Request{Pod: guaranteed("b", 1, 1), AdmissionID: "one"})
	if class(t, err) != errdefs.Exists || !strings.Contains(err.Error(), "pod a") {
		t.Errorf("%v", err)
	}
	release()
	wg.Wait()
}

// TestReleasesDoNotDisturb: what a pod gets is decided when its plan is reserved; what
// becomes free while a plugin is called is left to later pods.
func TestReleasesDoNotDisturb(t *testing.T) {
	t.Parallel()
	h := newFixture(t, topology.BestEffort)
	h.admit(t, guaranteed("old", 2, 0))
	moved := false
	h.plugins.during = func() {
		if !moved {
			moved = true
			if _, _, err := h.Remove(context.Background(), "old", admission.Scope{}); err != nil {
				t.Error(err)
			}
		}
	}
	v := h.admit(t, guaranteed("new", 2, 1))
	if v.Outcome != admission.Admitted {
		t.Fatalf("%s %s", v.Reason, v.Message)
	}
	if got := h.cpus("new"); got != "3-4" {
		t.Errorf("CPUs %s, want those that were planned (3-4)", got)
	}
	if has(ledger.StepReplanned, v.Trace) {
		t.Error("the plan was made again")
	}
	if len(h.plugins.calls) != 1 {
		t.Errorf("the plugin was asked %d times for one admission: %v", len(h.plugins.calls), h.plugins.calls)
	}
}

// TestImportDuringAdmission: an import takes what was reserved. The
// plan is made again, and the plugin is called for other devices only.
func TestImportDuringAdmission(t *testing.T) {
	t.Parallel()
	h := newFixture(t, topology.BestEffort)
	h.plugins.during = func() {
		h.plugins.during = nil
		h.taken(t, "other", "1")
	}
	v := h.admit(t, guaranteed("new", 2, 1))
	if v.Outcome != admission.Admitted || h.cpus("new") != "2-3" || !has(ledger.StepReplanned, v.Trace) {
		t.Errorf("%v %s, CPUs %s, %v", v.Outcome, v.Message, h.cpus("new"), kinds(v.Trace))
	}
	if len(h.plugins.calls) != 1 {
		t.Errorf("the plugin was called %d times for one admission: %v", len(h.plugins.calls), h.plugins.calls)
	}
	ledgertest.Check(t, h.ledger)
}

// taken puts a pod with CPUs of its own into the ledger, as an import does.
func (h *fixture) taken(t *testing.T, uid, cpus string) {
	t.Helper()
	if _, err := h.ledger.Update(t.Context(), func(d *ledger.Draft) error {
		d.PutPod(ledgertest.With(ledgertest.Pod(uid, "c"), ledgertest.Exclusive("c", cpus)))
		return nil
	}); err != nil {
		t.Error(err)
	}
}

// TestSweepLeavesWhoIsOnTheWay: between its cgroup and its commit a pod looks like one
// that is not known.
func TestSweepLeavesWhoIsOnTheWay(t *testing.T) {
	t.Parallel()
	h := newFixture(t, topology.BestEffort)
	h.cgroups.during = func() {
		h.cgroups.during = nil
		h.cgroups.pods["a"], h.cgroups.pods["nobody"] = true, true
		h.cgroups.mu.Unlock()
		defer h.cgroups.mu.Lock()
		for _, living := range [][]string{nil, {"a"}} {
			if _, err := h.Sync(t.Context(), h.listed(living)); err != nil {
				t.Error(err)
			}
			if noted := slices.Collect(h.ledger.View().UnknownLivePods()); len(noted) > 0 {
				t.Errorf("pods on their way are taken for unknown ones: %v", noted)
			}
		}
	}
	if v := h.admit(t, guaranteed("a", 1, 0)); v.Outcome != admission.Admitted {
		t.Fatalf("%v %s", v.Outcome, v.Message)
	}
	if !h.cgroups.pods["a"] || h.cgroups.pods["nobody"] {
		t.Errorf("cgroups %v", h.cgroups.pods)
	}
}

// TestUnremovablePodsHoldUpNoOther: Sync ends with its time, and all that can go have
// gone by then.
func TestUnremovablePodsHoldUpNoOther(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := newFixture(t, topology.BestEffort)
		h.Each = func(n int, do func(int)) {
			var wg sync.WaitGroup
			for i := range n {
				wg.Go(func() { do(i) })
			}
			wg.Wait()
		}
		for _, uid := range []string{"a", "b", "c", "d"} {
			h.admit(t, guaranteed(uid, 1, 0))
		}
		h.cgroups.pods["x"], h.cgroups.pods["y"] = true, true
		h.cgroups.stuck = map[string]bool{"a": true, "b": true, "x": true}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		removed, err := h.Sync(ctx, h.listed(nil))
		if err == nil || !slices.Equal(removed, []string{"c", "d"}) {
			t.Errorf("removed %v, %v", removed, err)
		}
		if h.cgroups.pods["y"] || !h.cgroups.pods["x"] {
			t.Errorf("cgroups %v", h.cgroups.pods)
		}
	})
}

// TestSuspendedPlugin: a pod that needs a plugin which is not called for a while is put
// off until the next probe, or rejected as by the kubelet.
func TestSuspendedPlugin(t *testing.T) {
	t.Parallel()
	h := newFixture(t, topology.BestEffort)
	for _, defers := range []bool{true, false} {
		err := errdefs.Unavailablef("Allocate of the device plugin for %s at gpu.sock: it is suspended until noon", gpu)
		err.Err, err.RetryAfter = device.ErrSuspended, 42*time.Second
		h.DeferWaits, h.plugins.fail = defers, err
		v := h.admit(t, guaranteed("a", 1, 1))
		if !strings.Contains(v.Message, "gpu.sock: it is suspended until noon") {
			t.Errorf("message %q", v.Message)
		}
		if !defers {
			if v.Outcome != admission.Rejected || v.Reason != errdefs.UnexpectedAdmissionError {
				t.Errorf("%v %s", v.Outcome, v.Reason)
			}
			continue
		}
		want := admission.Condition{Type: string(device.PluginSuspended), Provider: device.Name, Resource: gpu}
		if v.Outcome != admission.Deferred || v.RetryAfter != 42*time.Second || v.Condition == nil || *v.Condition != want {
			t.Errorf("%v after %s: %+v", v.Outcome, v.RetryAfter, v.Condition)
		}
	}
	h.nothingReserved(t)
}

// TestResizeIsReserved: while a pod is being resized, others count the larger of what it
// has and what it is to have, of each resource.
func TestResizeIsReserved(t *testing.T) {
	t.Parallel()
	h := setup{shape: "1s1n4c1t", policy: topology.None, fit: true}.open(t)
	h.DeferWaits = true
	const mebi = 1 << 20
	h.admit(t, burstable("s", 1000, 64*mebi))
	var verdicts []admission.Verdict
	h.cgroups.resizing = func() {
		h.cgroups.resizing = nil
		for _, p := range []workload.Pod{burstable("b", 1000, mebi), burstable("c", 500, mebi)} {
			verdicts = append(verdicts, h.dryRun(t, p))
		}
	}
	// Of 3 CPUs it takes more, and of the memory less.
	if r, err := h.Resize(t.Context(), resizeTo(burstable("s", 2500, 32*mebi), false)); err != nil || r.Outcome != admission.Admitted {
		t.Fatalf("%+v, %v", r, err)
	}
	if v := verdicts[0]; v.Outcome != admission.Deferred || !strings.HasSuffix(v.Message, "resized: s") {
		t.Errorf("more than is left: %v %s", v.Outcome, v.Message)
	}
	if v := verdicts[1]; v.Outcome != admission.Admitted {
		t.Errorf("what is left: %v %s", v.Outcome, v.Message)
	}
	h.nothingReserved(t)
}

// TestPolicyChangesDuringResize: what was decided under the old rules is taken back, and
// decided again under the new ones, so often and no more.
func TestPolicyChangesDuringResize(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		changes int
		class   errdefs.Class
		sizes   []int64
	}{
		"once":   {1, 0, []int64{700, 500, 700}},
		"always": {3, errdefs.Unavailable, []int64{700, 500, 700, 500, 700, 500}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newFixture(t, topology.BestEffort)
			h.Attempts = 3
			h.admit(t, burstable("s", 500, 2<<20))
			resizes := 0
			h.cgroups.resizing = func() {
				// Every second one takes the change of before back.
				if resizes++; resizes%2 == 1 && resizes/2 < c.changes {
					ch := other(t, h, h.ledger.View().Rules().ReservedCPUs, topology.None)
					ch.Rules.ConfigDigest = fmt.Sprintf("change %d", resizes)
					if _, err := h.Reconfigure(t.Context(), ch); err != nil {
						t.Error(err)
					}
				}
			}
			_, err := h.Resize(t.Context(), resizeTo(burstable("s", 700, 2<<20), false))
			if c.class == 0 && err != nil || c.class != 0 && class(t, err) != c.class || !slices.Equal(h.cgroups.sizes, c.sizes) {
				t.Errorf("%v, sizes %v; want class %v, sizes %v", err, h.cgroups.sizes, c.class, c.sizes)
			}
			have, _ := h.ledger.View().Pod("s")
			if got := have.Pod.Containers[0].Requests[workload.CPU]; got != c.sizes[len(c.sizes)-1] {
				t.Errorf("the ledger has %d", got)
			}
			h.nothingReserved(t)
		})
	}
}
