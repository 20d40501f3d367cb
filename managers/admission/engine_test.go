package admission_test

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/berthd/berth/managers/admission"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/ledger/ledgertest"
	"github.com/berthd/berth/managers/topology"
	"github.com/berthd/berth/managers/workload"
)

func TestAdmitTakesEverythingAtOnce(t *testing.T) {
	t.Parallel()
	h := newFixture(t, topology.SingleNUMANode)
	v := h.admit(t, guaranteed("a", 2, 1))
	if v.Outcome != admission.Admitted || v.Pod.CgroupParent != "/kubepods/poda" || v.QoS != workload.Guaranteed {
		t.Fatalf("%+v", v)
	}
	if got := h.cpus("a"); got != "1-2" {
		t.Errorf("CPUs %s, want 1-2", got)
	}
	c, ok := v.Pod.Claim("main", gpu)
	if !ok || c.Devices.Devices[0].ID != "g0" || string(c.Devices.Response) != "response" {
		t.Errorf("claim on a device: %+v", c)
	}
	for _, kind := range []ledger.StepKind{
		ledger.StepAnswered, ledger.StepMerged, ledger.StepPlanned, ledger.StepPrepared, ledger.StepPlaced, ledger.StepCommitted,
	} {
		if !has(kind, v.Trace) {
			t.Errorf("the trace lacks a step %s: %v", kind, kinds(v.Trace))
		}
	}
	if h.journal.Commits() != 1 {
		t.Errorf("%d commits for one admission", h.journal.Commits())
	}
}

func TestSamePodSameAnswer(t *testing.T) {
	t.Parallel()
	h := newFixture(t, topology.BestEffort)
	first := h.admit(t, guaranteed("a", 2, 1))
	commits, calls := h.journal.Commits(), len(h.plugins.calls)
	pod := guaranteed("a", 2, 1)
	pod.QoS = workload.Guaranteed // as it comes back with its status filled in
	pod.Labels = map[string]string{"new": "label"}
	second := h.admit(t, pod)
	if !reflect.DeepEqual(first.Pod, second.Pod) || !reflect.DeepEqual(first.Trace, second.Trace) {
		t.Errorf("another answer:\n%+v\n%+v", first, second)
	}
	if h.journal.Commits() != commits || len(h.plugins.calls) != calls {
		t.Error("asking again changed something")
	}
	_, err := h.Admit(t.Context(), admission.Request{Pod: guaranteed("a", 3, 1)})
	if class(t, err) != errdefs.Precondition || !strings.Contains(err.Error(), "Resize") {
		t.Errorf("another spec: %v", err)
	}
}

func TestDryRunChangesNothing(t *testing.T) {
	t.Parallel()
	h := newFixture(t, topology.Restricted)
	before := h.ledger.View()
	v, err := h.Admit(t.Context(), admission.Request{Pod: guaranteed("a", 2, 1), DryRun: true})
	if err != nil || v.Outcome != admission.Admitted || len(v.Pod.Claims) != 2 {
		t.Fatalf("%+v, %v", v, err)
	}
	if h.ledger.View() != before || len(h.cgroups.pods) != 0 || len(h.plugins.calls) != 0 {
		t.Error("a dry run left something behind")
	}
	wet := h.admit(t, guaranteed("a", 2, 1))
	if got, _, _ := v.View.ContainerCPUs(ledger.Owner{Pod: "a", Container: "main"}); got.String() != h.cpus("a") {
		t.Errorf("dry run said %s, admission gave %s (%v)", got, h.cpus("a"), wet.Outcome)
	}
}

func TestDryRunWaitsForNobody(t *testing.T) {
	t.Parallel()
	h := newFixture(t, topology.BestEffort)
	inside, release := make(chan struct{}), make(chan struct{})
	h.plugins.during = func() { close(inside); <-release }
	var wg sync.WaitGroup
	wg.Go(func() { h.admit(t, guaranteed("slow", 1, 1)) })
	<-inside
	v, err := h.Admit(t.Context(), admission.Request{Pod: guaranteed("b", 1, 0), DryRun: true})
	close(release)
	wg.Wait()
	if err != nil || v.Outcome != admission.Admitted {
		t.Fatalf("%+v, %v", v, err)
	}
}

func TestRejectionLeavesNothing(t *testing.T) {
	t.Parallel()
	boom := errdefs.Preconditionf("write cpu.shares 1: invalid argument")
	for name, c := range map[string]struct {
		policy  topology.Policy
		pod     workload.Pod
		arrange func(*fixture)
		reason  errdefs.Reason
		message string
	}{
		"no alignment": {
			topology.SingleNUMANode, guaranteed("x", 9, 0), nil, errdefs.TopologyAffinityError,
			"Resources cannot be allocated with Topology locality",
		},
		"not enough CPUs": {
			topology.None, guaranteed("x", 15, 0), nil, errdefs.UnexpectedAdmissionError,
			"Allocate failed due to ",
		},
		"not enough devices": {
			topology.None, guaranteed("x", 1, 5), nil, errdefs.UnexpectedAdmissionError,
			"requested number of devices unavailable for example.com/gpu. Requested: 5, Available: 4",
		},
		"plugin refuses": {
			topology.None, guaranteed("x", 1, 1), func(h *fixture) { h.plugins.fail = errors.New("gpu fell off the bus") },
			errdefs.UnexpectedAdmissionError, "gpu fell off the bus",
		},
		"cgroup fails": {
			topology.None, guaranteed("x", 1, 1), func(h *fixture) { h.cgroups.fail["ensure"] = boom },
			errdefs.UnexpectedAdmissionError, boom.Error(),
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newFixture(t, c.policy)
			if c.arrange != nil {
				c.arrange(h)
			}
			v := h.admit(t, c.pod)
			if v.Outcome != admission.Rejected || v.Reason != c.reason || !strings.Contains(v.Message, c.message) {
				t.Fatalf("%v %s %q; want %s with %q", v.Outcome, v.Reason, v.Message, c.reason, c.message)
			}
			view := h.ledger.View()
			if view.NumPods() != 0 || !view.ExclusiveCPUs().IsEmpty() || len(h.cgroups.pods) != 0 {
				t.Errorf("left behind: %d pods, CPUs %s, cgroups %v", view.NumPods(), view.ExclusiveCPUs(), h.cgroups.pods)
			}
			if kept, ok := view.Trace(v.Trace.AdmissionID); !ok || kept.Reason != string(c.reason) || kept.Time.Unix() != 1000 {
				t.Errorf("the trace was not kept: %+v", kept)
			}
			// The same room serves the next pod.
			if v := h.admit(t, guaranteed("next", 1, 1)); v.Outcome != admission.Admitted {
				t.Errorf("the next pod: %s %s", v.Reason, v.Message)
			}
		})
	}
}

// TestPluginsAreNotCalledForARefusedPod: the first container could have its device,
// the second cannot, and no plugin is called.
func TestPluginsAreNotCalledForARefusedPod(t *testing.T) {
	t.Parallel()
	h := newFixture(t, topology.BestEffort)
	p := guaranteed("a", 1, 1)
	second := guaranteed("a", 1, 4).Containers[0]
	second.Name = "second"
	p.Containers = append(p.Containers, second)
	if v := h.admit(t, p); v.Outcome != admission.Rejected || len(h.plugins.calls) != 0 {
		t.Errorf("%v %s, calls %v", v.Outcome, v.Message, h.plugins.calls)
	}
	p.Containers[1].Requests[gpu] = 3
	if v := h.admit(t, p); v.Outcome != admission.Admitted || len(h.plugins.calls) != 2 {
		t.Errorf("%v %s, calls %v", v.Outcome, v.Message, h.plugins.calls)
	}
}

// TestWhatPassesIsNoVerdict: a failure that is not the pod's stays an error of its class in every call, and
// changes nothing. A controller fails a rejected pod permanently.
func TestWhatPassesIsNoVerdict(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	calls := map[string]struct {
		op   string
		call func(h *fixture) error
	}{
		"Admit": {"ensure", func(h *fixture) error {
			v, err := h.Admit(ctx, admission.Request{Pod: guaranteed("b", 1, 1)})
			if v.Outcome == admission.Rejected && err == nil {
				t.Errorf("Admit gives the verdict %v %s: %s", v.Outcome, v.Reason, v.Message)
			}
			return err
		}},
		"PreStart": {"container", func(h *fixture) error {
			_, err := h.PreStart(ctx, ledger.Owner{Pod: "a", Container: "main"}, "id", 0)
			return err
		}},
		"Remove": {"remove", func(h *fixture) error { _, _, err := h.Remove(ctx, "a", admission.Scope{}); return err }},
		"Resize, check": {"check resize", func(h *fixture) error {
			_, err := h.Resize(ctx, resizeTo(burstable("s", 700, 2<<20), false))
			return err
		}},
		"Resize": {"resize", func(h *fixture) error {
			_, err := h.Resize(ctx, resizeTo(burstable("s", 700, 2<<20), false))
			return err
		}},
		"Sync, remove": {"remove", func(h *fixture) error { _, err := h.Sync(ctx, h.listed([]string{"s"})); return err }},
		"Sync, look":   {"observe", func(h *fixture) error { _, err := h.Sync(ctx, h.listed([]string{"a", "s"})); return err }},
		"Sync, sweep": {"sweep", func(h *fixture) error {
			h.cgroups.pods["nobody"] = true
			_, err := h.Sync(ctx, h.listed([]string{"a", "s"}))
			return err
		}},
	}
	for name, c := range calls {
		for _, failure := range []error{
			errdefs.Unavailablef("open cpuset.cpus: too many open files"),
			errdefs.Deadlinef("systemd did not answer within 10s"),
			errors.New("open cpuset.cpus: too many open files"), // it has no class
		} {
			h := newFixture(t, topology.BestEffort)
			h.admit(t, guaranteed("a", 1, 1))
			h.admit(t, burstable("s", 500, 2<<20))
			h.cgroups.fail[c.op] = failure
			if err := c.call(h); class(t, err) != errdefs.ClassOf(failure) || !errors.Is(err, failure) {
				t.Errorf("%s: %v of class %v; want class %v", name, err, errdefs.ClassOf(err), errdefs.ClassOf(failure))
			}
			view := h.ledger.View()
			_, traced := view.TraceOfPod("b")
			if view.NumPods() != 2 || len(h.cgroups.pods) != 2 || traced {
				t.Errorf("%s: %d pods, cgroups of %v, trace of a refusal: %v", name, view.NumPods(), h.cgroups.pods, traced)
			}
			if err := c.call(h); err != nil {
				t.Errorf("%s again: %v", name, err)
			}
		}
	}
}

func TestFullDiskIsUnavailable(t *testing.T) {
	t.Parallel()
	h := newFixture(t, topology.BestEffort)
	h.journal.FailNext(1, errdefs.Unavailablef("write the ledger: no space left on device"))
	_, err := h.Admit(t.Context(), admission.Request{Pod: guaranteed("a", 1, 1)})
	if class(t, err) != errdefs.Unavailable {
		t.Fatalf("%v", err)
	}
	if h.ledger.View().NumPods() != 0 || len(h.cgroups.pods) != 0 {
		t.Error("half-done")
	}
	if v := h.admit(t, guaranteed("a", 1, 1)); v.Outcome != admission.Admitted {
		t.Errorf("after the disk had room again: %s %s", v.Reason, v.Message)
	}
}

// TestRejectionOnAFullDisk: a verdict needs no room on the disk, only its memory
// does.
func TestRejectionOnAFullDisk(t *testing.T) {
	t.Parallel()
	h := newFixture(t, topology.BestEffort)
	h.journal.FailNext(1, errdefs.Unavailablef("write the ledger: no space left on device"))
	v := h.admit(t, guaranteed("a", 1000, 0))
	if v.Outcome != admission.Rejected || v.Reason != errdefs.UnexpectedAdmissionError || len(v.Trace.Suggestions) == 0 {
		t.Fatalf("%+v", v)
	}
	if last := v.Trace.Steps[len(v.Trace.Steps)-1]; !strings.Contains(last.Text, "could not be kept") ||
		!strings.Contains(last.Text, "no space left") {
		t.Errorf("the trace ends with %+v", last)
	}
	if _, kept := h.ledger.View().TraceOfPod("a"); kept {
		t.Error("the trace is kept all the same")
	}
	h.admit(t, guaranteed("a", 1000, 0))
	if _, kept := h.ledger.View().TraceOfPod("a"); !kept {
		t.Error("the trace is not kept after the disk had room again")
	}
}

// TestStartsDoNotDisturb: containers start and plugins come while a pod is being
// admitted, more often than an admission may be planned again; it is planned once.
func TestStartsDoNotDisturb(t *testing.T) {
	t.Parallel()
	h := newFixture(t, topology.BestEffort)
	h.admit(t, guaranteed("old", 2, 0))
	h.plugins.during = func() {
		for i := range 16 {
			if _, err := h.PreStart(t.Context(), ledger.Owner{Pod: "old", Container: "main"}, fmt.Sprint("id", i), 0); err != nil {
				t.Error(err)
			}
			if _, err := h.ledger.Update(t.Context(), func(d *ledger.Draft) error {
				d.PutResource(ledger.SeenResource{Name: fmt.Sprint("example.com/r", i)})
				return nil
			}); err != nil {
				t.Error(err)
			}
		}
	}
	v := h.admit(t, guaranteed("new", 2, 1))
	if v.Outcome != admission.Admitted || has(ledger.StepReplanned, v.Trace) {
		t.Fatalf("%v %s, %v", v.Outcome, v.Message, kinds(v.Trace))
	}
	view := h.ledger.View()
	if v.View != view || view.NumPods() != 2 || len(slices.Collect(view.Bindings())) != 16 ||
		len(slices.Collect(view.SeenResources())) != 16 {
		t.Errorf("%d pods, %d bindings, %d resources: something was lost", view.NumPods(), len(slices.Collect(view.Bindings())),
			len(slices.Collect(view.SeenResources())))
	}
	ledgertest.Check(t, h.ledger)
}

func TestRemoveKillsBeforeItFrees(t *testing.T) {
	t.Parallel()
	h := newFixture(t, topology.BestEffort)
	h.admit(t, guaranteed("a", 2, 1))
	h.cgroups.fail["remove"] = errdefs.Deadlinef("process 77 does not die")
	if _, _, err := h.Remove(t.Context(), "a", admission.Scope{}); class(t, err) != errdefs.Deadline {
		t.Fatalf("%v", err)
	}
	if h.cpus("a") != "1-2" {
		t.Fatal("freed although a process lives")
	}
	released, ok, err := h.Remove(t.Context(), "a", admission.Scope{})
	if err != nil || !ok || len(released) != 2 {
		t.Fatalf("%v %v %v", released, ok, err)
	}
	if len(h.cgroups.early) != 0 || len(h.cgroups.pods) != 0 || h.ledger.View().NumPods() != 0 {
		t.Errorf("killed too late: %v, left: %v", h.cgroups.early, h.cgroups.pods)
	}
	if _, ok, err := h.Remove(t.Context(), "a", admission.Scope{}); ok || err != nil {
		t.Errorf("removing again: %v %v", ok, err)
	}
}

// A pod that could not be taken out of the ledger has its cgroup again, though
// nothing runs there.
func TestFailedRemovalKeepsThePlace(t *testing.T) {
	t.Parallel()
	h := newFixture(t, topology.BestEffort)
	h.admit(t, guaranteed("a", 2, 1))
	h.journal.FailNext(1, errdefs.Unavailablef("write the ledger: no space left on device"))
	if _, _, err := h.Remove(t.Context(), "a", admission.Scope{}); class(t, err) != errdefs.Unavailable {
		t.Fatalf("%v", err)
	}
	if !h.cgroups.pods["a"] || h.cpus("a") != "1-2" {
		t.Errorf("known with CPUs %q, and with a cgroup: %t", h.cpus("a"), h.cgroups.pods["a"])
	}
	h.journal.FailNext(1, errdefs.Unavailablef("write the ledger: no space left on device"))
	h.cgroups.fail["ensure"] = errdefs.Unavailablef("mkdir: no space left on device")
	if _, _, err := h.Remove(t.Context(), "a", admission.Scope{}); err == nil || !strings.Contains(err.Error(), "mkdir") {
		t.Errorf("nothing is said of the cgroup that is missing: %v", err)
	}
	if _, ok, err := h.Remove(t.Context(), "a", admission.Scope{}); !ok || err != nil || len(h.cgroups.pods) != 0 {
		t.Errorf("again: %t, %v, left %v", ok, err, h.cgroups.pods)
	}
}

func TestPreStartBindsAndPostStopForgets(t *testing.T) {
	t.Parallel()
	h := newFixture(t, topology.BestEffort)
	h.admit(t, guaranteed("a", 2, 0))
	owner := ledger.Owner{Pod: "a", Container: "main"}
	for range 2 { // idempotent
		got, err := h.PreStart(t.Context(), owner, "id1", 0)
		if err != nil || got.Binding.CgroupPath != "/kubepods/poda/main" || !got.Binding.Own {
			t.Fatalf("%+v %v", got, err)
		}
	}
	if _, err := h.PreStart(t.Context(), ledger.Owner{Pod: "a", Container: "other"}, "id2", 0); class(t, err) != errdefs.NotFound {
		t.Errorf("unknown container: %v", err)
	}
	if _, err := h.PreStart(t.Context(), ledger.Owner{Pod: "z", Container: "main"}, "id2", 0); class(t, err) != errdefs.NotFound {
		t.Errorf("unknown pod: %v", err)
	}
	h.admit(t, guaranteed("b", 1, 0))
	if _, err := h.PreStart(t.Context(), ledger.Owner{Pod: "b", Container: "main"}, "id1", 0); class(t, err) != errdefs.Exists {
		t.Errorf("another pod's id: %v", err)
	}
	// A restarted container shares its cgroup with its old id for a moment.
	if _, err := h.PreStart(t.Context(), owner, "id1b", 0); err != nil {
		t.Fatal(err)
	}
	if found, err := h.PostStop(t.Context(), "id1"); !found || err != nil {
		t.Fatal(found, err)
	}
	if len(h.cgroups.containers) != 1 {
		t.Error("the running container lost its cgroup with its old id")
	}
	h.cgroups.remakes = true
	if found, err := h.PostStop(t.Context(), "id1b"); !found || err != nil {
		t.Fatal(found, err)
	}
	if found, err := h.PostStop(t.Context(), "id1b"); found || err != nil {
		t.Errorf("forgetting again: %v %v", found, err)
	}
	if len(h.cgroups.containers) != 0 {
		t.Error("the cgroup stayed")
	}
}

// TestStartAndAdmissionAtOnce admits a pod with CPUs of its own while a container
// is being placed that is not bound yet: in the end the container is placed as the
// ledger names that has both.
func TestStartAndAdmissionAtOnce(t *testing.T) {
	t.Parallel()
	h := newFixture(t, topology.BestEffort)
	shared := guaranteed("shared", 1, 0)
	shared.Containers[0].Requests, shared.Containers[0].Limits = workload.Quantities{workload.CPU: 100}, nil
	h.admit(t, shared)
	owner := ledger.Owner{Pod: "shared", Container: "main"}
	for i, uid := range []string{"first", "second"} { // bound for the first time, and again
		h.cgroups.placed, h.cgroups.again, h.cgroups.still = nil, nil, nil
		h.cgroups.starting = func() { h.admit(t, guaranteed(uid, 1, 0)) }
		got, err := h.PreStart(t.Context(), owner, "id", 0)
		if err != nil {
			t.Fatal(err)
		}
		if n := len(h.cgroups.placed); n != 2 || h.cgroups.placed[1] != h.ledger.View().Generation() || got.View != h.ledger.View() {
			t.Errorf("%s: placed by the generations %v, the ledger is at %d", uid, h.cgroups.placed, h.ledger.View().Generation())
		}
		// Its own binding does not make a start one that was allowed before.
		if want := []bool{i > 0, i > 0}; !slices.Equal(h.cgroups.again, want) {
			t.Errorf("%s: placed again %v, want %v", uid, h.cgroups.again, want)
		}
		if want := []bool{false, true}; !slices.Equal(h.cgroups.still, want) {
			t.Errorf("%s: placed still %v, want %v", uid, h.cgroups.still, want)
		}
	}
	h.cgroups.placed = nil
	if _, err := h.PreStart(t.Context(), owner, "id2", 0); err != nil || len(h.cgroups.placed) != 1 {
		t.Errorf("nothing happened meanwhile: %v, placed by %v", err, h.cgroups.placed)
	}
}

// TestIDsOfTwoPodsAtOnce gives two pods one container id while neither is bound.
func TestIDsOfTwoPodsAtOnce(t *testing.T) {
	t.Parallel()
	h := newFixture(t, topology.BestEffort)
	h.admit(t, guaranteed("a", 1, 0))
	h.admit(t, guaranteed("b", 1, 0))
	h.cgroups.starting = func() {
		if _, err := h.PreStart(t.Context(), ledger.Owner{Pod: "b", Container: "main"}, "id", 0); err != nil {
			t.Error(err)
		}
	}
	if _, err := h.PreStart(t.Context(), ledger.Owner{Pod: "a", Container: "main"}, "id", 0); class(t, err) != errdefs.Exists {
		t.Errorf("%v", err)
	}
	if b, _ := h.ledger.View().Binding("id"); b.Owner.Pod != "b" {
		t.Errorf("the id is that of %s", b.Owner)
	}
}

// TestAdmissionIDOfAnotherPod: aborting one admission must not abort another.
func TestAdmissionIDOfAnotherPod(t *testing.T) {
	t.Parallel()
	h := newFixture(t, topology.BestEffort)
	for range 2 { // the same pod again may have the same name
		if v, err := h.Admit(t.Context(), admission.Request{Pod: guaranteed("a", 1, 1), AdmissionID: "one"}); err != nil ||
			v.Outcome != admission.Admitted {
			t.Fatalf("%+v, %v", v, err)
		}
	}
	_, err := h.Admit(t.Context(), admission.Request{Pod: guaranteed("b", 1, 1), AdmissionID: "one"})
	if class(t, err) != errdefs.Exists || !strings.Contains(err.Error(), "pod a") {
		t.Errorf("%v", err)
	}
	if len(h.cgroups.pods) != 1 || len(h.plugins.calls) != 1 {
		t.Errorf("cgroups %v, calls %v", h.cgroups.pods, h.plugins.calls)
	}
	if _, _, err := h.Remove(t.Context(), "a", admission.Scope{}); err != nil {
		t.Fatal(err)
	}
	if v, err := h.Admit(t.Context(), admission.Request{Pod: guaranteed("b", 1, 1), AdmissionID: "one"}); err != nil ||
		v.Outcome != admission.Admitted {
		t.Errorf("after the other pod has left: %+v, %v", v, err)
	}
}

// TestTimeIsOver: a call that exceeds its deadline decides nothing about the pod,
// whatever stood still.
func TestTimeIsOver(t *testing.T) {
	t.Parallel()
	h := newFixture(t, topology.BestEffort)
	ctx, cancel := context.WithDeadline(t.Context(), time.Now().Add(time.Hour))
	defer cancel()
	over := &endable{Context: ctx}
	h.plugins.during = over.end
	h.plugins.fail = context.DeadlineExceeded
	if v, err := h.Admit(over, admission.Request{Pod: guaranteed("a", 1, 1)}); class(t, err) != errdefs.Deadline {
		t.Errorf("%+v, %v", v, err)
	}
	if h.ledger.View().NumPods() != 0 || len(h.cgroups.pods) != 0 {
		t.Error("half-done")
	}
}

// endable is a context whose deadline a test triggers.
type endable struct {
	context.Context
	over atomic.Bool
}

func (e *endable) end() { e.over.Store(true) }

func (e *endable) Err() error {
	if e.over.Load() {
		return context.DeadlineExceeded
	}
	return e.Context.Err()
}

// TestRejectedAndNotUndone: a cgroup that cannot be removed again does not make
// an error of the rejection, which has the reason in its last step.
func TestRejectedAndNotUndone(t *testing.T) {
	t.Parallel()
	h := newFixture(t, topology.BestEffort)
	h.cgroups.during = func() {
		// The pod is planned again when its cgroup is there.
		h.taken(t, "other", "1")
		h.inventory.Listed(h.session, nil, time.Unix(1, 0))
	}
	h.cgroups.fail["forget"] = errors.New("rmdir: device or resource busy")
	v := h.admit(t, guaranteed("a", 1, 1))
	if v.Outcome != admission.Rejected || !strings.Contains(v.Message, gpu) {
		t.Fatalf("%+v", v)
	}
	steps := v.Trace.Steps
	if last := steps[len(steps)-1]; last.Kind != ledger.StepRefused {
		t.Errorf("the last step is %+v", last)
	}
	if note := steps[len(steps)-2]; note.Kind != ledger.StepNoted || !strings.Contains(note.Text, "device or resource busy") {
		t.Errorf("the step before is %+v", note)
	}
}

func TestInvalidPodChangesNothing(t *testing.T) {
	t.Parallel()
	h := newFixture(t, topology.BestEffort)
	_, err := h.Admit(t.Context(), admission.Request{Pod: workload.Pod{Name: "x"}})
	fe := new(errdefs.Error)
	if !errors.As(err, &fe) || fe.Class != errdefs.Invalid || len(fe.Fields) == 0 {
		t.Fatalf("%v", err)
	}
	if h.journal.Commits() != 0 {
		t.Error("something was written")
	}
}

func TestUnknownResourceIsNoted(t *testing.T) {
	t.Parallel()
	h := newFixture(t, topology.BestEffort)
	p := guaranteed("a", 1, 0)
	p.Containers[0].Requests["vendor.example/fpga"] = 1
	v := h.admit(t, p)
	if v.Outcome != admission.Admitted {
		t.Fatalf("%s %s", v.Reason, v.Message)
	}
	for _, s := range v.Trace.Steps {
		if s.Kind == ledger.StepNoted && s.Resource == "vendor.example/fpga" {
			return
		}
	}
	t.Errorf("no note on the resource: %+v", v.Trace.Steps)
}

func TestConcurrentAdmissionsDoNotDouble(t *testing.T) {
	t.Parallel()
	h := newFixture(t, topology.BestEffort)
	var wg sync.WaitGroup
	for i := range 20 {
		uid := string(rune('a' + i%7)) // some twice: the same pod from two callers
		wg.Go(func() {
			if _, err := h.Admit(t.Context(), admission.Request{Pod: guaranteed(uid, 2, 0)}); err != nil {
				t.Error(err)
			}
			if i%3 == 0 {
				if _, _, err := h.Remove(t.Context(), uid, admission.Scope{}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	ledgertest.Check(t, h.ledger)
	for p := range h.ledger.View().Pods() {
		if !h.cgroups.pods[p.UID()] {
			t.Errorf("pod %s has no cgroup", p.UID())
		}
	}
}
