package policy

import (
	"context"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/nri/pkg/api"

	admissionv1 "github.com/berthd/berth/api/berth/admission/v1"
	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/api/config"
	"github.com/berthd/berth/managers/cpuset"
)

// uses is a kubelet's word on the parts of claims that containers use, by POD/CONTAINER.
type uses map[string][]string

func (u uses) Devices(_ context.Context, _, name string) (map[string][]*typesv1.ExternalDevice, error) {
	out := map[string][]*typesv1.ExternalDevice{}
	for of, ids := range u {
		pod, container, _ := strings.Cut(of, "/")
		for _, id := range ids {
			if pod == name {
				out[container] = append(out[container], &typesv1.ExternalDevice{Resource: ClaimResource, Id: id})
			}
		}
	}
	return out, nil
}

// startDivided starts a berthd in which claims may have CPUs 1-2 of NUMA node 0 and 5-6 of node 1.
func startDivided(t *testing.T) *daemon {
	t.Helper()
	return startBerthdWith(t, func(c *config.Config) {
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
}

// claims admits claim-1, which has CPUs 1 and 5, and claim-2, which has CPU 6.
func (d *daemon) claims() {
	d.t.Helper()
	resources := map[string]string{"cpu": "1", "memory": "1Gi"}
	d.admitClaim(&admissionv1.ResourceClaim{Uid: "claim-1", Name: "one", Devices: []*admissionv1.ClaimDevice{
		{Name: "left", NumaNode: 0, Resources: resources}, {Name: "right", NumaNode: 1, Resources: resources},
	}})
	d.admitClaim(&admissionv1.ResourceClaim{Uid: "claim-2", Name: "two", Devices: []*admissionv1.ClaimDevice{{Name: "place", NumaNode: 1, Resources: resources}}})
}

func (d *daemon) admitClaim(c *admissionv1.ResourceClaim) {
	d.t.Helper()
	answer, err := d.Admission().Admit(d.t.Context(), &admissionv1.AdmitRequest{Owner: "dra", Subject: &admissionv1.AdmitRequest_ResourceClaim{ResourceClaim: c}})
	if err != nil || answer.GetVerdict() != admissionv1.Verdict_VERDICT_ADMITTED {
		d.t.Fatalf("%v, %v", answer, err)
	}
}

// TestClaims: a container that uses a claim has the CPUs and the memory nodes of the parts that it uses before it
// starts, and the other containers of its pod do not. What claims cannot do is refused.
func TestClaims(t *testing.T) {
	t.Parallel()
	d := startDivided(t)
	d.claims()
	kubelet := uses{
		"user/main": {"claim-1:left", "claim-1:right"}, "greedy/main": {"claim-2:place"}, "early/main": {"claim-3:place"}, "liar/main": {"user-uid.other:other"},
		"right/main": {"claim-1:right"}, "wrong/main": {"claim-1:middle"}, "bare/main": {"claim-1"},
	}
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
	if cpu := adjust.GetLinux().GetResources().GetCpu(); cpu.GetCpus() != "1,5" || cpu.GetMems() != "0,1" {
		t.Errorf("the container with the claim gets %v", cpu)
	}
	env := map[string]string{}
	for _, v := range adjust.GetEnv() {
		env[v.GetKey()] = v.GetValue()
	}
	if env["BERTH_CPUS"] != "1,5" || env["BERTH_NUMA_NODES"] != "0,1" {
		t.Errorf("the container with the claim gets the variables %v", env)
	}
	right := pod("right", "besteffort")
	if adjust, err = e.create(right, container(right, "main", "right-1", 2, 0)); err != nil || adjust.GetLinux().GetResources().GetCpu().GetCpus() != "5" {
		t.Errorf("a container with one of the claim's requests gets %v, %v", adjust, err)
	}
	if shared, err := cpuset.Parse("0,2-4,7"); err != nil || e.policy.shared != shared {
		t.Errorf("shared are %s, %v", e.policy.shared, err)
	}
	for name, row := range map[string]struct {
		milli int64
		want  string
	}{
		"wrong":  {2, "middle"},
		"bare":   {2, "container"},
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

// TestSharedClaims: containers of a pod and of several pods use a claim, one after the other and at the same time, and
// a container uses several claims. The claim's CPUs are nobody else's until the claim is given back, however many of its
// users end. A container that only names the claim's device gets nothing of it.
func TestSharedClaims(t *testing.T) {
	t.Parallel()
	d := startDivided(t)
	both := []string{"claim-1:left", "claim-1:right"}
	e := newEngine(t, Config{Client: d.Client, Devices: uses{
		"a/init": both, "a/main": both, "a/side": both, "a/more": {"claim-1:left", "claim-2:place"}, "b/main": both,
	}})
	e.follow()
	a, b, c := pod("a", "besteffort"), pod("b", "besteffort"), pod("c", "besteffort")
	other := func(p *api.PodSandbox, name string) *api.Container {
		return container(p, name, p.GetName()+"-"+name, 2, 0)
	}
	if got := e.run(c, other(c, "early")); got != "0-7" {
		t.Errorf("before any claim a container runs on %s", got)
	}
	d.claims()
	eventually(t, "the container leaves the claims' CPUs", func() bool { return e.on("c-early") == "0,2-4,7" })
	first := other(a, "init")
	want := func(what string, containers map[string]string) {
		t.Helper()
		if got := e.all(); !maps.Equal(got, containers) {
			t.Errorf("%s: containers run on %v, want %v", what, got, containers)
		}
	}
	e.run(a, first)
	want("the first user", map[string]string{"c-early": "0,2-4,7", "a-init": "1,5"})
	e.stop(a, first)
	for _, name := range []string{"main", "side", "more"} {
		e.run(a, other(a, name))
	}
	e.run(b, other(b, "main"))
	hostile := other(c, "hostile")
	hostile.CDIDevices = []*api.CDIDevice{{Name: "dra.berthd.github.io/claim=claim-1:left"}}
	e.run(c, hostile)
	want("all", map[string]string{
		"c-early": "0,2-4,7", "c-hostile": "0,2-4,7", "a-main": "1,5", "a-side": "1,5", "a-more": "1,6", "b-main": "1,5",
	})
	e.end(a)
	want("a pod has ended", map[string]string{"c-early": "0,2-4,7", "c-hostile": "0,2-4,7", "b-main": "1,5"})
	e.end(b)
	if got := d.uids(); !slices.Contains(got, "claim-1") || !slices.Contains(got, "claim-2") {
		t.Errorf("berthd has %v", got)
	}
	if got := e.run(c, other(c, "late")); got != "0,2-4,7" {
		t.Errorf("after the last user a container runs on %s", got)
	}
	for _, uid := range []string{"claim-1", "claim-2"} {
		if _, err := d.Admission().RemovePod(t.Context(), &admissionv1.RemovePodRequest{PodUid: uid, Owner: "dra"}); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "the CPUs are shared again", func() bool { return e.on("c-early") == "0-7" && e.on("c-late") == "0-7" })
}

// TestClaimsStay: a container keeps the CPUs of its claim over resizes of its own amounts, a restart of its own and one
// of berth-nri, and its amounts are those of its pod.
func TestClaimsStay(t *testing.T) {
	t.Parallel()
	for name, whole := range map[string]bool{"whole": true, "apart": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := startDivided(t)
			d.claims()
			kubelet := &knows{pods: map[string]*typesv1.Pod{}}
			key := "user-uid.main"
			if whole {
				key = "user-uid"
				spec := specOf("user", "1")
				spec.Spec.ResourceClaims = []*typesv1.PodResourceClaim{{Name: "claim"}}
				spec.Spec.Containers[0].Resources.Requests = map[string]string{"cpu": "500m", "memory": "1Gi"}
				kubelet.pods["user-uid"] = spec
			}
			e := newEngine(t, Config{Client: d.Client, Kubelet: kubelet, Devices: uses{"user/main": {"claim-1:left", "claim-2:place"}}})
			p := pod("user", "burstable")
			if err := e.policy.RunPodSandbox(t.Context(), p); err != nil {
				t.Fatal(err)
			}
			c := container(p, "main", "user-1", 1000, gib)
			c.Linux.Resources.Cpu.Shares = api.UInt64(uint64(512))
			check := func(when string, milli, memory int64) {
				t.Helper()
				if got := e.on(c.GetId()); got != "1,6" {
					t.Errorf("%s: it runs on %s", when, got)
				}
				d.expect(when, key, "main", milli, memory)
			}
			e.run(p, c)
			check("after its start", 500, gib)
			for _, milli := range []int64{700, 600} {
				u, err := e.resize(p, c, size(milli, 1000, 2*gib))
				if cpu := u.GetLinux().GetResources().GetCpu(); err != nil || cpu.GetCpus() != "1,6" || cpu.GetQuota().GetValue() != -1 {
					t.Errorf("the update of a resize is %v, %v", u, err)
				}
				check("after a resize", milli, 2*gib)
			}
			// The runtime has applied that there is no quota.
			c.Linux.Resources.Cpu.Quota = api.Int64(int64(-1))
			e.policy = New(e.policy.Config)
			before := d.revision()
			updates, err := e.policy.Synchronize(t.Context(), []*api.PodSandbox{p}, []*api.Container{c})
			if err != nil {
				t.Fatal(err)
			}
			for _, u := range updates {
				if cpus := u.GetLinux().GetResources().GetCpu().GetCpus(); cpus != "" && cpus != "1,6" {
					t.Errorf("a restart of berth-nri moves the container to %s", cpus)
				}
			}
			if now := d.revision(); now != before {
				t.Errorf("the restart changed the ledger: revision %d, was %d", now, before)
			}
			check("after a restart of berth-nri", 600, 2*gib)
			if _, err := e.resize(p, c, size(800, 1000, 2*gib)); err != nil {
				t.Error(err)
			}
			check("after another resize", 800, 2*gib)
			e.stop(p, c)
			c = container(p, "main", "user-2", 1000, 2*gib)
			c.Linux.Resources.Cpu.Shares = api.UInt64(uint64(819))
			e.run(p, c)
			check("after its restart", 800, 2*gib)
		})
	}
}

// TestLostClaims: the containers of claims that berthd has lost stay on their CPUs, and no other container gets these
// until the claims are admitted again.
func TestLostClaims(t *testing.T) {
	t.Parallel()
	d := startDivided(t)
	d.claims()
	c := Config{Client: d.Client, Devices: uses{"a/main": {"claim-1:left", "claim-1:right"}}}
	e := newEngine(t, c)
	e.follow()
	a, b := pod("a", "besteffort"), pod("b", "besteffort")
	main, first := container(a, "main", "a-1", 2, 0), container(b, "first", "b-1", 2, 0)
	e.run(b, first)
	e.run(a, main)
	for _, uid := range []string{"claim-1", "claim-2"} {
		if _, err := d.Admission().RemovePod(t.Context(), &admissionv1.RemovePodRequest{PodUid: uid, Owner: "dra"}); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "the CPU of the claim that nobody uses is shared", func() bool { return e.on("b-1") == "0,2-4,6-7" })
	late := container(b, "late", "b-2", 2, 0)
	if _, err := e.create(b, late); err != nil {
		t.Fatal(err)
	}
	eventually(t, "another container starts", func() bool { return e.start(b, late) == nil })
	if e.on("b-2") != "0,2-4,6-7" || e.on("a-1") != "1,5" {
		t.Errorf("while the claim is lost, containers run on %v", e.all())
	}
	d.claims()
	eventually(t, "the claims are there again", func() bool { return e.on("b-2") == "0,2-4,7" && e.on("a-1") == "1,5" })
}
