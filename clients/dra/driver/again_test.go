package driver

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"

	admissionv1 "github.com/berthd/berth/api/berth/admission/v1"
	allocationv1 "github.com/berthd/berth/api/berth/allocation/v1"
)

// A claim is prepared, and then allocated again on another NUMA node, while berthd has not got it any more. It gets CPUs of
// the new node, and as many as it requests.
func TestAllocatedAgainAfterALoss(t *testing.T) {
	t.Parallel()
	for name, lose := range map[string]func(p *place){
		"berthd has lost it": (*place).lose,
		"it was removed": func(p *place) {
			if _, err := p.Client.Admission().RemovePod(p.t.Context(),
				&admissionv1.RemovePodRequest{PodUid: "a", Owner: Owner}); err != nil {
				p.t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newPlace(t, "")
			if r := p.prepared(allocated("a", 0, 2, "1Gi")); r.Err != nil {
				t.Fatal(r.Err)
			}
			lose(p)
			r := p.prepared(allocated("a", 1, 4, "1Gi"))
			if got := p.held(); r.Err == nil && got != "a: 4-5,12-13" {
				t.Errorf("a claim on 4 CPUs of NUMA node 1 has %q", got)
			}
		})
	}
}

// A claim that is allocated again with other options of the CPU manager is released after some time, as one with other amounts, whether
// or not it has a CDI file.
func TestAllocatedAgainWithOtherOptions(t *testing.T) {
	t.Parallel()
	for name, file := range map[string]bool{"with its file": true, "without its file": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newPlace(t, "")
			if r := p.prepared(allocated("a", 0, 2, "1Gi")); r.Err != nil {
				t.Fatal(r.Err)
			}
			if !file {
				if err := p.files.remove("a"); err != nil {
					t.Fatal(err)
				}
				p.startDriver()
			}
			c := allocated("a", 0, 2, "1Gi")
			c.Status.Allocation.Devices.Config = []resourceapi.DeviceAllocationConfiguration{opaque(resourceapi.AllocationConfigSourceClass, optionsOf("full-pcpus-only"))}
			p.api.claims = map[string]*resourceapi.ResourceClaim{"default/claim-a": c}
			for _, passed := range []time.Duration{0, grace - 1} {
				if r := p.prepared(c); r.Err == nil || !strings.Contains(r.Err.Error(), "prepared with another allocation") {
					t.Fatalf("after %s: %v", passed, r.Err)
				}
				if err := p.forget(t.Context(), time.Unix(1, 0).Add(passed)); err != nil {
					t.Fatal(err)
				}
			}
			if err := p.forget(t.Context(), time.Unix(1, 0).Add(grace)); err != nil {
				t.Fatal(err)
			}
			if r := p.prepared(c); r.Err != nil {
				t.Error(r.Err)
			}
		})
	}
}

// A CDI file that does not fit its claim is not restored.
func TestFilesThatDoNotFit(t *testing.T) {
	t.Parallel()
	for name, one := range map[string]part{
		"CPUs of another NUMA node":    {Node: 1, CPUs: "1,9", Resources: map[string]string{"cpu": "2", "memory": "1Gi"}},
		"more CPUs than the claim has": {Node: 0, CPUs: "1-3,9-11", Resources: map[string]string{"cpu": "1", "memory": "1Gi"}},
		"fewer":                        {Node: 0, CPUs: "1", Resources: map[string]string{"cpu": "2", "memory": "1Gi"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newPlace(t, "")
			one.Name, one.environment = "place", "BERTH"
			if err := p.files.write(&claim{UID: "x", Namespace: "default", Name: "x", Parts: []*part{&one}}); err != nil {
				t.Fatal(err)
			}
			p.startDriver()
			_ = p.prepared(allocated("other", 1-int(one.Node), 1, "1Gi"))
			if p.Unrestored() != 1 {
				t.Errorf("%d claims are unrestored", p.Unrestored())
			}
		})
	}
}

// With one pool, a claim may get CPUs and memory that a pod has just left. The device stays healthy.
func TestHealthOfAGrownPool(t *testing.T) {
	t.Parallel()
	p := newPool(t)
	p.admitted("web", "4", "8Gi")
	if err := p.measure(t.Context(), true); err != nil {
		t.Fatal(err)
	}
	if _, err := p.Client.Admission().RemovePod(t.Context(), &admissionv1.RemovePodRequest{PodUid: "web",
		Owner: "kubernetes"}); err != nil {
		t.Fatal(err)
	}
	a := allocated("a", 0, 3, "1Gi")
	p.counts(a)
	if r := p.prepared(a); r.Err != nil {
		t.Fatal(r.Err)
	}
	report, _ := p.health.get(time.Unix(1, 0))
	if got := text(report); strings.Contains(got, "Unhealthy") {
		t.Errorf("health: %s", got)
	}
}

// A request with several devices has one mount, of the size of all their pages.
func TestMountOfSeveralDevices(t *testing.T) {
	t.Parallel()
	c := paged(with(allocated("a", 0, 1, "1Gi"), allocated("a", 1, 1, "1Gi")), "2Mi")
	c.Status.Allocation.Devices.Config = []resourceapi.DeviceAllocationConfiguration{opaque(resourceapi.AllocationConfigSourceClaim,
		mountsOf(`"2Mi"`, "/pages"))}
	got, err := read(c, node)
	if err != nil {
		t.Fatal(err)
	}
	var sizes []string
	for _, p := range got.Parts {
		for _, m := range p.hugePageMounts() {
			sizes = append(sizes, m.Options[len(m.Options)-1])
		}
	}
	if strings.Join(sizes, " ") != "size=4194304" {
		t.Errorf("mounts with %q", sizes)
	}
}

// Wrong parameters of this driver are refused, whichever request they are for.
func TestParametersOfOtherRequests(t *testing.T) {
	t.Parallel()
	c := allocated("a", 0, 1, "1Gi")
	o := opaque(resourceapi.AllocationConfigSourceClaim, `{"nonsense": true}`)
	o.Requests = []string{"gpu"}
	c.Status.Allocation.Devices.Config = []resourceapi.DeviceAllocationConfiguration{o}
	if got, err := read(c, node); err == nil {
		t.Errorf("got %+v", got)
	}
}

// TestReservedFor: the ledger has the pods that a claim is reserved for, as many as the API server allows, also when the ledger was lost
// and the driver was started again, and when the claim is prepared for other pods.
func TestReservedFor(t *testing.T) {
	t.Parallel()
	p := newPlace(t, "")
	c := allocated("a", 1, 2, "1Gi")
	c.Status.ReservedFor = append(c.Status.ReservedFor, resourceapi.ResourceClaimConsumerReference{APIGroup: "example.com",
		Resource: "jobs", Name: "j", UID: "j"})
	for i := len(c.Status.ReservedFor); i <= resourceapi.ResourceClaimReservedForMaxSize; i++ {
		c.Status.ReservedFor = append(c.Status.ReservedFor, resourceapi.ResourceClaimConsumerReference{
			Resource: "pods", Name: fmt.Sprintf("%s%03d", strings.Repeat("a", 250), i), UID: types.UID(uuid(i)),
		})
	}
	want := func(what string, pods int) {
		t.Helper()
		list, err := p.Client.Allocation().List(t.Context(), &allocationv1.ListRequest{Owner: Owner})
		if err != nil || len(list.GetPods()) != 1 {
			t.Fatalf("%s: %v, %v", what, list, err)
		}
		got := list.GetPods()[0].GetResourceClaimPods()
		if len(got) != pods || got[0].GetName() != "p" || got[0].GetUid() != "p" || pods > 1 &&
			got[pods-1].GetUid() != uuid(resourceapi.ResourceClaimReservedForMaxSize) {
			t.Errorf("%s: reserved for %d pods: %v", what, len(got), got)
		}
	}
	if r := p.prepared(c); r.Err != nil {
		t.Fatal(r.Err)
	}
	want("prepared", resourceapi.ResourceClaimReservedForMaxSize)
	p.want("prepared", "a: 4,12") // berth-nri reads the file, too
	p.startDriver()
	p.lose()
	if r := p.prepared(allocated("b", 0, 1, "1Gi")); r.Err != nil { // has the lost claim restored first
		t.Fatal(r.Err)
	}
	p.unprepare("b")
	want("restored", resourceapi.ResourceClaimReservedForMaxSize)
	c.Status.ReservedFor = c.Status.ReservedFor[:2]
	if r := p.prepared(c); r.Err != nil {
		t.Fatal(r.Err)
	}
	want("prepared for one pod", 1)
}

// uuid is a uid as the API server makes it.
func uuid(i int) string { return fmt.Sprintf("11111111-0000-4000-8000-%012d", i) }

// TestBerthdIsStartedAgain: calls of the kubelet that come while berthd is being started again succeed. If it is not there in time, they
// fail with the reason.
func TestBerthdIsStartedAgain(t *testing.T) {
	t.Parallel()
	p := newPlace(t, "")
	if r := p.prepared(allocated("a", 1, 2, "1Gi")); r.Err != nil {
		t.Fatal(r.Err)
	}
	p.stop()
	p.unsure, p.limit = true, time.Millisecond // unsure is set as Follow does
	if r := p.prepared(allocated("b", 0, 1, "1Gi")); r.Err == nil || !strings.Contains(r.Err.Error(), "berth.sock") {
		t.Errorf("berthd is away: %v", r.Err)
	}
	p.limit = time.Minute
	prepared, unprepared := make(chan error, 1), make(chan error, 1)
	go func() {
		all, err := p.PrepareResourceClaims(t.Context(), []*resourceapi.ResourceClaim{allocated("b", 0, 1, "1Gi")})
		prepared <- errors.Join(err, all["b"].Err)
	}()
	go func() {
		all, err := p.UnprepareResourceClaims(t.Context(), []kubeletplugin.NamespacedObject{{UID: "a"}})
		unprepared <- errors.Join(err, all["a"])
	}()
	p.startBerthd("")
	if err := errors.Join(<-prepared, <-unprepared); err != nil {
		t.Error(err)
	}
	p.want("berthd was started again", "b: 1")
}
