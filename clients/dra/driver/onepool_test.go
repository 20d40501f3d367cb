package driver

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	"k8s.io/dynamic-resource-allocation/resourceslice"

	admissionv1 "github.com/berthd/berth/api/berth/admission/v1"
	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/managers/machine/machinetest"
)

// newPool is a place where pods and claims have one pool: 7 CPUs, 53 GiB and 64 pages of 2 MiB of each NUMA node.
func newPool(t *testing.T) *place {
	t.Helper()
	return newPoolOf(t, func(*place) {})
}

// newPoolOf is newPool with a change.
func newPoolOf(t *testing.T, change func(*place)) *place {
	t.Helper()
	return newPlaceOf(t, "", func(p *place) {
		p.dra, p.machine, p.reserved = "{from: allocatable}", "2s4c2t,mem=64Gi,huge=2Mi:64", `cpus: "0,4", system: {memory: 20Gi}`
		p.gates, p.sold, p.soldMemory = []string{"Other", gate}, "14", "107Gi"
		p.pod = &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "default", UID: "p"}}
		change(p)
	})
}

// counts lets the scheduler count the claims.
func (p *place) counts(claims ...*resourceapi.ResourceClaim) {
	p.pod.Status.NodeAllocatableResourceClaimStatuses = nil
	for _, c := range claims {
		s := corev1.NodeAllocatableResourceClaimStatus{ResourceClaimName: c.Name}
		for _, r := range c.Status.Allocation.Devices.Results[1:] {
			for name, q := range r.ConsumedCapacity {
				of := corev1.ResourceName(name)
				if pages, _, ok := pagesOf(string(name)); ok {
					of = corev1.ResourceName(pages)
				}
				s.Mapping = append(s.Mapping, corev1.NodeAllocatableMappedResources{Name: of, Quantity: &q})
			}
		}
		p.pod.Status.NodeAllocatableResourceClaimStatuses = append(p.pod.Status.NodeAllocatableResourceClaimStatuses, s)
	}
}

// paged is a claim with pages of 2 MiB.
func paged(c *resourceapi.ResourceClaim, bytes string) *resourceapi.ResourceClaim {
	for i := range c.Status.Allocation.Devices.Results[1:] {
		c.Status.Allocation.Devices.Results[1+i].ConsumedCapacity["hugepages2Mi"] = resource.MustParse(bytes)
	}
	return c
}

// admitted admits a Guaranteed pod, which is no claim.
func (p *place) admitted(uid, cpus, memory string) {
	p.t.Helper()
	amounts := map[string]string{"cpu": cpus, "memory": memory}
	r, err := p.Client.Admission().Admit(p.t.Context(), &admissionv1.AdmitRequest{Owner: "kubernetes",
		Subject: &admissionv1.AdmitRequest_Pod{Pod: &typesv1.Pod{
			Metadata: &typesv1.PodMetadata{Uid: uid, Name: uid, Namespace: "default"},
			Spec: &typesv1.PodSpec{Containers: []*typesv1.Container{{Name: "c",
				Resources: &typesv1.ResourceRequirements{Requests: amounts, Limits: amounts}}}},
		}}})
	if err != nil || r.GetVerdict() != admissionv1.Verdict_VERDICT_ADMITTED {
		p.t.Fatalf("pod %s: %v, %v", uid, r.GetMessage(), err)
	}
}

// amountsOf are the capacities of the devices.
func amountsOf(r resourceslice.DriverResources) string {
	var out []string
	for _, d := range r.Pools[node].Slices[0].Devices {
		one := []string{d.Name}
		for _, name := range []resourceapi.QualifiedName{"cpu", "memory", "hugepages2Mi"} {
			q := d.Capacity[name].Value
			one = append(one, q.String())
		}
		out = append(out, strings.Join(one, " "))
	}
	return strings.Join(out, ", ")
}

// TestOnePoolIsPublished: devices have what pods leave, also huge pages, and say how the scheduler counts them.
func TestOnePoolIsPublished(t *testing.T) {
	t.Parallel()
	p := newPool(t)
	var out lastPublished
	publish := func(want string) {
		t.Helper()
		if err := p.publish(t.Context(), &out, false); err != nil {
			t.Fatal(err)
		}
		if ready := p.Ready(); ready != nil {
			t.Fatal(ready)
		}
		if got := amountsOf(out.DriverResources); got != want {
			t.Errorf("published are %s, want %s", got, want)
		}
	}
	publish("numa-0 7 55168Mi 128Mi, numa-1 7 55168Mi 128Mi")
	for _, d := range out.Pools[node].Slices[0].Devices {
		for name, of := range map[corev1.ResourceName]resourceapi.QualifiedName{"cpu": "cpu", "memory": "memory",
			"hugepages-2Mi": "hugepages2Mi"} {
			m := d.NodeAllocatableResources[name].Mapping
			if m == nil || *m.CapacityKey != of || m.CapacityMultiplier.Value() != 1 || len(d.NodeAllocatableResources) != 3 {
				t.Errorf("%s of %s is counted as %+v", name, d.Name, m)
			}
		}
		if policy := d.Capacity["hugepages2Mi"].RequestPolicy; policy.Default.Value() != 0 || policy.ValidRange.Min.Value() != 0 ||
			policy.ValidRange.Step.Value() != 2<<20 {
			t.Errorf("huge pages: %+v", policy)
		}
	}
	p.admitted("web", "4", "8Gi")
	publish("numa-0 3 46976Mi 128Mi, numa-1 7 55168Mi 128Mi")
	large := allocated("large", 0, 4, "1Gi") // the scheduler has not seen yet what is left
	p.counts(large)
	if r := p.prepared(large); r.Err == nil || !strings.Contains(r.Err.Error(), "cpu on NUMA node 0: 4 needed, 3 free") ||
		!strings.Contains(r.Err.Error(), "without pod default/web") {
		t.Errorf("a claim on CPUs that a pod has: %v", r.Err)
	}
	a := paged(allocated("a", 0, 2, "1Gi"), "64Mi")
	p.counts(a)
	if r := p.prepared(a); r.Err != nil {
		t.Fatal(r.Err)
	}
	publish("numa-0 3 46976Mi 128Mi, numa-1 7 55168Mi 128Mi") // the claim has a part of it
}

// TestOnePoolWithoutMemory: a NUMA node whose memory pods have, and that therefore has CPUs only, is no device. The other nodes are
// published as before, and the first one again when the pod has ended.
func TestOnePoolWithoutMemory(t *testing.T) {
	t.Parallel()
	p := newPool(t)
	for memory, want := range map[string]string{
		"55168Mi": "numa-1 7 55168Mi 128Mi", // all of node 0
		"60Gi":    "",                       // a part of each node, which then have pods of both nodes only
	} {
		p.admitted("large", "1", memory)
		for _, want := range []string{want, "numa-0 7 55168Mi 128Mi, numa-1 7 55168Mi 128Mi"} {
			var out lastPublished
			if err := errors.Join(p.publish(t.Context(), &out, false), p.Ready()); err != nil {
				t.Fatal(err)
			}
			got := ""
			if len(out.Pools) > 0 {
				got = amountsOf(out.DriverResources)
			}
			if got != want {
				t.Errorf("beside a pod with %s, published are %q, want %q", memory, got, want)
			}
			report, _ := p.health.get(time.Now())
			for _, d := range report.Devices {
				if d.Health != kubeletplugin.HealthStatusHealthy {
					t.Errorf("beside a pod with %s: %+v", memory, d)
				}
			}
			if _, err := p.Client.Admission().RemovePod(t.Context(), &admissionv1.RemovePodRequest{PodUid: "large",
				Owner: "kubernetes"}); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// TestOnePoolNeedsTheGate: nothing is published where the claims would not be counted, and the text says what to do.
func TestOnePoolNeedsTheGate(t *testing.T) {
	t.Parallel()
	p := newPool(t)
	for want, change := range map[string]func(){
		"does not declare it (status.declaredFeatures)":           func() { p.gates = []string{"Other"} },
		"switch it on in kube-apiserver":                          func() { p.dropped = true },
		"counts 15 of cpu as allocatable, and pods and claims to": func() { p.sold = "15" },
	} {
		p.gates, p.dropped, p.sold = []string{gate}, false, "14"
		var out lastPublished
		if err := p.publish(t.Context(), &out, false); err != nil || len(out.Pools) != 1 {
			t.Fatalf("%v, %+v", err, p.Ready())
		}
		change()
		if err := p.publish(t.Context(), &out, false); err != nil {
			t.Fatal(err)
		}
		if err := p.Ready(); len(out.Pools) != 0 || err == nil || !strings.Contains(err.Error(), want) || !p.CountedTwice() {
			t.Errorf("%d pools, %v, want none and %q", len(out.Pools), err, want)
		}
		if err := p.publish(t.Context(), &out, true); err != nil || len(out.Pools) != 0 {
			t.Errorf("after a change of the amounts: %d pools, %v", len(out.Pools), err)
		}
	}
}

// TestOnePoolPrepares: only claims that the scheduler has counted are prepared, with huge pages and their mounts, and all of it
// survives the loss of the ledger.
func TestOnePoolPrepares(t *testing.T) {
	t.Parallel()
	p := newPool(t)
	mounted := func() *resourceapi.ResourceClaim {
		c := paged(allocated("a", 1, 2, "1Gi"), "64Mi")
		c.Status.Allocation.Devices.Config = []resourceapi.DeviceAllocationConfiguration{opaque(resourceapi.AllocationConfigSourceClaim,
			mountsOf(`"2Mi"`, "/pages"))}
		return c
	}
	for want, change := range map[string]func(*resourceapi.ResourceClaim){
		"has not counted 2 of cpu of the claim in pod p": func(*resourceapi.ResourceClaim) { p.counts() },
		"has not counted 64Mi of hugepages-2Mi":          func(*resourceapi.ResourceClaim) { p.counts(allocated("a", 1, 2, "1Gi")) },
		"has not counted 512Mi of memory": func(*resourceapi.ResourceClaim) {
			p.counts(paged(allocated("a", 1, 2, "512Mi"),
				"64Mi"))
		},
		"does not declare it": func(*resourceapi.ResourceClaim) { p.gates = nil },
		"reserved for 2 users": func(c *resourceapi.ResourceClaim) {
			c.Status.ReservedFor = slices.Repeat(c.Status.ReservedFor, 2)
		},
		"reserved for 0 users":        func(c *resourceapi.ResourceClaim) { c.Status.ReservedFor = nil },
		"pod p has the uid p":         func(c *resourceapi.ResourceClaim) { c.Status.ReservedFor[0].UID = "earlier" },
		"there is no pod default/old": func(c *resourceapi.ResourceClaim) { c.Status.ReservedFor[0].Name = "old" },
	} {
		p.counts(mounted())
		p.gates = []string{gate}
		c := mounted()
		change(c)
		if r := p.prepared(c); r.Err == nil || !strings.Contains(r.Err.Error(), want) {
			t.Errorf("%v, want %q", r.Err, want)
		}
	}
	p.want("nothing is counted", "")
	p.gates = []string{gate}
	p.counts(mounted())
	if r := p.prepared(mounted()); r.Err != nil {
		t.Fatal(r.Err)
	}
	var file specification
	text, err := os.ReadFile(filepath.Join(p.root, "cdi", fileName("a")))
	if err != nil || json.Unmarshal(text, &file) != nil || len(file.Devices) != 1 || len(file.Devices[0].Edits.Mounts) != 1 {
		t.Fatalf("%v: %s", err, text)
	}
	if m := file.Devices[0].Edits.Mounts[0]; m.Type != "hugetlbfs" || m.Path != "/pages" ||
		!slices.Contains(m.Options, "size=67108864") || !slices.Contains(m.Options, "pagesize=2097152") {
		t.Errorf("%+v", m)
	}
	p.counts() // as before a restart of the kubelet, the claim was counted when it was prepared first
	if r := p.prepared(mounted()); r.Err != nil {
		t.Error(r.Err)
	}
	p.want("again", "a: 5,13")
	p.lose()
	p.unsure = true
	b := paged(allocated("b", 1, 1, "1Gi"), "66Mi")
	p.counts(b)
	if r := p.prepared(b); r.Err == nil || !strings.Contains(r.Err.Error(), "hugepages-2Mi") {
		t.Errorf("64 MiB of the pages are the other claim's: %v", r.Err)
	}
	p.want("the ledger was lost", "a: 5,13")
}

// TestManyMounts: the mounts of a claim are bounded, whatever its devices are, and its CDI file can be read again.
func TestManyMounts(t *testing.T) {
	t.Parallel()
	c := &claim{UID: "a", Namespace: "default", Name: "a"}
	for i := range resourceapi.AllocationResultsMaxSize {
		p := &part{Name: fmt.Sprint("place-", i), request: "place", CPUs: fmt.Sprint(i), environment: strings.Repeat("E", 64),
			Resources: map[string]string{"cpu": "1", "memory": "1Gi", "hugepages-2Mi": "2Mi"}}
		for j := range maxMounts {
			p.mounts = append(p.mounts, HugePageMount{PageSize: "2Mi", Path: "/" + strings.Repeat("x", maxPath-8) + fmt.Sprint(i, j)})
		}
		c.Parts = append(c.Parts, p)
	}
	if err := c.mountable(); err == nil || !strings.Contains(err.Error(), "more than 16") {
		t.Error(err)
	}
	for _, p := range c.Parts[maxMountsOfClaim/maxMounts:] {
		p.mounts = nil
	}
	f, err := openFiles(t.TempDir() + "/cdi")
	if err == nil {
		err = c.mountable()
	}
	if err == nil {
		err = f.write(c)
	}
	if err == nil {
		_, err = f.read("a")
	}
	if err != nil {
		t.Error(err)
	}
	c.Parts[0].CPUs = strings.Repeat("0,", maxFile)
	if err := f.write(c); err == nil || !strings.Contains(err.Error(), "make several claims of it") {
		t.Error(err)
	}
	if err := f.dir.Close(); err != nil {
		t.Error(err)
	}
}

// TestOnePoolFollowsPods: what is published follows the pods.
func TestOnePoolFollowsPods(t *testing.T) {
	t.Parallel()
	p := newPool(t)
	ctx, cancel := context.WithCancel(t.Context())
	all, ended := make(published), make(chan struct{})
	go func() {
		defer close(ended)
		p.Follow(ctx, all)
	}()
	if first := amountsOf(<-all); first != "numa-0 7 55168Mi 128Mi, numa-1 7 55168Mi 128Mi" {
		t.Error(first)
	}
	p.admitted("web", "4", "8Gi")
	for got := range all {
		if amountsOf(got) == "numa-0 3 46976Mi 128Mi, numa-1 7 55168Mi 128Mi" {
			break
		}
	}
	if _, err := p.Client.Admission().RemovePod(ctx, &admissionv1.RemovePodRequest{PodUid: "web", Owner: "kubernetes"}); err != nil {
		t.Fatal(err)
	}
	for got := range all {
		if amountsOf(got) == "numa-0 7 55168Mi 128Mi, numa-1 7 55168Mi 128Mi" {
			break
		}
	}
	cancel()
	<-ended
}

// TestDevicesFollowTheMachine: CPUs go offline and come back, and a NUMA node is plugged in and out, while berthd runs.
// The devices are what is there, and a claim gets CPUs of a new one.
func TestDevicesFollowTheMachine(t *testing.T) {
	t.Parallel()
	become := func(p *place, shape string, options ...machinetest.Option) {
		t.Helper()
		text, err := machinetest.Build(shape, options...).Marshal()
		if err == nil {
			err = errors.Join(os.WriteFile(p.machine+".new", text, 0o600), os.Rename(p.machine+".new", p.machine))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	const two, three = "2s4c1t,mem=64Gi", "3s4c1t,mem=64Gi"
	p := newPoolOf(t, func(p *place) {
		p.machine, p.reserved, p.sold = filepath.Join(p.root, "machine.json"), `cpus: "0,4", system: {memory: 20Gi}`, "3"
		become(p, two)
	})
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	all, ended := make(published), make(chan struct{})
	go func() { defer close(ended); p.Follow(ctx, all) }()
	defer func() { cancel(); <-ended }()
	want := func(what, devices string) {
		t.Helper()
		for got := ""; got != devices; {
			select {
			case r := <-all:
				got = amountsOf(r)
			case <-ctx.Done():
				t.Fatalf("%s: %q is published, want %q", what, got, devices)
			}
		}
	}
	want("at first", "numa-0 3 54Gi 0, numa-1 3 54Gi 0")
	become(p, two, machinetest.Offline("5,6"))
	want("CPUs are offline", "numa-0 3 54Gi 0, numa-1 1 54Gi 0")
	become(p, two, machinetest.Offline("5-7"))
	want("all CPUs of a node are", "numa-0 3 54Gi 0")
	become(p, three)
	want("a node is plugged in", "numa-0 3 54Gi 0, numa-1 3 54Gi 0, numa-2 4 64Gi 0")
	c := allocated("a", 2, 3, "1Gi")
	p.counts(c)
	if r := p.prepared(c); r.Err != nil {
		t.Fatal(r.Err)
	}
	p.want("on the new node", "a: 8-10")
	p.unprepare("a")
	become(p, two)
	want("and out", "numa-0 3 54Gi 0, numa-1 3 54Gi 0")
}
