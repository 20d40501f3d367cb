package admission_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/berthd/berth/managers/admission"
	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/ledger/ledgertest"
	"github.com/berthd/berth/managers/numa"
	"github.com/berthd/berth/managers/topology"
	"github.com/berthd/berth/managers/workload"
)

// found notes a pod as living and not in the ledger.
func (h *fixture) found(t *testing.T, u ledger.UnknownLivePod) {
	t.Helper()
	u.Since = time.Unix(1, 0)
	h.cgroups.pods[u.UID] = true
	if _, err := h.ledger.Update(t.Context(), func(d *ledger.Draft) error { d.PutUnknownLive(u); return nil }); err != nil {
		t.Fatal(err)
	}
}

// owned are claims of a container, which need not be called main.
func owned(container, cpus string, devices ...string) []ledger.Claim {
	claims := []ledger.Claim{ledgertest.Exclusive(container, cpus)}
	if len(devices) > 0 {
		claims = append(claims, ledgertest.Devices(container, gpu, devices...))
	}
	return ledgertest.With(ledgertest.Pod("u", container), claims...).Claims
}

// TestTakeOver: a pod that lives here gets what it runs with, or an answer that names
// what is missing; nothing is planned, and no plugin is called.
func TestTakeOver(t *testing.T) {
	t.Parallel()
	digest := func(p workload.Pod) string {
		h := build(t, topology.BestEffort, ledgertest.NewJournal())
		return h.admit(t, p).Pod.Digest
	}
	asks := guaranteed("u", 2, 1)
	same := digest(asks)
	running := func(cpus string, devices ...string) []admission.RunningAllocation {
		h := admission.RunningAllocation{Container: "main", CPUs: cpuset.Of()}
		if cpus != "" {
			h.CPUs, _ = cpuset.Parse(cpus)
		}
		if len(devices) > 0 {
			h.Devices = map[string][]string{gpu: devices}
		}
		return []admission.RunningAllocation{h}
	}
	for name, c := range map[string]struct {
		known   ledger.UnknownLivePod
		pod     workload.Pod
		running []admission.RunningAllocation

		outcome   admission.Outcome
		condition string
		class     errdefs.Class
		text      string // part of the message or error
		cpus      string
		devices   string
	}{
		"claim record": {
			known: ledger.UnknownLivePod{Source: ledger.FromClaimRecord, Digest: same, Claims: owned("main", "5-6", "g3")},
			pod:   asks, outcome: admission.Admitted, cpus: "5-6", devices: "g3",
		},
		"claim record of another specification": {
			known: ledger.UnknownLivePod{Source: ledger.FromClaimRecord, Digest: "other", Claims: owned("main", "5-7", "g3")},
			pod:   asks, class: errdefs.Precondition, text: "another specification",
		},
		"claim record of another specification, without its device": {
			known: ledger.UnknownLivePod{Source: ledger.FromClaimRecord, Digest: "other", Claims: owned("main", "5-6")},
			pod:   asks, class: errdefs.Precondition, text: "another specification",
		},
		"claim record of another specification, of another container": {
			known: ledger.UnknownLivePod{Source: ledger.FromClaimRecord, Digest: "other", Claims: owned("side", "5-6", "g3")},
			pod:   asks, class: errdefs.Precondition, text: "another specification",
		},
		"claim record of another specification with the same amounts": {
			known: ledger.UnknownLivePod{Source: ledger.FromClaimRecord, Digest: "other", Claims: owned("main", "5-6", "g3")},
			pod:   asks, outcome: admission.Admitted, cpus: "5-6", devices: "g3",
		},
		"kernel, and devices": {
			known: ledger.UnknownLivePod{Source: ledger.FromKernel, Claims: owned("main", "5-6"), DevicesUnknown: true},
			pod:   asks, outcome: admission.Deferred, condition: admission.UnknownDevices, text: "running_allocations",
		},
		"kernel, and the caller knows": {
			known: ledger.UnknownLivePod{Source: ledger.FromKernel, Claims: owned("main", "5-6"), DevicesUnknown: true},
			pod:   asks, running: running("", "g2"), outcome: admission.Admitted, cpus: "5-6", devices: "g2",
		},
		"kernel, no devices": {
			known: ledger.UnknownLivePod{Source: ledger.FromKernel, Claims: owned("main", "5-6"), DevicesUnknown: true},
			pod:   guaranteed("u", 2, 0), outcome: admission.Admitted, cpus: "5-6",
		},
		"kernel, in a runtime's cgroup": {
			known: ledger.UnknownLivePod{Source: ledger.FromKernel, Claims: owned("crio-7f", "5-6"), DevicesUnknown: true},
			pod:   guaranteed("u", 2, 0), outcome: admission.Admitted, cpus: "5-6",
		},
		"kernel, CPUs that are shared by its specification": {
			known: ledger.UnknownLivePod{Source: ledger.FromKernel, Claims: owned("main", "5-6")},
			pod:   guaranteed("u", 0, 0), outcome: admission.Admitted,
		},
		"nothing known": {
			known: ledger.UnknownLivePod{DevicesUnknown: true}, pod: guaranteed("u", 2, 0),
			outcome: admission.Deferred, condition: admission.UnknownDevices, text: "CPUs and memory",
		},
		"nothing known, and it shares": {
			known: ledger.UnknownLivePod{DevicesUnknown: true}, pod: guaranteed("u", 0, 0), outcome: admission.Admitted,
		},
		"the caller is wrong about a device": {
			known: ledger.UnknownLivePod{Source: ledger.FromKernel, Claims: owned("main", "5-6")},
			pod:   asks, running: running("", "taken"), class: errdefs.Precondition, text: "taken",
		},
		"the caller forgets the device": {
			known: ledger.UnknownLivePod{Source: ledger.FromKernel, Claims: owned("main", "5-6")},
			pod:   asks, running: running("5-6"), class: errdefs.Invalid, text: gpu,
		},
		"the caller names no container of it": {
			known: ledger.UnknownLivePod{}, pod: asks,
			running: []admission.RunningAllocation{{Container: "other"}}, class: errdefs.Invalid, text: "running_allocations[0].container",
		},
		"the caller names one id twice": {
			known: ledger.UnknownLivePod{}, pod: asks, running: running("5", "g1", "g1"), class: errdefs.Invalid,
			text: "running_allocations[0].devices",
		},
		"the caller has memory without nodes": {
			known: ledger.UnknownLivePod{}, pod: asks,
			running: []admission.RunningAllocation{{Container: "main", Memory: []admission.RunningMemory{{Bytes: 1}}}},
			class:   errdefs.Invalid, text: "running_allocations[0].memory[0]",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := build(t, topology.BestEffort, ledgertest.NewJournal())
			taken := ledgertest.With(ledgertest.Pod("other", "c"), ledgertest.Devices("c", gpu, "taken"))
			if _, err := h.ledger.Update(t.Context(), func(d *ledger.Draft) error { d.PutPod(taken); return nil }); err != nil {
				t.Fatal(err)
			}
			c.known.UID = "u"
			h.found(t, c.known)
			for _, dry := range []bool{true, false} {
				v, err := h.Admit(t.Context(), admission.Request{Pod: c.pod, RunningAllocations: c.running, DryRun: dry})
				if c.text != "" && !strings.Contains(fmt.Sprint(v.Message, err), c.text) {
					t.Errorf("%s %v lacks %q", v.Message, err, c.text)
				}
				if c.class != errdefs.Internal {
					if errdefs.ClassOf(err) != c.class {
						t.Errorf("dry run %t: %v %v", dry, v, err)
					}
					continue
				}
				if err != nil || v.Outcome != c.outcome || c.condition != "" && v.Condition.Type != c.condition {
					t.Fatalf("dry run %t: %v %v: %s", dry, v.Outcome, err, v.Message)
				}
				if v.Outcome != admission.Admitted {
					continue
				}
				cpus, devices := "", ""
				if claim, ok := v.Pod.Claim("main", "cpu"); ok {
					cpus = claim.CPUs.Set.String()
				}
				if claim, ok := v.Pod.Claim("main", gpu); ok {
					devices = strings.Join(claim.Devices.IDs(), ",")
				}
				if cpus != c.cpus || devices != c.devices {
					t.Errorf("dry run %t: CPUs %q, devices %q; want %q and %q", dry, cpus, devices, c.cpus, c.devices)
				}
			}
			if c.outcome != admission.Admitted || c.class != errdefs.Internal {
				if _, known := h.ledger.View().Pod("u"); known || !h.ledger.View().UnknownLive("u") || h.cgroups.records["u"] != nil {
					t.Error("a failed admission has changed something")
				}
			}
			if !h.cgroups.pods["u"] {
				t.Error("the cgroup of a living pod was removed")
			}
		})
	}
}

// TestRunningMemory: memory of several nodes is recorded as reported.
func TestRunningMemory(t *testing.T) {
	t.Parallel()
	h := build(t, topology.BestEffort, ledgertest.NewJournal())
	h.found(t, ledger.UnknownLivePod{UID: "u", Source: ledger.FromKernel})
	v, err := h.Admit(t.Context(), admission.Request{Pod: guaranteed("u", 0, 0), RunningAllocations: []admission.RunningAllocation{{
		Container: "main", Memory: []admission.RunningMemory{
			{Nodes: numa.Of(0), Bytes: 1 << 20}, {Resource: "memory", Nodes: numa.Of(1), Bytes: 2 << 20},
		},
	}}})
	if err != nil || v.Outcome != admission.Admitted {
		t.Fatal(err, v.Message)
	}
	memory, _ := v.Pod.Claim("main", "memory")
	if len(memory.Memory) != 2 {
		t.Errorf("%v", memory.Memory)
	}
}

// TestUnknownDevicesHoldOthersBack: devices wait until it is known who has which; CPUs do
// not.
func TestUnknownDevicesHoldOthersBack(t *testing.T) {
	t.Parallel()
	h := build(t, topology.BestEffort, ledgertest.NewJournal())
	h.found(t, ledger.UnknownLivePod{UID: "u", Source: ledger.FromKernel, Claims: owned("main", "5-6"), DevicesUnknown: true})
	if v := h.admit(t, guaranteed("cpus", 2, 0)); v.Outcome != admission.Admitted || strings.Contains(h.cpus("cpus"), "5") {
		t.Errorf("%s on CPUs %s", v.Message, h.cpus("cpus"))
	}
	v := h.admit(t, guaranteed("devices", 0, 1))
	if v.Outcome != admission.Deferred || v.Condition.Type != admission.UnknownDevices || !strings.Contains(v.Message, "pod u lives here") {
		t.Errorf("%v %s", v.Outcome, v.Message)
	}
	if _, _, err := h.Remove(t.Context(), "u", admission.Scope{}); err != nil || h.cgroups.pods["u"] {
		t.Errorf("%v: the cgroup is left: %t", err, h.cgroups.pods["u"])
	}
	if v := h.admit(t, guaranteed("devices", 0, 1)); v.Outcome != admission.Admitted {
		t.Error(v.Message)
	}
}

// TestDeferredAgain: a repeated admission with the same answer commits nothing more. Another
// reason is kept.
func TestDeferredAgain(t *testing.T) {
	t.Parallel()
	h := build(t, topology.BestEffort, ledgertest.NewJournal())
	h.found(t, ledger.UnknownLivePod{UID: "u", Source: ledger.FromKernel, DevicesUnknown: true})
	admit := func(message string) uint64 {
		t.Helper()
		v := h.admit(t, guaranteed("devices", 0, 1))
		if v.Outcome != admission.Deferred || !strings.Contains(v.Message, message) || v.Trace == nil {
			t.Fatalf("%v %s", v.Outcome, v.Message)
		}
		return h.ledger.View().Generation()
	}
	first := admit("pod u lives here")
	kept, ok := h.ledger.View().TraceOfPod("devices")
	if !ok || !strings.Contains(kept.Message, "pod u lives here") {
		t.Fatalf("kept is %+v", kept)
	}
	for range 3 {
		if again := admit("pod u lives here"); again != first {
			t.Errorf("generation %d after %d", again, first)
		}
	}
	if _, _, err := h.Remove(t.Context(), "u", admission.Scope{}); err != nil {
		t.Fatal(err)
	}
	h.found(t, ledger.UnknownLivePod{UID: "other", Source: ledger.FromKernel, DevicesUnknown: true})
	before := h.ledger.View().Generation()
	if admit("pod other lives here") == before {
		t.Error("another reason is not kept")
	}
}

// TestRecordThatCannotBeWritten: without its claim record no pod is admitted, and a
// living one keeps the record that it had.
func TestRecordThatCannotBeWritten(t *testing.T) {
	t.Parallel()
	h := build(t, topology.BestEffort, ledgertest.NewJournal())
	h.cgroups.fail["record"] = errdefs.Unavailablef("no space")
	if _, err := h.Admit(t.Context(), admission.Request{Pod: guaranteed("a", 1, 0)}); errdefs.ClassOf(err) != errdefs.Unavailable {
		t.Errorf("%v", err)
	}
	if h.cgroups.pods["a"] || h.ledger.View().NumPods() > 0 {
		t.Error("something is left of it")
	}
	// The journal fails after the record was written.
	h.found(t, ledger.UnknownLivePod{UID: "u", Source: ledger.FromKernel, Claims: owned("main", "5-6")})
	h.cgroups.records = map[string][]byte{"u": []byte("as it was")}
	h.journal.FailNext(1, errdefs.Unavailablef("disk"))
	if _, err := h.Admit(t.Context(), admission.Request{Pod: guaranteed("u", 2, 0)}); errdefs.ClassOf(err) != errdefs.Unavailable {
		t.Errorf("%v", err)
	}
	if got := string(h.cgroups.records["u"]); got != "as it was" || !h.cgroups.pods["u"] {
		t.Errorf("record %q, cgroup %t", got, h.cgroups.pods["u"])
	}
}

// TestRecordTooLarge: a pod with so many containers that their claims do not fit into a claim
// record is invalid, and leaves nothing behind. The number of devices of a container has no such limit.
func TestRecordTooLarge(t *testing.T) {
	t.Parallel()
	h := build(t, topology.BestEffort, ledgertest.NewJournal())
	pod := guaranteed("u", 0, 1)
	main := pod.Containers[0]
	pod.Containers = nil
	var running []admission.RunningAllocation
	for i := range 600 {
		main.Name = fmt.Sprintf("container-%03d", i)
		pod.Containers = append(pod.Containers, main)
		running = append(running, admission.RunningAllocation{
			Container: main.Name, Devices: map[string][]string{gpu: {fmt.Sprintf("device-%03d", i)}},
		})
	}
	h.found(t, ledger.UnknownLivePod{UID: "u"})
	_, err := h.Admit(t.Context(), admission.Request{Pod: pod, RunningAllocations: running})
	if errdefs.ClassOf(err) != errdefs.Invalid || !strings.Contains(err.Error(), "49152") {
		t.Errorf("%v", err)
	}
	if _, known := h.ledger.View().Pod("u"); known || h.cgroups.records["u"] != nil {
		t.Error("it is admitted, or has a record")
	}
}

// TestAcknowledgedAgain: a Sync takes back what a pod holds by a change that was not
// acknowledged, if the pod is its agent's.
func TestAcknowledgedAgain(t *testing.T) {
	t.Parallel()
	h := build(t, topology.BestEffort, ledgertest.NewJournal())
	h.admit(t, guaranteed("a", 1, 0))
	h.admitFor(t, "other", "b")
	was := map[string]string{"a": h.cpus("a"), "b": h.cpus("b")}
	if _, err := h.ledger.Update(t.Context(), func(d *ledger.Draft) error {
		for uid, more := range map[string]int{"a": 6, "b": 7} {
			p, _ := d.View().Pod(uid)
			union := *p
			union.Acknowledged = p.Claims
			union.Claims = slices.Clone(p.Claims)
			union.Claims[0].CPUs = &ledger.CPUs{Set: p.Claims[0].CPUs.Set.Union(cpuset.Of(more)), Use: ledger.CPUExclusive}
			d.PutPod(&union)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	union := map[string]string{"a": h.cpus("a"), "b": h.cpus("b")}
	if union["a"] == was["a"] || union["b"] == was["b"] || h.Synced() {
		t.Fatalf("CPUs %v, synced %t", union, h.Synced())
	}
	holds := func(uid string, acknowledged bool) {
		t.Helper()
		p, _ := h.ledger.View().Pod(uid)
		want := union[uid]
		if acknowledged {
			want = was[uid]
		}
		if h.cpus(uid) != want || (p.Acknowledged == nil) != acknowledged {
			t.Errorf("pod %s has CPUs %s, want %s, and acknowledged %+v", uid, h.cpus(uid), want, p.Acknowledged)
		}
	}
	if _, err := h.Sync(t.Context(), h.listed([]string{"a"})); err != nil || !h.Synced() {
		t.Fatalf("%v, synced %t", err, h.Synced())
	}
	holds("a", true)
	holds("b", false)
	others := h.listed([]string{"b"})
	others.Owner = "other"
	if _, err := h.Sync(t.Context(), others); err != nil {
		t.Fatal(err)
	}
	holds("a", true)
	holds("b", true)
}

// TestRunningContainerIsNotPrepared: plugins hear of a start only if nothing of the
// container runs yet.
func TestRunningContainerIsNotPrepared(t *testing.T) {
	t.Parallel()
	h := build(t, topology.BestEffort, ledgertest.NewJournal())
	h.admit(t, guaranteed("a", 1, 1))
	start := func(id string, pid int, want int) {
		t.Helper()
		if _, err := h.PreStart(context.Background(), ledger.Owner{Pod: "a", Container: "main"}, id, pid); err != nil {
			t.Fatal(err)
		}
		if got := h.plugins.starts(); got != want {
			t.Errorf("%d starts were told of, want %d", got, want)
		}
	}
	start("id-1", 100, 1)
	start("id-1", 100, 1) // it runs, and is bound again
	start("id-2", 0, 2)   // it is started again
	if _, err := h.ledger.Update(t.Context(), func(d *ledger.Draft) error { d.Unbind("id-1"); d.Unbind("id-2"); return nil }); err != nil {
		t.Fatal(err)
	}
	start("id-3", 100, 2) // its id is not known any more, and it runs
}

// TestLookedAtAgain: what could not be read at one Sync is read at the next one.
func TestLookedAtAgain(t *testing.T) {
	t.Parallel()
	asks := guaranteed("u", 2, 0)
	other := build(t, topology.BestEffort, ledgertest.NewJournal())
	other.admit(t, asks)
	h := newFixture(t, topology.BestEffort)
	h.cgroups.pods["u"] = true // lives, and cannot be looked at for the moment
	for range 2 {
		_, err := h.Sync(t.Context(), h.listed([]string{"u"}))
		must(t, err)
		h.cgroups.records = map[string][]byte{"u": other.cgroups.records["u"]}
	}
	if u, _ := h.ledger.View().UnknownLivePod("u"); u.Source != ledger.FromClaimRecord {
		t.Errorf("known from %q", u.Source)
	}
	for _, uid := range []string{"b", "u"} {
		if v := h.admit(t, guaranteed(uid, 2, 0)); v.Outcome != admission.Admitted {
			t.Errorf("%s: %v: %s", uid, v.Outcome, v.Message)
		}
	}
}

// TestRunningAllocationsOfNoMachine: a caller cannot report allocations that the machine does not have.
func TestRunningAllocationsOfNoMachine(t *testing.T) {
	t.Parallel()
	for field, allocation := range map[string]admission.RunningAllocation{
		"running_allocations[0].cpus": {Container: "main", CPUs: cpuset.Of(1, 8191)},
		"running_allocations[0].memory[0].numa_nodes": {Container: "main",
			Memory: []admission.RunningMemory{{Nodes: numa.Of(0, 63), Bytes: 1}}},
	} {
		h := build(t, topology.BestEffort, ledgertest.NewJournal())
		_, err := h.Admit(t.Context(), admission.Request{Pod: guaranteed("u", 2, 0),
			RunningAllocations: []admission.RunningAllocation{allocation}})
		if fe := new(errdefs.Error); !errors.As(err, &fe) || fe.Class != errdefs.Invalid || len(fe.Fields) != 1 ||
			fe.Fields[0].Field != field {
			t.Errorf("%s: %v", field, err)
		}
		if _, ok := h.ledger.View().Pod("u"); ok {
			t.Errorf("%s: the pod is there", field)
		}
	}
}

// TestTakeOverOnAFullNode: a pod that runs keeps running if the pods of the ledger request everything that the node has.
func TestTakeOverOnAFullNode(t *testing.T) {
	t.Parallel()
	other := guaranteed("other", 3, 0)
	other.Containers[0].Limits = nil
	h := setup{shape: "4c", policy: topology.None, fit: true, pods: []*ledger.Pod{{Pod: other}}}.open(t)
	h.found(t, ledger.UnknownLivePod{UID: "u"})
	if v := h.admit(t, guaranteed("new", 2, 0)); v.Reason != errdefs.OutOfCPU {
		t.Fatalf("a new pod: %+v", v)
	}
	v, err := h.Admit(t.Context(), admission.Request{Pod: guaranteed("u", 2, 0),
		RunningAllocations: []admission.RunningAllocation{{Container: "main", CPUs: cpuset.Of(1, 2)}}})
	must(t, err)
	if v.Outcome != admission.Admitted {
		t.Errorf("%v: %s", v.Outcome, v.Message)
	}
}
