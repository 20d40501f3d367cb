package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	podresourcesv1 "k8s.io/kubelet/pkg/apis/podresources/v1"

	admissionv1 "github.com/berthd/berth/api/berth/admission/v1"
	allocationv1 "github.com/berthd/berth/api/berth/allocation/v1"
	typesv1 "github.com/berthd/berth/api/berth/types/v1"
)

// claimOf is a resource claim on a NUMA node, reserved for pods with these names.
func claimOf(uid string, node uint32, cpus, memory string, pods ...string) *admissionv1.AdmitRequest {
	var reserved []*typesv1.ClaimPod
	for _, name := range pods {
		reserved = append(reserved, &typesv1.ClaimPod{Name: name, Uid: name + "-uid"})
	}
	return &admissionv1.AdmitRequest{Owner: "dra",
		Subject: &admissionv1.AdmitRequest_ResourceClaim{ResourceClaim: &admissionv1.ResourceClaim{
			Pods: reserved, Uid: uid, Name: "claim-" + uid, Devices: []*admissionv1.ClaimDevice{{
				Name: "place", NumaNode: node, Resources: map[string]string{"cpu": cpus, "memory": memory},
			}},
		}}}
}

// TestResourceClaims: a claim has the exclusive CPUs and the memory of its NUMA node over crashes of
// berthd and the loss of its ledger, pods get none of these, and it is no pod for readers of pods.
func TestResourceClaims(t *testing.T) {
	t.Parallel()
	n := newNode(t, "--machine", "2s2n4c2t,mem=64Gi")
	n.kernel = false
	n.config = filepath.Join(n.root, "berthd.yaml")
	configure := func(dra string) {
		t.Helper()
		text := `apiVersion: config.berthd.github.io/v1alpha1
kind: BerthConfiguration
beside: kubelet
cpu: {policy: static}
topology: {policy: best-effort}
reserved: {cpus: "0-5,16-21", system: {memory: 20Gi}, evictionHard: {}}
memory: {policy: Static, reserved: [{numaNode: 0, limits: {memory: 10Gi}}, {numaNode: 1, limits: {memory: 10Gi}}]}
` + dra
		if err := os.WriteFile(n.config, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	configure("")
	d := n.start()
	if _, err := d.admission.Admit(d.ctx(), claimOf("a", 0, "2", "1Gi")); status.Code(err) != codes.FailedPrecondition ||
		!strings.Contains(err.Error(), "dra.cpus") {
		t.Errorf("without dra in the configuration: %v", err)
	}
	d.stop()
	configure(`dra: {cpus: "1-5,17-21", memory: [{numaNode: 0, limits: {memory: 8Gi}}, {numaNode: 1, limits: {memory: 8Gi}}]}`)
	d = n.start()
	admit := func(req *admissionv1.AdmitRequest) *admissionv1.AdmitResponse {
		t.Helper()
		r, err := d.admission.Admit(d.ctx(), req)
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	first := admit(claimOf("a", 0, "3", "6Gi", "web"))
	if first.GetVerdict() != admissionv1.Verdict_VERDICT_ADMITTED {
		t.Fatalf("%v", first)
	}
	held := first.GetAllocations()[0]
	reservedFor := func() (names string) {
		t.Helper()
		list, err := d.allocation.List(d.ctx(), &allocationv1.ListRequest{Owner: "dra"})
		if err != nil || len(list.GetPods()) != 1 {
			t.Fatalf("%v, %v", list, err)
		}
		for _, p := range list.GetPods()[0].GetResourceClaimPods() {
			names += p.GetName() + "=" + p.GetUid() + " "
		}
		return names
	}
	if got := reservedFor(); got != "web=web-uid " {
		t.Errorf("the claim is reserved for %q", got)
	}
	if again := admit(claimOf("a", 0, "3", "6Gi", "web", "batch")); !again.GetReplayed() || !proto.Equal(again.GetAllocations()[0], held) {
		t.Errorf("the same claim again: %v", again)
	}
	for what, other := range map[string]*admissionv1.AdmitRequest{
		"another node": claimOf("a", 1, "3", "6Gi"), "another amount": claimOf("a", 0, "4", "6Gi"),
	} {
		if _, err := d.admission.Admit(d.ctx(), other); status.Code(err) != codes.FailedPrecondition {
			t.Errorf("the claim with %s: %v", what, err)
		}
	}
	refused := admit(claimOf("b", 0, "1", "3Gi"))
	if refused.GetVerdict() != admissionv1.Verdict_VERDICT_REJECTED || !strings.Contains(refused.String(), "dra.memory") {
		t.Errorf("more memory than the node has for claims: %v", refused)
	}
	if _, err := d.admission.Resize(d.ctx(), &admissionv1.ResizeRequest{PodUid: "a", Owner: "dra",
		Containers: []*admissionv1.ContainerResources{
			{ContainerName: "place", Resources: &typesv1.ResourceRequirements{Requests: map[string]string{"cpu": "2"},
				Limits: map[string]string{"cpu": "2"}}},
		}}); status.Code(err) != codes.InvalidArgument {
		t.Errorf("resize of a claim: %v", err)
	}
	check := func() {
		t.Helper()
		list, err := d.allocation.List(d.ctx(), &allocationv1.ListRequest{Owner: "dra"})
		if err != nil || len(list.GetPods()) != 1 {
			t.Fatalf("%v, %v", list, err)
		}
		p := list.GetPods()[0]
		if p.GetUid() != "a" || p.GetName() != "claim-a" || p.GetNamespace() != "default" || len(p.GetResourceClaimNodes().GetIds()) != 1 ||
			!proto.Equal(p.GetContainers()[0].GetCpus(), held.GetCpus()) || reservedFor() != "web=web-uid batch=batch-uid " {
			t.Errorf("%v", p)
		}
		if r := admit(claimOf("a", 0, "3", "6Gi", "web", "batch")); !proto.Equal(r.GetAllocations()[0].GetCpus(), held.GetCpus()) {
			t.Errorf("has %v, had %v", r.GetAllocations()[0], held)
		}
		d.check()
	}
	check()
	pods, err := d.readers().List(d.ctx(), &podresourcesv1.ListPodResourcesRequest{})
	if err != nil || len(pods.GetPodResources()) != 0 {
		t.Errorf("podresources lists %v, %v", pods, err)
	}
	d.kill()
	d = n.start()
	check()
	d.kill()
	if err := os.Remove(filepath.Join(n.root, "state", "ledger.db")); err != nil {
		t.Fatal(err)
	}
	d = n.start()
	// What the lost claim holds is known from its record.
	if r, err := d.admission.Admit(d.ctx(), claimOf("c", 0, "4", "1Gi")); err == nil &&
		r.GetVerdict() == admissionv1.Verdict_VERDICT_ADMITTED {
		t.Errorf("CPUs of a lost claim are given again: %v", r)
	}
	admit(claimOf("a", 0, "3", "6Gi", "web", "batch"))
	check()
	if r, err := d.admission.RemovePod(d.ctx(), &admissionv1.RemovePodRequest{PodUid: "a", Owner: "dra"}); err != nil ||
		len(r.GetReleased()) != 2 {
		t.Errorf("%v, %v", r, err)
	}
	d.stop()
}
