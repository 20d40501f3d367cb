package policy

import (
	"context"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/nri/pkg/api"
	"google.golang.org/protobuf/proto"

	admissionv1 "github.com/berthd/berth/api/berth/admission/v1"
	allocationv1 "github.com/berthd/berth/api/berth/allocation/v1"
	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/api/config"
	"github.com/berthd/berth/api/convert"
	"github.com/berthd/berth/api/protocol"
	"github.com/berthd/berth/clients/nri/amounts"
	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/numa"
	"github.com/berthd/berth/managers/topology"
)

// using has the kubelet give parts of claims to a container: it names their CDI devices in its call to the runtime.
func using(c *api.Container, parts ...string) *api.Container {
	for _, part := range parts {
		c.CDIDevices = append(c.CDIDevices, &api.CDIDevice{Name: protocol.ClaimResource + "=" + part})
	}
	return c
}

// lists is what the kubelet's PodResources API says of claims, by POD/CONTAINER: the parts, each as UID:PART@NODE. It has no pod
// that is not there.
type lists map[string][]string

func (l lists) Devices(_ context.Context, _, name string) (map[string][]*typesv1.ExternalDevice, error) {
	out, has := map[string][]*typesv1.ExternalDevice{}, false
	for of, parts := range l {
		pod, container, _ := strings.Cut(of, "/")
		has = has || pod == name
		for _, part := range parts {
			id, node, _ := strings.Cut(part, "@")
			nodes, err := numa.Parse(node)
			if err != nil {
				return nil, err
			}
			if pod == name {
				out[container] = append(out[container], &typesv1.ExternalDevice{Resource: protocol.ClaimResource, Id: id,
					NumaNodes: convert.SomeNodes(nodes)})
			}
		}
	}
	if !has {
		return nil, errdefs.NotFoundf("no such pod")
	}
	return out, nil
}

// startDivided starts a berthd in which claims may have CPUs 1-2 of NUMA node 0 and 5-6 of node 1.
func startDivided(t *testing.T) *daemon {
	t.Helper()
	return startDividedWith(t, func(*config.Config) {})
}

// startDividedWith is startDivided with a configuration that a test changes.
func startDividedWith(t *testing.T, change func(*config.Config)) *daemon {
	t.Helper()
	return startConfigured(t, `
reserved: {cpus: "0-2,4-6", system: {memory: 20Gi}, evictionHard: {}}
memory: {policy: Static, reserved: [{numaNode: 0, limits: {memory: 10Gi}}, {numaNode: 1, limits: {memory: 10Gi}}]}
dra: {cpus: "1-2,5-6", memory: [{numaNode: 0, limits: {memory: 8Gi}}, {numaNode: 1, limits: {memory: 8Gi}}]}
`, change)
}

// startConfigured starts a berthd beside a kubelet, on two NUMA nodes of four CPUs and 32 GiB each. text is the rest of its
// configuration.
func startConfigured(t *testing.T, text string, change func(*config.Config)) *daemon {
	t.Helper()
	return startBerthdWith(t, func(c *config.Config) {
		if err := c.ApplyBerth("test", []byte(`apiVersion: config.berthd.github.io/v1alpha1
kind: BerthConfiguration
beside: kubelet
machine: 2s4c1t,mem=64Gi`+text)); err != nil {
			t.Fatal(err)
		}
		change(c)
	})
}

// claims admits claim-1, which has CPUs 1 and 5, and claim-2, which has CPU 6.
func (d *daemon) claims() {
	d.t.Helper()
	resources := map[string]string{"cpu": "1", "memory": "1Gi"}
	d.admitClaim(&admissionv1.ResourceClaim{Uid: "claim-1", Name: "one", Devices: []*admissionv1.ClaimDevice{
		{Name: "left", NumaNode: 0, Resources: resources}, {Name: "right", NumaNode: 1, Resources: resources},
	}})
	d.admitClaim(&admissionv1.ResourceClaim{Uid: "claim-2", Name: "two",
		Devices: []*admissionv1.ClaimDevice{{Name: "place", NumaNode: 1, Resources: resources}}})
}

func (d *daemon) admitClaim(c *admissionv1.ResourceClaim) {
	d.t.Helper()
	answer, err := d.Admission().Admit(d.t.Context(), &admissionv1.AdmitRequest{Owner: "dra",
		Subject: &admissionv1.AdmitRequest_ResourceClaim{ResourceClaim: c}})
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
	e := newEngine(t, Config{Client: d.Client})
	p := pod("user", "besteffort")
	if err := e.policy.RunPodSandbox(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	if _, err := e.create(p, container(p, "other", "user-2", 2, 0)); err != nil {
		t.Fatal(err)
	}
	// The kubelet names a device twice if a container uses the claim and one of its requests.
	adjust, err := e.create(p, using(container(p, "main", "user-1", 2, 0), "claim-1:left", "claim-1:right", "claim-1:right"))
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
	if adjust, err = e.create(right, using(container(right, "main", "right-1", 2, 0), "claim-1:right")); err != nil ||
		adjust.GetLinux().GetResources().GetCpu().GetCpus() != "5" {
		t.Errorf("a container with one of the claim's requests gets %v, %v", adjust, err)
	}
	if shared, err := cpuset.Parse("0,2-4,7"); err != nil || e.policy.view.shared != shared {
		t.Errorf("shared are %s, %v", e.policy.view.shared, err)
	}
	for name, row := range map[string]struct {
		milli      int64
		part, want string
	}{
		"wrong":  {2, "claim-1:middle", "middle"},
		"bare":   {2, "claim-1", "container"},
		"greedy": {1000, "claim-2:place", "requests whole CPUs and uses a claim"},
		"early":  {2, "claim-3:place", "is not in berthd's ledger"},
		"pod":    {2, "user-uid.other:other", "no claim in berthd"},
	} {
		tier, memory := "besteffort", int64(0)
		if row.milli == 1000 {
			tier, memory = "guaranteed", gib
		}
		p := pod(name, tier)
		if err := e.policy.RunPodSandbox(t.Context(), p); err != nil {
			t.Fatal(err)
		}
		if _, err := e.create(p, using(container(p, "main", name+"-1", row.milli, memory), row.part)); err == nil ||
			!strings.Contains(err.Error(), row.want) {
			t.Errorf("%s: %v, want %q", name, err, row.want)
		}
	}
}

// TestSharedClaims: containers of a pod and of several pods use a claim, one after the other and at the same time, and
// a container uses several claims. The claim's CPUs are nobody else's until the claim is given back, however many of its
// users end. A container that names the claim's device in an annotation gets nothing of it.
func TestSharedClaims(t *testing.T) {
	t.Parallel()
	d := startDivided(t)
	both := []string{"claim-1:left", "claim-1:right"}
	e := newEngine(t, Config{Client: d.Client})
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
	first := using(other(a, "init"), both...)
	want := func(what string, containers map[string]string) {
		t.Helper()
		if got := e.all(); !maps.Equal(got, containers) {
			t.Errorf("%s: containers run on %v, want %v", what, got, containers)
		}
	}
	e.run(a, first)
	want("the first user", map[string]string{"c-early": "0,2-4,7", "a-init": "1,5"})
	e.stop(a, first)
	for name, parts := range map[string][]string{"main": both, "side": both, "more": {"claim-1:left", "claim-2:place"}} {
		e.run(a, using(other(a, name), parts...))
	}
	e.run(b, using(other(b, "main"), both...))
	hostile := other(c, "hostile")
	hostile.Annotations = map[string]string{"cdi.k8s.io/claim": "dra.berthd.github.io/claim=claim-1:left"}
	hostile.Env = []string{"BERTH_CPUS=1"}
	hostile.CDIDevices = []*api.CDIDevice{{Name: "dra.berthd.github.io/claims=claim-1:left"}, {Name: "gpu.example.com/claim=claim-1:left"}}
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

// startPooled starts a berthd in which claims and pods may have the same CPUs, all but CPU 0.
func startPooled(t *testing.T) *daemon {
	t.Helper()
	return startConfigured(t, `
reserved: {cpus: "0", system: {memory: 2Gi}, evictionHard: {}}
memory: {policy: Static, reserved: [{numaNode: 0, limits: {memory: 1Gi}}, {numaNode: 1, limits: {memory: 1Gi}}]}
dra: {from: allocatable}
`, func(*config.Config) {})
}

// TestClaimsStay: a container keeps the CPUs of its claim over resizes of its own amounts, a restart of its own and one
// of berth-nri, and its amounts are those of its pod. With one pool, the kubelet adds the amounts of the whole claims to the limits.
func TestClaimsStay(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		whole, pooled bool
		tier, cpus    string
	}{
		"whole": {true, false, "burstable", "1,6"}, "apart": {false, false, "burstable", "1,6"},
		"whole, one pool": {true, true, "burstable", "1,5"}, "apart, one pool": {false, true, "burstable", "1,5"},
		"guaranteed": {true, false, "guaranteed", "1,6"}, "guaranteed, one pool": {true, true, "guaranteed", "1,5"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d, ofClaims, bytesOfClaims := (*daemon)(nil), int64(0), int64(0)
			if row.pooled {
				d, ofClaims, bytesOfClaims = startPooled(t), 3000, 3*gib // also those of the request right, which it does not use
			} else {
				d = startDivided(t)
			}
			d.claims()
			kubelet := &knows{pods: map[string]*typesv1.Pod{}}
			key, even := "user-uid.main", row.tier == "guaranteed"
			if row.whole {
				key = "user-uid"
				spec := specOf("user", "1")
				spec.Spec.ResourceClaims = []*typesv1.PodResourceClaim{{Name: "claim"}}
				spec.Spec.Containers[0].Resources.Requests = map[string]string{"cpu": "500m", "memory": "1Gi"}
				if even {
					spec.Spec.Containers[0].Resources.Limits["cpu"] = "500m"
				}
				kubelet.pods["user-uid"] = spec
			}
			e := newEngine(t, Config{Client: d.Client, Kubelet: kubelet})
			p := pod("user", row.tier)
			if err := e.policy.RunPodSandbox(t.Context(), p); err != nil {
				t.Fatal(err)
			}
			given := func(milli, memory int64) *api.LinuxResources {
				limit := int64(1000)
				if even {
					limit = milli
				}
				return size(milli, limit+ofClaims, memory+bytesOfClaims)
			}
			c := using(container(p, "main", "user-1", 500, gib), "claim-1:left", "claim-2:place")
			c.Linux.Resources = given(500, gib)
			check := func(when string, milli, memory int64) {
				t.Helper()
				if got := e.on(c.GetId()); got != row.cpus {
					t.Errorf("%s: it runs on %s", when, got)
				}
				d.expect(when, key, "main", milli, memory)
				limit := int64(1000)
				if even {
					limit = milli
				}
				if got := d.cpuLimit(key, "main"); got != limit {
					t.Errorf("%s: berthd has the CPU limit %dm, want %dm", when, got, limit)
				}
			}
			e.run(p, c)
			check("after its start", 500, gib)
			memory := int64(2 * gib)
			if even {
				memory = gib // berthd has allocated it on NUMA nodes
			}
			for _, milli := range []int64{700, 600} {
				u, err := e.resize(p, c, given(milli, memory))
				if cpu := u.GetLinux().GetResources().GetCpu(); err != nil || cpu.GetCpus() != row.cpus || cpu.GetQuota().GetValue() != -1 {
					t.Errorf("the update of a resize is %v, %v", u, err)
				}
				check("after a resize", milli, memory)
			}
			// The runtime has applied that there is no quota.
			c.Linux.Resources.Cpu.Quota = api.Int64(int64(-1))
			e.policy = New(e.settings)
			before := d.revision()
			updates, err := e.policy.Synchronize(t.Context(), []*api.PodSandbox{p}, []*api.Container{c})
			if err != nil {
				t.Fatal(err)
			}
			for _, u := range updates {
				if cpus := u.GetLinux().GetResources().GetCpu().GetCpus(); cpus != "" && cpus != row.cpus {
					t.Errorf("a restart of berth-nri moves the container to %s", cpus)
				}
			}
			if now := d.revision(); now != before {
				t.Errorf("the restart changed the ledger: revision %d, was %d", now, before)
			}
			check("after a restart of berth-nri", 600, memory)
			if _, err := e.resize(p, c, given(800, memory)); err != nil {
				t.Error(err)
			}
			check("after another resize", 800, memory)
			e.stop(p, c)
			c = using(container(p, "main", "user-2", 1000, memory), "claim-1:left", "claim-2:place")
			c.Linux.Resources = given(800, memory)
			e.run(p, c)
			check("after its restart", 800, memory)
		})
	}
}

// cpuLimit returns a container's CPU limit in berthd, in milli-CPU.
func (d *daemon) cpuLimit(uid, name string) int64 {
	d.t.Helper()
	answer, err := d.Allocation().Get(d.t.Context(), &allocationv1.GetRequest{Subject: &allocationv1.GetRequest_PodUid{PodUid: uid}})
	if err != nil {
		d.t.Fatal(err)
	}
	for _, c := range answer.GetPod().GetContainers() {
		if c.GetContainerName() == name {
			a, err := amounts.Declared(&typesv1.Container{Resources: c.GetResources()})
			if err != nil {
				d.t.Fatal(err)
			}
			return a.CPULimit
		}
	}
	d.t.Fatalf("berthd has no container %s", name)
	return 0
}

// TestRuntimeWithoutDevices: neither the runtime nor the kubelet says which claims a container uses. On a node with prepared claims a
// container with claims is refused, and others start.
func TestRuntimeWithoutDevices(t *testing.T) {
	t.Parallel()
	d := startDivided(t)
	user := specOf("user", "0")
	user.Spec.ResourceClaims = []*typesv1.PodResourceClaim{{Name: "place"}}
	user.Spec.Containers[0].Resources.Requests = map[string]string{"cpu": "500m"}
	user.Spec.Containers[0].Resources.Limits = nil
	user.Spec.Containers[0].Resources.Claims = []*typesv1.ResourceClaim{{Name: "place"}}
	files := cpuset.Of(1)
	e := newEngine(t, Config{Client: d.Client, Kubelet: &knows{pods: map[string]*typesv1.Pod{"user-uid": user}},
		Prepared: func(func(string) bool) (cpuset.Set, error) { return files, nil }})
	if _, err := e.policy.Configure(t.Context(), "", "containerd", "v2.2.0"); err != nil {
		t.Fatal(err)
	}
	p, other := pod("user", "burstable"), pod("other", "besteffort")
	if err := e.policy.RunPodSandbox(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	if _, err := e.create(p, container(p, "main", "user-1", 500, 0)); err == nil ||
		!strings.Contains(err.Error(), "--pod-resources is empty") || !strings.Contains(err.Error(), "containerd v2.2.0") {
		t.Error(err)
	}
	e.run(other, container(other, "main", "other-1", 2, 0))
	files = cpuset.Set{}
	if _, err := e.create(p, container(p, "main", "user-2", 500, 0)); err != nil {
		t.Errorf("without a prepared claim: %v", err)
	}
}

// TestRequestsOfClaims: containers that name requests of a claim, and an init container, have the CPUs of these requests only,
// whatever the kubelet's list of devices has: it leaves init containers out, and has all devices of the claim for every container.
func TestRequestsOfClaims(t *testing.T) {
	t.Parallel()
	d := startDivided(t)
	d.claims()
	all := []string{"claim-1:left@0", "claim-1:right@1", "claim-2:place@1"}
	e := newEngine(t, Config{Client: d.Client, Devices: lists{"a/left": all, "a/right": all, "a/both": all}})
	a := pod("a", "besteffort")
	for name, row := range map[string]struct {
		parts []string
		want  string
	}{
		"init": {[]string{"claim-2:place"}, "6"}, "left": {[]string{"claim-1:left"}, "1"}, "right": {[]string{"claim-1:right"}, "5"},
		"both": {[]string{"claim-1:left", "claim-1:right"}, "1,5"},
	} {
		if got := e.run(a, using(container(a, name, "a-"+name, 2, 0), row.parts...)); got != row.want {
			t.Errorf("%s runs on %s, want %s", name, got, row.want)
		}
	}
}

// TestClaimsWithoutKubelet: the runtime and berth-nri are restarted while the kubelet has no pods, as before its first
// contact with the API server. A container with a claim stays on its CPUs.
func TestClaimsWithoutKubelet(t *testing.T) {
	t.Parallel()
	n := newClaimNode(t)
	n.kubelet(true)
	n.restart()
	n.check("berth-nri is restarted")
}

// TestMemoryBesideClaims: berthd allocates the memory that a guaranteed container requests besides on the NUMA nodes of its claims.
// Otherwise the container does not start, because its memory would be used where the ledger does not count it.
func TestMemoryBesideClaims(t *testing.T) {
	t.Parallel()
	const left, right, refused = "claim-1:left@0", "claim-2:place@1",
		"and berthd has allocated the memory that it requests besides on NUMA nodes 0"
	for name, row := range map[string]struct {
		policy topology.Policy
		listed lists
		// part is what main uses, and init what its init container uses.
		part, init, want string
	}{
		"node 0":         {topology.SingleNUMANode, lists{"user/main": {left}}, "claim-1:left", "", "0"},
		"node 1":         {topology.SingleNUMANode, lists{"user/main": {right}}, "claim-2:place", "", "1"},
		"best effort":    {topology.BestEffort, lists{"user/main": {right}}, "claim-2:place", "", "1"},
		"init container": {topology.BestEffort, lists{"user/main": {right}}, "claim-2:place", "claim-2:place", "1"},
		"not listed":     {topology.BestEffort, lists{"user/main": {}}, "claim-2:place", "", refused},
		"not aligned":    {topology.None, lists{"user/main": {right}}, "claim-2:place", "", refused},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := startDividedWith(t, func(c *config.Config) { c.Topology.Policy = row.policy })
			d.claims()
			spec := specOf("user", "1")
			spec.Spec.ResourceClaims = []*typesv1.PodResourceClaim{{Name: "claim"}}
			amounts := map[string]string{"cpu": "500m", "memory": "4Gi"}
			spec.Spec.Containers[0].Resources = &typesv1.ResourceRequirements{Requests: amounts, Limits: amounts,
				Claims: []*typesv1.ResourceClaim{{Name: "claim"}}}
			if row.init != "" {
				spec.Spec.InitContainers = []*typesv1.Container{{Name: "init", Resources: proto.CloneOf(spec.Spec.Containers[0].Resources)}}
			}
			e := newEngine(t, Config{Client: d.Client, Kubelet: &knows{pods: map[string]*typesv1.Pod{"user-uid": spec}},
				Devices: row.listed})
			p := pod("user", "guaranteed")
			if err := e.policy.RunPodSandbox(t.Context(), p); err != nil {
				t.Fatal(err)
			}
			for _, c := range []struct{ name, part string }{{"init", row.init}, {"main", row.part}} {
				if c.part == "" {
					continue
				}
				adjust, err := e.create(p, using(container(p, c.name, "user-"+c.name, 500, 4*gib), c.part))
				got := adjust.GetLinux().GetResources().GetCpu().GetMems()
				if err != nil {
					got = err.Error()
				}
				if !strings.Contains(got, row.want) {
					t.Errorf("%s: memory nodes %q, want %q", c.name, got, row.want)
				}
			}
		})
	}
}

// TestExtendedResourceClaims: a pod without claims in its specification has the claim that the scheduler makes for an extended
// resource of a DeviceClass.
func TestExtendedResourceClaims(t *testing.T) {
	t.Parallel()
	d := startDivided(t)
	d.claims()
	spec := specOf("user", "1")
	spec.Spec.Containers[0].Resources = &typesv1.ResourceRequirements{
		Requests: map[string]string{"cpu": "500m"}, Limits: map[string]string{implicitResource + "cpu-memory.berthd.github.io": "1"},
	}
	e := newEngine(t, Config{Client: d.Client, Kubelet: &knows{pods: map[string]*typesv1.Pod{"user-uid": spec}},
		Devices: lists{"user/main": {"claim-2:place@1"}}})
	p := pod("user", "burstable")
	if err := e.policy.RunPodSandbox(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	if got := e.run(p, using(container(p, "main", "user-1", 500, 0), "claim-2:place")); got != "6" {
		t.Errorf("the container runs on %s", got)
	}
	got, err := d.Allocation().Get(t.Context(), &allocationv1.GetRequest{Subject: &allocationv1.GetRequest_PodUid{PodUid: "user-uid"}})
	if devices := got.GetPod().GetContainers()[0].GetExternalDevices(); err != nil || len(devices) != 1 ||
		devices[0].GetId() != "claim-2:place" {
		t.Errorf("the ledger has the devices %v, %v", devices, err)
	}
}

// TestRuntimesWithoutCDI: with a runtime that does not report CDI devices, a container with a claim does not start, and a running
// one stays where it is. Other containers start.
func TestRuntimesWithoutCDI(t *testing.T) {
	t.Parallel()
	for version, reports := range map[string]bool{
		"containerd 2.2.9": false, "containerd v1.7.35": false, "cri-o 2.3.0": false, "containerd unknown": false,
		"containerd v2.3.0": true, "containerd 2.10.1-rc.1+unknown": true, "containerd 3.0.0": true,
	} {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			d := startDivided(t)
			d.claims()
			e := newEngineOf(t, Config{Client: d.Client, Devices: lists{"user/main": {"claim-2:place@1"}, "user/other": nil,
				"user/gpu": {"claim-2:place@1"}}})
			p := pod("user", "besteffort")
			running := container(p, "main", "user-0", 2, 0)
			running.Linux.Resources.Cpu.Cpus = "6"
			name, number, _ := strings.Cut(version, " ")
			if events, err := e.policy.Configure(t.Context(), "", name, number); events == 0 || err != nil {
				t.Fatal(events, err)
			}
			updates, err := e.policy.Synchronize(t.Context(), []*api.PodSandbox{p}, []*api.Container{running})
			if err != nil {
				t.Fatal(err)
			}
			if moved := len(updates) > 0; moved != reports {
				t.Errorf("a running container is moved: %v", updates)
			}
			_, err = e.create(p, container(p, "main", "user-1", 2, 0))
			if refused := err != nil; refused == reports || refused &&
				!strings.Contains(err.Error(), "the runtime ("+version+") does not report") {
				t.Errorf("a container without CDI devices: %v", err)
			}
			gpu := container(p, "gpu", "user-2", 2, 0)
			gpu.CDIDevices = []*api.CDIDevice{{Name: "gpu.example.com/gpu=0"}}
			if got := e.run(p, gpu); got != "0,2-4,7" {
				t.Errorf("a container that uses another request of the claim runs on %s", got)
			}
			if got := e.run(p, container(p, "other", "user-3", 2, 0)); got != "0,2-4,7" {
				t.Errorf("a container without a claim runs on %s", got)
			}
		})
	}
}
