package main

import (
	"strconv"
	"strings"
	"sync"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	admissionv1 "github.com/berthd/berth/api/berth/admission/v1"
	allocationv1 "github.com/berthd/berth/api/berth/allocation/v1"
	cpuv1 "github.com/berthd/berth/api/berth/cpu/v1"
	inspectv1 "github.com/berthd/berth/api/berth/inspect/v1"
	nodev1 "github.com/berthd/berth/api/berth/node/v1"
	topologyv1 "github.com/berthd/berth/api/berth/topology/v1"
	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/server/internal/store"
)

// policyNode is a node with 2 NUMA nodes of 8 CPUs, of which CPU 0 is reserved.
func policyNode(t *testing.T, args ...string) *node {
	t.Helper()
	return simulated(t, "2s1n8c1t", "", args...)
}

func (d *daemon) topology() topologyv1.TopologyServiceClient {
	return topologyv1.NewTopologyServiceClient(d.conn)
}

// policy returns the topology policy in force, and whether it was set.
func (d *daemon) policy() (string, bool) {
	d.t.Helper()
	p, err := d.topology().GetPolicy(d.ctx(), &topologyv1.GetPolicyRequest{})
	if err != nil {
		d.t.Fatal(err)
	}
	return p.GetSettings().GetTopologyPolicy(), p.GetOverridden()
}

func (d *daemon) setPolicy(req *topologyv1.SetPolicyRequest) *topologyv1.SetPolicyResponse {
	d.t.Helper()
	done, err := d.topology().SetPolicy(d.ctx(), req)
	if err != nil {
		d.t.Fatal(err)
	}
	return done
}

// sound fails the test if the ledger is damaged. Running pods may hold what a
// change of policy took from the others.
func (d *daemon) sound() {
	d.t.Helper()
	check, err := d.inspect.Check(d.ctx(), &inspectv1.CheckRequest{})
	if err != nil {
		d.t.Fatal(err)
	}
	for _, f := range check.GetFindings() {
		if f.GetKind() != inspectv1.FindingKind_FINDING_KIND_POLICY {
			d.t.Errorf("ledger check: %s: %s", f.GetHolder(), f.GetText())
		}
	}
}

// report returns berthd's report of its start.
func (d *daemon) report() string {
	d.t.Helper()
	check, err := d.inspect.Check(d.ctx(), &inspectv1.CheckRequest{})
	if err != nil {
		d.t.Fatal(err)
	}
	return strings.Join(check.GetStartReport(), "\n")
}

// TestPolicyChangesWithoutADrain: running pods keep what they have, the next ones
// are decided by the new rules, a restart keeps them, and the files win once they
// change.
func TestPolicyChangesWithoutADrain(t *testing.T) {
	t.Parallel()
	n := policyNode(t)
	d := n.start()
	d.admitted(guaranteed("wide", 8, 0))
	d.admitted(guaranteed("small", 2, 0))
	d.admitted(burstable("shared"))
	had := d.pods()

	strict := &topologyv1.SetPolicyRequest{
		TopologyPolicy: new("single-numa-node"), ReservedCpus: &typesv1.CPUSet{List: "0,8"}, DryRun: true,
		EvictionHard: &topologyv1.Values{Values: map[string]string{"memory.available": "300Mi"}},
	}
	outlook := d.setPolicy(strict)
	now, err := d.allocation.GetRevision(d.ctx(), &allocationv1.GetRevisionRequest{})
	if err != nil || !outlook.GetChanged() || outlook.GetRevision() != now.GetRevision() {
		t.Errorf("a dry run: %v", outlook)
	}
	fates := map[string]topologyv1.Fate{}
	for _, p := range outlook.GetPods() {
		fates[p.GetUid()] = p.GetFate()
		if held := strings.Join(p.GetGrandfathered(), ", "); strings.Contains(held,
			"CPUs 8 of wide/main are reserved") != (p.GetUid() == "wide") {
			t.Errorf("%s keeps %q", p.GetUid(), held)
		}
	}
	if len(fates) != 3 || fates["wide"] != topologyv1.Fate_FATE_REFUSED || fates["small"] != topologyv1.Fate_FATE_SAME ||
		fates["shared"] != topologyv1.Fate_FATE_SAME {
		t.Errorf("fates %v", outlook.GetPods())
	}
	if name, set := d.policy(); name != "best-effort" || set {
		t.Errorf("after a dry run the policy is %s", name)
	}

	strict.DryRun = false
	done := d.setPolicy(strict)
	if done.GetRevision() <= now.GetRevision() || done.GetReservedAfter().GetList() != "0,8" {
		t.Errorf("the change: %v", done)
	}
	expect := func(when string) {
		t.Helper()
		d.sound()
		if name, set := d.policy(); name != "single-numa-node" || !set {
			t.Errorf("%s: the policy is %s", when, name)
		}
		for uid, p := range d.pods() {
			if want := had[uid].GetContainers()[0]; want.GetExclusiveCpus() &&
				p.GetContainers()[0].GetCpus().GetList() != want.GetCpus().GetList() {
				t.Errorf("%s: %s has CPUs %s, had %s", when, uid, p.GetContainers()[0].GetCpus(), want.GetCpus())
			}
		}
		if v := d.admit(guaranteed("next", 8, 0)); v.GetReason() != "TopologyAffinityError" {
			t.Errorf("%s: a pod that needs two nodes: %s %s", when, v.GetVerdict(), v.GetReason())
		}
		cpus, err := cpuv1.NewCPUServiceClient(d.conn).GetState(d.ctx(), &cpuv1.GetStateRequest{})
		if err != nil || cpus.GetReserved().GetList() != "0,8" {
			t.Errorf("%s: reserved CPUs %s, %v", when, cpus.GetReserved(), err)
		}
		left, err := nodev1.NewNodeServiceClient(d.conn).GetReservation(d.ctx(), &nodev1.GetReservationRequest{})
		if err != nil || left.GetReservation()["cpu"] != "2" || left.GetEviction()["memory"] != strconv.Itoa(300<<20) {
			t.Errorf("%s: reserved for the node %v, of that for evictions %v, %v", when, left.GetReservation(), left.GetEviction(), err)
		}
	}
	expect("after the change")
	again := d.setPolicy(&topologyv1.SetPolicyRequest{TopologyPolicy: new("single-numa-node")})
	if again.GetChanged() || d.setPolicy(strict).GetChanged() {
		t.Error("the same policy again is a change")
	}

	d.kill()
	d = n.start()
	expect("after a crash")
	if text := d.report(); !strings.Contains(text, "replaces the configured one") {
		t.Errorf("the start says nothing of the policy:\n%s", text)
	}
	d.stop()

	// The files change: they win permanently.
	d = n.start("--topology-manager-policy", "restricted")
	if name, set := d.policy(); name != "restricted" || set {
		t.Errorf("after the files changed the policy is %s", name)
	}
	if text := d.report(); !strings.Contains(text, "is dropped: files or flags have another policy") {
		t.Errorf("the start says nothing of the policy that it drops:\n%s", text)
	}
	d.stop()
	d = n.start()
	if name, set := d.policy(); name != "best-effort" || set {
		t.Errorf("after the files changed back the policy is %s", name)
	}
	d.check()
}

func TestPolicyBackToTheConfiguration(t *testing.T) {
	t.Parallel()
	n := policyNode(t)
	d := n.start()
	d.setPolicy(&topologyv1.SetPolicyRequest{TopologyPolicy: new("restricted"), TopologyScope: new("pod")})
	d.setPolicy(&topologyv1.SetPolicyRequest{CpuPolicy: new("none"), CpuOptions: &topologyv1.Values{}})
	if name, set := d.policy(); name != "restricted" || !set {
		t.Errorf("the second change undid the first: %s", name)
	}
	// No container gets CPUs under the policy none.
	v := d.admitted(guaranteed("a", 2, 0))
	if v.GetAllocations()[0].GetExclusiveCpus() {
		t.Errorf("under the policy none a pod got %v", v.GetAllocations())
	}
	if !d.setPolicy(&topologyv1.SetPolicyRequest{FromConfiguration: true}).GetChanged() {
		t.Error("the way back is no change")
	}
	if name, set := d.policy(); name != "best-effort" || set {
		t.Errorf("back to the configuration: %s", name)
	}
	d.kill()
	d = n.start()
	if name, set := d.policy(); name != "best-effort" || set {
		t.Errorf("after a crash: %s", name)
	}
}

func TestBadPolicyChangesNothing(t *testing.T) {
	t.Parallel()
	d := policyNode(t).start()
	d.admitted(guaranteed("a", 4, 0))
	d.admitted(burstable("shared"))
	revision := func() uint64 {
		state, err := cpuv1.NewCPUServiceClient(d.conn).GetState(d.ctx(), &cpuv1.GetStateRequest{})
		if err != nil {
			t.Fatal(err)
		}
		return state.GetRevision()
	}
	before := revision()
	for name, row := range map[string]struct {
		req  *topologyv1.SetPolicyRequest
		code codes.Code
		want string
	}{
		"topology policy": {&topologyv1.SetPolicyRequest{TopologyPolicy: new("loose")}, codes.InvalidArgument,
			"topology_policy: expected one of none"},
		"CPU policy":    {&topologyv1.SetPolicyRequest{CpuPolicy: new("dynamic")}, codes.InvalidArgument, "cpu_policy"},
		"memory policy": {&topologyv1.SetPolicyRequest{MemoryPolicy: new("Loose")}, codes.InvalidArgument, "emory"},
		"option": {&topologyv1.SetPolicyRequest{CpuOptions: &topologyv1.Values{Values: map[string]string{"x": "true"}}},
			codes.InvalidArgument, "cpuManagerPolicyOptions"},
		"reserved CPUs": {&topologyv1.SetPolicyRequest{ReservedCpus: &typesv1.CPUSet{List: "99"}}, codes.InvalidArgument, "99"},
		"reserved": {&topologyv1.SetPolicyRequest{SystemReserved: &topologyv1.Values{Values: map[string]string{"memory": "-1"}}},
			codes.InvalidArgument, "reserved"},
		"eviction": {&topologyv1.SetPolicyRequest{EvictionHard: &topologyv1.Values{Values: map[string]string{"memory": "1Gi"}}},
			codes.InvalidArgument, "unknown eviction signal"},
		"NUMA nodes": {&topologyv1.SetPolicyRequest{TopologyMaxNodes: new(uint32(1))}, codes.InvalidArgument, "NUMA"},
		"nothing left for the shared": {&topologyv1.SetPolicyRequest{
			ReservedCpus: &typesv1.CPUSet{List: "0,5-15"},
			CpuOptions:   &topologyv1.Values{Values: map[string]string{"strict-cpu-reservation": "true"}},
		}, codes.FailedPrecondition, "the shared pool would be empty"},
	} {
		for _, dry := range []bool{true, false} {
			row.req.DryRun = dry
			_, err := d.topology().SetPolicy(d.ctx(), row.req)
			if st := status.Convert(err); st.Code() != row.code || !strings.Contains(st.Message(), row.want) {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
	if name, set := d.policy(); name != "best-effort" || set || revision() != before {
		t.Errorf("policy %s at revision %d, before %d", name, revision(), before)
	}
	d.check()
}

// TestPolicyAndACrash: whatever step a crash comes at, the restart finds the old
// policy or the new one, whole, and every pod with what it had.
func TestPolicyAndACrash(t *testing.T) {
	t.Parallel()
	for _, point := range []string{store.BeforeBegin, store.AfterPut, store.BeforeCommit, store.AfterCommit} {
		t.Run(point, func(t *testing.T) {
			t.Parallel()
			n := policyNode(t)
			d := n.start()
			d.admitted(guaranteed("a", 4, 0))
			had := d.pods()["a"].GetContainers()[0].GetCpus().GetList()
			d.stop()
			d = n.start("--failpoint", point+":kill:1")
			_, err := d.topology().SetPolicy(d.ctx(), &topologyv1.SetPolicyRequest{TopologyPolicy: new("single-numa-node")})
			if err == nil {
				t.Fatal("berthd lived on")
			}
			<-d.Ended
			d = n.start()
			d.check()
			name, set := d.policy()
			if want := point == store.AfterCommit; set != want || (name == "single-numa-node") != want {
				t.Errorf("after a crash at %s the policy is %s", point, name)
			}
			if got := d.pods()["a"].GetContainers()[0].GetCpus().GetList(); got != had {
				t.Errorf("the pod has %s, had %s", got, had)
			}
			verdict := d.admit(guaranteed("b", 9, 0)).GetVerdict()
			if verdict != map[bool]admissionv1.Verdict{true: admissionv1.Verdict_VERDICT_REJECTED,
				false: admissionv1.Verdict_VERDICT_ADMITTED}[set] {
				t.Errorf("under the policy %s a pod for two nodes: %s", name, verdict)
			}
		})
	}
}

// TestPolicyChangesUnderLoad: while pods come and go, the policy changes again and
// again; nothing is given twice, and every verdict is one of the two policies'.
func TestPolicyChangesUnderLoad(t *testing.T) {
	t.Parallel()
	d := policyNode(t).start()
	var work sync.WaitGroup
	for worker := range 3 {
		work.Go(func() {
			uid := "w" + string(rune('a'+worker))
			for range 30 {
				v, err := d.admission.Admit(d.ctx(),
					&admissionv1.AdmitRequest{Subject: &admissionv1.AdmitRequest_Pod{Pod: guaranteed(uid, 4, 0)}})
				if err != nil {
					t.Error(err)
					return
				}
				if v.GetVerdict() == admissionv1.Verdict_VERDICT_ADMITTED && !v.GetAllocations()[0].GetExclusiveCpus() {
					t.Errorf("%s got no CPUs", uid)
				}
				if _, err := d.admission.RemovePod(d.ctx(), &admissionv1.RemovePodRequest{PodUid: uid}); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	for i := range 20 {
		policy := []string{"single-numa-node", "restricted", "best-effort"}[i%3]
		d.setPolicy(&topologyv1.SetPolicyRequest{TopologyPolicy: &policy, ReservedCpus: &typesv1.CPUSet{List: []string{"0", "0,8"}[i%2]}})
		d.sound()
	}
	work.Wait()
	d.check()
	if left := d.pods(); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}
