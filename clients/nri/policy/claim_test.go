package policy

import (
	"strings"
	"testing"

	admissionv1 "github.com/berthd/berth/api/berth/admission/v1"
	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/api/config"
	"github.com/berthd/berth/managers/cpuset"
)

// uses is a kubelet's word on the claims of the containers called main, by the name of the pod.
func uses(claims map[string]string) *has {
	h := &has{devices: map[string][]*typesv1.ExternalDevice{}}
	for pod, uid := range claims {
		h.devices[pod] = []*typesv1.ExternalDevice{{Resource: ClaimResource, Id: uid}}
	}
	return h
}

// TestClaims: a container that uses a claim has the claim's CPUs and memory nodes before it starts, the other
// containers of its pod do not, and after a restart of berth-nri they still are where they were. What the
// claims cannot do is refused.
func TestClaims(t *testing.T) {
	t.Parallel()
	d := startBerthdWith(t, func(c *config.Config) {
		if err := c.ApplyBerth("test", []byte(`apiVersion: config.berthd.github.io/v1alpha1
kind: BerthConfiguration
beside: kubelet
machine: 2s4c1t,mem=64Gi
reserved: {cpus: "0-2,4-6", system: {memory: 20Gi}, evictionHard: {}}
memory: {policy: Static, reserved: [{numaNode: 0, limits: {memory: 10Gi}}, {numaNode: 1, limits: {memory: 10Gi}}]}
dra: {cpus: "1-2,5-6", memory: [{numaNode: 0, limits: {memory: 8Gi}}, {numaNode: 1, limits: {memory: 8Gi}}]}
`)); err != nil {
			t.Fatal(err)
		}
	})
	answer, err := d.Admission().Admit(t.Context(), &admissionv1.AdmitRequest{Owner: "dra", Subject: &admissionv1.AdmitRequest_ResourceClaim{
		ResourceClaim: &admissionv1.ResourceClaim{
			Uid: "claim-1", Name: "claim", Resources: map[string]string{"cpu": "2", "memory": "1Gi"}, NumaNodes: &typesv1.NUMANodeSet{Ids: []uint32{1}},
		},
	}})
	if err != nil || answer.GetVerdict() != admissionv1.Verdict_VERDICT_ADMITTED {
		t.Fatalf("%v, %v", answer, err)
	}
	kubelet := uses(map[string]string{"user": "claim-1", "thief": "claim-1", "greedy": "claim-1", "early": "claim-2", "liar": "user-uid.other"})
	e := newEngine(t, Config{Client: d.Client, Devices: kubelet})
	p := pod("user", "besteffort")
	if err := e.policy.RunPodSandbox(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	if _, err := e.create(p, container(p, "other", "user-2", 2, 0)); err != nil {
		t.Fatal(err)
	}
	adjust, err := e.create(p, container(p, "main", "user-1", 2, 0))
	if err != nil {
		t.Fatal(err)
	}
	if cpu := adjust.GetLinux().GetResources().GetCpu(); cpu.GetCpus() != "5-6" || cpu.GetMems() != "1" {
		t.Errorf("the container with the claim gets %v", cpu)
	}
	if shared, err := cpuset.Parse("0-4,7"); err != nil || e.policy.shared != shared {
		t.Errorf("shared are %s, %v", e.policy.shared, err)
	}
	for name, row := range map[string]struct {
		milli int64
		want  string
	}{
		"thief":  {2, "uses the same claim"},
		"greedy": {1000, "requests whole CPUs and uses a claim"},
		"early":  {2, "berthd does not know the claim"},
		"liar":   {2, "no claim in berthd"},
	} {
		tier, memory := "besteffort", int64(0)
		if row.milli == 1000 {
			tier, memory = "guaranteed", gib
		}
		p := pod(name, tier)
		if err := e.policy.RunPodSandbox(t.Context(), p); err != nil {
			t.Fatal(err)
		}
		if _, err := e.create(p, container(p, "main", name+"-1", row.milli, memory)); err == nil || !strings.Contains(err.Error(), row.want) {
			t.Errorf("%s: %v, want %q", name, err, row.want)
		}
	}
}
