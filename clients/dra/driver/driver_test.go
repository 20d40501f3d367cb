package driver

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	admissionv1 "github.com/berthd/berth/api/berth/admission/v1"
)

// TestPrepare: claims get CPUs of their NUMA nodes once, a refusal is explained and leaves nothing, and what is given back is
// free.
func TestPrepare(t *testing.T) {
	t.Parallel()
	p := newPlace(t, "")
	first := p.prepared(allocated("a", 1, 4, "2Gi"))
	if first.Err != nil || len(first.Devices) != 1 || first.Devices[0].Requests[0] != "place" || first.Devices[0].DeviceName != "numa-1" ||
		first.Devices[0].PoolName != node || first.Devices[0].CDIDeviceIDs[0] != "dra.berthd.github.io/claim=a:place" {
		t.Fatalf("%+v", first)
	}
	p.want("one claim", "a: 4-5,12-13")
	if again := p.prepared(allocated("a", 1, 4, "2Gi")); again.Err != nil {
		t.Error(again.Err)
	}
	p.want("the same again", "a: 4-5,12-13")
	refused := p.prepared(allocated("b", 1, 3, "1Gi"))
	if refused.Err == nil {
		t.Fatal("node 1 has 2 CPUs left")
	}
	for _, want := range []string{"claim default/claim-b", "cpu on NUMA node 1: 3 needed, 2 free",
		"it would fit with 2 CPUs instead of 3", "it would fit without claim default/claim-a"} {
		if !strings.Contains(refused.Err.Error(), want) {
			t.Errorf("%v lacks %q", refused.Err, want)
		}
	}
	p.want("a refused claim", "a: 4-5,12-13")
	if r := p.prepared(allocated("a", 0, 4, "2Gi")); r.Err == nil {
		t.Error("the claim is on another node")
	}
	p.unprepare("a")
	p.unprepare("a")
	p.want("all given back", "")
	if r := p.prepared(allocated("b", 1, 3, "1Gi")); r.Err != nil {
		t.Error(r.Err)
	}
	p.want("another one", "b: 4-5,12")
}

// TestSeveralDevices: a claim has each device on its own NUMA node, all of them or none, and each is a CDI device
// of its request.
func TestSeveralDevices(t *testing.T) {
	t.Parallel()
	p := newPlace(t, "")
	both := func() *resourceapi.ResourceClaim {
		return with(under("left", allocated("a", 0, 4, "2Gi")), under("right/large", allocated("a", 1, 3, "1Gi")))
	}
	got := p.prepared(both())
	if got.Err != nil || len(got.Devices) != 2 {
		t.Fatalf("%+v", got)
	}
	for i, want := range []string{"left numa-0 dra.berthd.github.io/claim=a:left",
		"right/large numa-1 dra.berthd.github.io/claim=a:right"} {
		if d := got.Devices[i]; strings.Join([]string{d.Requests[0], d.DeviceName, d.CDIDeviceIDs[0]}, " ") != want {
			t.Errorf("%+v, want %s", d, want)
		}
	}
	p.want("two requests", "a: 1-2,9-10 and 4-5,12")
	if r := p.prepared(with(allocated("b", 0, 2, "1Gi"), allocated("b", 1, 4, "1Gi"))); r.Err == nil ||
		!strings.Contains(r.Err.Error(), "cpu on NUMA node 1: 4 needed, 3 free") {
		t.Errorf("half of a claim: %v", r.Err)
	}
	p.want("one part does not fit", "a: 1-2,9-10 and 4-5,12")
	if r := p.prepared(with(allocated("b", 0, 1, "1Gi"), allocated("b", 1, 1, "1Gi"))); r.Err != nil ||
		r.Devices[1].CDIDeviceIDs[0] != "dra.berthd.github.io/claim=b:place-1" {
		t.Errorf("a request with count 2: %+v", r)
	}
	p.startDriver()
	if r := p.prepared(both()); r.Err != nil {
		t.Error(r.Err)
	}
	p.want("another driver", "a: 1-2,9-10 and 4-5,12; b: 3 and 13")
	p.lose()
	p.unsure = true // as Follow finds
	if r := p.prepared(allocated("c", 0, 1, "1Gi")); r.Err != nil {
		t.Error(r.Err)
	}
	p.want("the ledger was lost", "a: 1-2,9-10 and 4-5,12; b: 3 and 13; c: 11")
	p.unprepare("a")
	p.want("given back", "b: 3 and 13; c: 11")
}

// TestLostLedger: the claims are admitted again as soon as berthd answers, and not only with the next claim: meanwhile their
// CPUs would be shared.
func TestLostLedger(t *testing.T) {
	t.Parallel()
	p := newPlace(t, "")
	for uid, numa := range map[string]int{"a": 0, "b": 1} {
		if r := p.prepared(allocated(uid, numa, 2, "1Gi")); r.Err != nil {
			t.Fatal(r.Err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	out, done := make(published), make(chan struct{})
	go func() { defer close(done); p.Follow(ctx, out) }()
	defer func() { cancel(); <-done }()
	<-out
	p.lose()
	<-out
	p.want("the ledger was lost", "a: 1,9; b: 4,12")
}

// TestClaimThatCannotBeRestored: berthd has lost a claim and does not admit it again, because another program has admitted
// something with its CPUs. Nothing of its NUMA node is given or published until the reason has gone or the claim is given
// back, and the other NUMA node is as before.
func TestClaimThatCannotBeRestored(t *testing.T) {
	t.Parallel()
	p := newPlace(t, "")
	for uid, numa := range map[string]int{"a": 0, "b": 1} {
		if r := p.prepared(allocated(uid, numa, 2, "1Gi")); r.Err != nil {
			t.Fatal(r.Err)
		}
	}
	p.lose()
	thief := &claim{UID: "thief", Namespace: "default", Name: "thief",
		Parts: []*part{{Name: "place", CPUs: "2,9", Resources: map[string]string{"cpu": "2", "memory": "1Gi"}}}}
	steal := func() {
		t.Helper()
		if r, err := p.Client.Admission().Admit(t.Context(), thief.admission(Owner)); err != nil ||
			r.GetVerdict() != admissionv1.Verdict_VERDICT_ADMITTED {
			t.Fatal(r, err)
		}
	}
	steal()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	out, done := make(published), make(chan struct{})
	go func() { defer close(done); p.Follow(ctx, out) }()
	defer func() { cancel(); <-done }()
	devices := func(want string) {
		t.Helper()
		for got := ""; got != want; {
			select {
			case r := <-out:
				got = ""
				for _, slice := range r.Pools[node].Slices {
					for _, d := range slice.Devices {
						got += d.Name + " "
					}
				}
			case <-ctx.Done():
				t.Fatalf("%q is published, want %q", got, want)
			}
		}
	}
	devices("numa-1 ")
	report := func() string {
		r, _ := p.health.get(time.Unix(1, 0))
		return text(r)
	}
	if got := report(); !strings.HasPrefix(got,
		"numa-0 Unhealthy: claim default/claim-a has CPUs 1,9, but is not in berthd's ledger: ") ||
		!strings.HasSuffix(got, "; numa-1 Healthy") {
		t.Error(got)
	}
	if n := p.Unrestored(); n != 1 {
		t.Errorf("%d claims are unrestored", n)
	}
	r := p.prepared(allocated("c", 0, 1, "1Gi"))
	for _, want := range []string{"claim default/claim-a has CPUs 1,9", "end the pods that use it", "CPUs 9"} {
		if r.Err == nil || !strings.Contains(r.Err.Error(), want) {
			t.Errorf("%v lacks %q", r.Err, want)
		}
	}
	if r := p.prepared(with(allocated("c", 1, 1, "1Gi"), allocated("c", 0, 1, "1Gi"))); r.Err == nil {
		t.Error("one of two devices is of the NUMA node")
	}
	if r := p.prepared(allocated("a", 0, 2, "1Gi")); r.Err == nil {
		t.Error("the claim itself is prepared")
	}
	if r := p.prepared(allocated("c", 1, 1, "1Gi")); r.Err != nil {
		t.Errorf("the other NUMA node: %v", r.Err)
	}
	p.unprepare("thief")
	p.unprepare("c")
	if r := p.prepared(allocated("c", 0, 1, "1Gi")); r.Err != nil {
		t.Error(r.Err)
	}
	devices("numa-0 numa-1 ")
	p.want("the reason has gone", "a: 1,9; b: 4,12; c: 2")
	if got := report(); got != "numa-0 Healthy; numa-1 Healthy" {
		t.Error(got)
	}
	p.unprepare("c")
	if err := p.enter(t.Context()); err != nil { // nothing is restored meanwhile
		t.Fatal(err)
	}
	p.lose()
	steal()
	p.leave()
	devices("numa-1 ")
	p.unprepare("a")
	devices("numa-0 numa-1 ")
	if n := p.Unrestored(); n != 0 {
		t.Errorf("%d claims are unrestored", n)
	}
}

// TestCrashes: the driver and berthd are ended between any two steps, berthd loses its ledger, and CDI files are damaged.
func TestCrashes(t *testing.T) {
	t.Parallel()
	p := newPlace(t, "")
	for uid, numa := range map[string]int{"a": 0, "b": 1} {
		if r := p.prepared(allocated(uid, numa, 2, "1Gi")); r.Err != nil {
			t.Fatal(r.Err)
		}
	}
	all := "a: 1,9; b: 4,12"
	p.want("before", all)
	p.startDriver()
	if r := p.prepared(allocated("a", 0, 2, "1Gi")); r.Err != nil {
		t.Error(r.Err)
	}
	p.want("another driver", all)
	// Killed after berthd's answer, before the CDI file, and in the middle of it.
	if err := os.Rename(filepath.Join(p.root, "cdi", fileName("a")), filepath.Join(p.root, "cdi", fileName("a")+unfinished)); err != nil {
		t.Fatal(err)
	}
	p.startDriver()
	if r := p.prepared(allocated("a", 0, 2, "1Gi")); r.Err != nil {
		t.Error(r.Err)
	}
	p.want("the CDI file is written", all)
	// berthd has lost everything: what the files say is taken over before another claim gets a CPU.
	p.lose()
	p.unsure = true // as Follow finds
	if r := p.prepared(allocated("c", 0, 4, "1Gi")); r.Err != nil {
		t.Error(r.Err)
	}
	p.want("the ledger was lost", "a: 1,9; b: 4,12; c: 2-3,10-11")
	p.unprepare("c")
	// The same without the stream that says so: the answer is compared with the files.
	p.lose()
	if r := p.prepared(allocated("c", 0, 2, "1Gi")); r.Err != nil {
		t.Error(r.Err)
	}
	p.want("the ledger was lost unseen", "a: 1,9; b: 4,12; c: 2,10")
	// A file that cannot be read is written again.
	if err := os.WriteFile(filepath.Join(p.root, "cdi", fileName("b")), []byte("{"), 0o644); err != nil {
		t.Fatal(err)
	}
	p.startDriver()
	if r := p.prepared(allocated("b", 1, 2, "1Gi")); r.Err != nil {
		t.Error(r.Err)
	}
	p.want("a damaged file", "a: 1,9; b: 4,12; c: 2,10")
}

// TestRefusedClaims: what is not supported is refused before berthd is called, and the text says what to do.
func TestRefusedClaims(t *testing.T) {
	t.Parallel()
	p := newPlace(t, "")
	own := func(c *resourceapi.ResourceClaim) *resourceapi.DeviceRequestAllocationResult {
		return &c.Status.Allocation.Devices.Results[1]
	}
	configured := func(parameters string, more ...resourceapi.DeviceAllocationConfiguration) func(*resourceapi.ResourceClaim) {
		return func(c *resourceapi.ResourceClaim) {
			c.Status.Allocation.Devices.Config = append(more, opaque(resourceapi.AllocationConfigSourceClaim, parameters))
		}
	}
	for want, change := range map[string]func(c *resourceapi.ResourceClaim){
		"not allocated": func(c *resourceapi.ResourceClaim) { c.Status.Allocation = nil },
		"rename one of the requests": func(c *resourceapi.ResourceClaim) {
			with(c, c, c)
			own(c).Request = "place-1"
		},
		"or the variable BERTH_A_B_CPUS": func(c *resourceapi.ResourceClaim) {
			with(under("a-b", c), under("b", allocated("x", 1, 1, "1Gi")))
			short := opaque(resourceapi.AllocationConfigSourceClaim, parametersOf("BERTH_A"))
			short.Requests = []string{"b"}
			c.Status.Allocation.Devices.Config = []resourceapi.DeviceAllocationConfiguration{short}
		},
		"no device of":                       func(c *resourceapi.ResourceClaim) { own(c).Driver = "other" },
		"is of pool":                         func(c *resourceapi.ResourceClaim) { own(c).Pool = "other" },
		`device "numa-64"`:                   func(c *resourceapi.ResourceClaim) { own(c).Device = "numa-64" },
		`device "numa-01"`:                   func(c *resourceapi.ResourceClaim) { own(c).Device = "numa-01" },
		`device "0"`:                         func(c *resourceapi.ResourceClaim) { own(c).Device = "0" },
		"adminAccess":                        func(c *resourceapi.ResourceClaim) { own(c).AdminAccess = new(true) },
		"consumes \"gold\"":                  func(c *resourceapi.ResourceClaim) { own(c).ConsumedCapacity["gold"] = resource.MustParse("1") },
		"DRAConsumableCapacity":              func(c *resourceapi.ResourceClaim) { own(c).ConsumedCapacity = nil },
		"whole number":                       func(c *resourceapi.ResourceClaim) { own(c).ConsumedCapacity["cpu"] = resource.MustParse("1500m") },
		"expected dra.":                      configured(`{"apiVersion": "dra.berthd.github.io/v2", "kind": "BerthClaimParameters"}`),
		"unknown field":                      configured(`{"apiVersion": "dra.berthd.github.io/v1alpha1", "kind": "BerthClaimParameters", "spread": true}`),
		"duplicate field":                    configured(`{"apiVersion": "dra.berthd.github.io/v1alpha1", "kind": "BerthClaimParameters", "kind": "BerthClaimParameters"}`),
		`environment "a=b"`:                  configured(`{"apiVersion": "dra.berthd.github.io/v1alpha1", "kind": "BerthClaimParameters", "environment": "a=b"}`),
		"cpuOptions[0] \"align-by-socket\"":  configured(optionsOf("align-by-socket")),
		"cpuOptions[1] \"full-pcpus-only\"":  configured(optionsOf("full-pcpus-only", "full-pcpus-only")),
		"AlphaOptions":                       configured(optionsOf("distribute-cpus-across-cores")),
		"hugePageMounts[0]: pageSize \"2Q\"": configured(mountsOf(`"2Q"`, "/pages")),
		"path \"pages\"":                     configured(mountsOf(`"2Mi"`, "pages")),
		"path \"/proc/x\"":                   configured(mountsOf(`"2Mi"`, "/proc/x")),
		"path \"/a/../dev\"":                 configured(mountsOf(`"2Mi"`, "/a/../dev")),
		"request has no huge pages of 2Mi: request the capacity hugepages2Mi": configured(mountsOf(`"2Mi"`, "/pages")),
		"hugepages7Mi": func(c *resourceapi.ResourceClaim) {
			own(c).ConsumedCapacity["hugepages7Mi"] = resource.MustParse("1Mi")
		},
		"multiple of the page size": func(c *resourceapi.ResourceClaim) {
			own(c).ConsumedCapacity["hugepages2Mi"] = resource.MustParse("3Mi")
		},
		"huge pages, which need dra.from: allocatable": func(c *resourceapi.ResourceClaim) {
			own(c).ConsumedCapacity["hugepages2Mi"] = resource.MustParse("4Mi")
		},
		"unknown field \"xxx":    configured(`{"` + strings.Repeat("x", 9<<10) + `": 1}`),
		"there are two":          configured(parametersOf("X"), opaque(resourceapi.AllocationConfigSourceClaim, parametersOf("Y"))),
		"config[0].opaque":       configured(`[]`),
		"expected at most 10240": configured(strings.Repeat(" ", 11<<10)),
	} {
		c := allocated("x", 0, 1, "1Gi")
		change(c)
		if r := p.prepared(c); r.Err == nil || !strings.Contains(r.Err.Error(), want) {
			t.Errorf("%v, want %q", r.Err, want)
		} else if n := len(r.Err.Error()); n > 1024 {
			t.Errorf("%q has %d bytes, and an event at most 1024", want, n)
		}
	}
	p.want("nothing was prepared", "")
}

// optionsOf are parameters with options of the CPU manager.
func optionsOf(names ...string) string {
	return `{"apiVersion": "dra.berthd.github.io/v1alpha1", "kind": "BerthClaimParameters", "cpuOptions": ["` +
		strings.Join(names, `", "`) + `"]}`
}

// mountsOf are parameters with a mount of huge pages.
func mountsOf(size, path string) string {
	return `{"apiVersion": "dra.berthd.github.io/v1alpha1", "kind": "BerthClaimParameters", "hugePageMounts": [{"pageSize": ` + size +
		`, "path": "` + path + `"}]}`
}

// TestAlternatives: the scheduler has chosen one of several subrequests, whose parameters count. The claim's names are
// those of the request, whichever it is.
func TestAlternatives(t *testing.T) {
	t.Parallel()
	p := newPlace(t, "")
	cores := func(cpus int) *resourceapi.ResourceClaim {
		c := under("place/cores", allocated("a", 0, cpus, "1Gi"))
		whole, other := opaque(resourceapi.AllocationConfigSourceClaim, optionsOf("full-pcpus-only")),
			opaque(resourceapi.AllocationConfigSourceClaim, parametersOf("OTHER"))
		whole.Requests, other.Requests = []string{"place/cores"}, []string{"place/threads"}
		c.Status.Allocation.Devices.Config = []resourceapi.DeviceAllocationConfiguration{whole, other}
		return c
	}
	if r := p.prepared(cores(3)); r.Err == nil || !strings.Contains(r.Err.Error(), "SMTAlignmentError") {
		t.Errorf("half of a core: %v", r.Err)
	}
	r := p.prepared(cores(4))
	if r.Err != nil || r.Devices[0].Requests[0] != "place/cores" || r.Devices[0].CDIDeviceIDs[0] != "dra.berthd.github.io/claim=a:place" {
		t.Errorf("%+v", r)
	}
	p.want("two cores", "a: 1-2,9-10")
	p.startDriver()
	p.lose()
	if r := p.prepared(cores(4)); r.Err != nil {
		t.Error(r.Err)
	}
	p.want("the ledger was lost", "a: 1-2,9-10")
}

// TestHalvesOfCores: a claim on whole cores is refused while the free CPUs are halves of cores, and prepared when cores are free. With
// the option in berthd's configuration, no claim has half a core.
func TestHalvesOfCores(t *testing.T) {
	t.Parallel()
	p := newPlace(t, "")
	for _, uid := range []string{"a", "b", "c", "d"} {
		if r := p.prepared(allocated(uid, 0, 1, "1Gi")); r.Err != nil {
			t.Fatal(r.Err)
		}
	}
	p.want("four claims", "a: 1; b: 9; c: 2; d: 10")
	p.unprepare("a")
	p.unprepare("c")
	whole := allocated("w", 0, 4, "1Gi")
	whole.Status.Allocation.Devices.Config = []resourceapi.DeviceAllocationConfiguration{opaque(resourceapi.AllocationConfigSourceClaim,
		optionsOf("full-pcpus-only"))}
	if r := p.prepared(whole); r.Err == nil || !strings.Contains(r.Err.Error(), "cpu on NUMA node 0: 4 needed, 2 free") {
		t.Errorf("CPUs 1, 2, 3 and 11 are free: %v", r.Err)
	}
	p.unprepare("b")
	if r := p.prepared(whole); r.Err != nil {
		t.Error(r.Err)
	}
	p.want("a second core is free", "d: 10; w: 1,3,9,11")
	p = newPlace(t, `, options: {full-pcpus-only: "true"}`)
	if r := p.prepared(allocated("a", 0, 1, "1Gi")); r.Err == nil {
		t.Error("half a core is a claim's")
	}
}

// TestDirectoryOfOthers: CDI files are not written where other users could change them.
func TestDirectoryOfOthers(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "cdi")
	if err := os.Mkdir(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	if _, err := New(Config{CDIDirectory: dir, Log: slog.New(slog.DiscardHandler)}); err == nil ||
		!strings.Contains(err.Error(), "--cdi-directory") {
		t.Error(err)
	}
}
