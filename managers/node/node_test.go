package node

import (
	"context"
	"maps"
	"math"
	"strconv"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/berthd/berth/managers/cgroup"
	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/hint"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/ledger/ledgertest"
	"github.com/berthd/berth/managers/machine/machinetest"
	"github.com/berthd/berth/managers/workload"
)

const (
	mi = 1 << 20
	gi = 1 << 30
)

// whole reads the few quantities that the tests spell.
func whole(text string) (workload.Exact, error) {
	unit := int64(1)
	for suffix, size := range map[string]int64{"Mi": mi, "Gi": gi} {
		if digits, ok := strings.CutSuffix(text, suffix); ok {
			text, unit = digits, size
		}
	}
	n, err := strconv.ParseInt(text, 10, 64)
	return workload.Exact{Whole: n * unit}, err
}

func thresholds(t *testing.T, given map[string]string) Thresholds {
	t.Helper()
	out, err := ParseEviction(given, whole)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// example is a node of 16 CPUs and 64 GiB on which system and agents have 500m,
// 1Gi and 1000 processes each, and eviction is the kubelet's.
func example(t *testing.T) (Config, Facts) {
	t.Helper()
	reserved := workload.Quantities{workload.CPU: 500, workload.Memory: gi, PIDs: 1000}
	return Config{
			Features:       workload.Features{PodLevelResources: true},
			SystemReserved: reserved, KubeReserved: reserved,
			EvictionHard: thresholds(t, DefaultEviction()),
			Enforce:      Enforcement{EnforcePods}, MaxPods: 110,
		}, Facts{
			Machine: machinetest.Build("1s16c,huge=2Mi:512,huge=1Gi:2"), MaxPIDs: 511000, StorageBytes: 10 * gi,
		}
}

func build(t *testing.T, c Config, f Facts) *Manager {
	t.Helper()
	m, err := New(c, f)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func equal(t *testing.T, what string, got, want workload.Quantities) {
	t.Helper()
	if !maps.Equal(got, want) {
		t.Errorf("%s: got %v, want %v", what, got, want)
	}
}

func TestAmounts(t *testing.T) {
	t.Parallel()
	m := build(t, first(example(t)), second(example(t)))
	equal(t, "capacity", m.Capacity(), workload.Quantities{
		workload.CPU: 16000, workload.Memory: 64 * gi, "hugepages-2Mi": gi, "hugepages-1Gi": 2 * gi,
		workload.EphemeralStorage: 10 * gi, PIDs: 511000, Pods: 110,
	})
	storage := int64(1073741840) // 10% of 10Gi with 32 bits of precision
	equal(t, "reservation", m.Reservation(), workload.Quantities{
		workload.CPU: 1000, workload.Memory: 2*gi + 100*mi, workload.EphemeralStorage: storage,
	})
	equal(t, "absolute", m.Absolute(), workload.Quantities{
		workload.CPU: 15000, workload.Memory: 62 * gi, "hugepages-2Mi": gi, "hugepages-1Gi": 2 * gi,
		workload.EphemeralStorage: 10 * gi,
	})
	equal(t, "allocatable", m.Allocatable(), workload.Quantities{
		workload.CPU: 15000, workload.Memory: 62*gi - 100*mi - 3*gi, "hugepages-2Mi": gi, "hugepages-1Gi": 2 * gi,
		workload.EphemeralStorage: 10*gi - storage, Pods: 110,
	})
	equal(t, "eviction", m.Eviction(), workload.Quantities{workload.Memory: 100 * mi, workload.EphemeralStorage: storage})
}

// TestExcess: a scheduler that counts more than pods can have is found, one that counts less is not.
// TestCountedTwice: what claims can have must fit beside what a scheduler gives to pods.
func TestCountedTwice(t *testing.T) {
	t.Parallel()
	capacity := workload.Quantities{workload.CPU: 8000, workload.Memory: 8 * gi, "hugepages-1Gi": 2 * gi}
	for _, c := range []struct {
		name              string
		scheduler, claims workload.Quantities
		want              []string
	}{
		{name: "no claims", scheduler: capacity},
		{name: "an unknown scheduler", claims: capacity},
		{
			name:      "all reserved",
			scheduler: workload.Quantities{workload.CPU: 4000, workload.Memory: 6*gi + 4096, "hugepages-1Gi": gi},
			claims:    workload.Quantities{workload.CPU: 4000, workload.Memory: 2 * gi, "hugepages-1Gi": gi},
		},
		{
			name:      "nothing reserved",
			scheduler: capacity,
			claims:    workload.Quantities{workload.CPU: 2000, workload.Memory: gi, "hugepages-1Gi": gi},
			want:      []string{"cpu is counted twice: the scheduler counts 8 as allocatable, and claims on dynamic resources can have 2 (dra.cpus", "hugepages-1Gi is counted twice", "memory is counted twice"},
		},
		{
			name:      "a part of the CPUs is not reserved",
			scheduler: workload.Quantities{workload.CPU: 5500, workload.Memory: gi},
			claims:    workload.Quantities{workload.CPU: 3000, workload.Memory: gi},
			want:      []string{"together more than the 8 of the node: reserve in the kubelet (reservedSystemCPUs)"},
		},
	} {
		got := CountedTwice(capacity, c.scheduler, c.claims)
		if len(got) != len(c.want) {
			t.Errorf("%s: %q, want %d sentences", c.name, got, len(c.want))
			continue
		}
		for i, want := range c.want {
			if !strings.Contains(got[i], want) {
				t.Errorf("%s: %q lacks %q", c.name, got[i], want)
			}
		}
	}
}

func TestExcess(t *testing.T) {
	t.Parallel()
	m := build(t, first(example(t)), second(example(t)))
	if got := m.Excess(m.Allocatable()); got != nil {
		t.Errorf("the same amounts: %q", got)
	}
	less := workload.Quantities{workload.CPU: 1, workload.Memory: m.Allocatable()[workload.Memory] + memoryTolerance,
		"example.com/gpu": 8, Pods: 1000}
	if got := m.Excess(less); got != nil {
		t.Errorf("less, rounded memory, devices: %q", got)
	}
	got := m.Excess(workload.Quantities{workload.CPU: 16000, workload.Memory: 62 * gi, "hugepages-2Mi": 2 * gi, "hugepages-64Ki": mi})
	want := []string{
		"the scheduler counts 16 of cpu as allocatable, and pods can have 15: ",
		"the scheduler counts 2Gi of hugepages-2Mi as allocatable, and pods can have 1Gi: ",
		"the scheduler counts 1Mi of hugepages-64Ki as allocatable, and pods can have 0: ",
		"the scheduler counts 62Gi of memory as allocatable, and pods can have 60316Mi: ",
	}
	if len(got) != len(want) {
		t.Fatalf("got %q", got)
	}
	for i := range want {
		if !strings.HasPrefix(got[i], want[i]) {
			t.Errorf("got %q, want %q", got[i], want[i])
		}
	}
}

// TestAllocatableIsTheCallers: what it is worked out to once stays that.
func TestAllocatableIsTheCallers(t *testing.T) {
	t.Parallel()
	m := build(t, first(example(t)), second(example(t)))
	want := maps.Clone(m.Allocatable())
	clear(m.Allocatable())
	equal(t, "allocatable", m.Allocatable(), want)
}

func first(c Config, _ Facts) Config { return c }
func second(_ Config, f Facts) Facts { return f }

func TestReservedCPUs(t *testing.T) {
	t.Parallel()
	c, f := example(t)
	c.ReservedCPUs = cpuset.Of(0, 8, 9)
	c.SystemExcess, c.KubeExcess = workload.Quantities{workload.CPU: 600_000_000}, workload.Quantities{workload.CPU: 600_000_000}
	m := build(t, c, f)
	if got := m.Allocatable()[workload.CPU]; got != 13000 {
		t.Errorf("allocatable cpu: %d, want that of all other CPUs", got)
	}
	if got := m.Reservation()[workload.CPU]; got != 3000 {
		t.Errorf("reservation of cpu: %d, want the reserved CPUs in place of the amounts", got)
	}
	if got := c.KubeReserved[workload.CPU]; got != 500 || len(c.KubeExcess) != 1 {
		t.Errorf("the caller's amounts were changed: %d, %v", got, c.KubeExcess)
	}
	if _, ok := m.KubeReserved()[workload.CPU]; ok {
		t.Error("kubeReserved keeps cpu beside reserved CPUs")
	}
	less, err := f.Machine.Without(cpuset.Of(8, 10))
	if err != nil {
		t.Fatal(err)
	}
	f.Machine = less
	if got := build(t, c, f).Allocatable()[workload.CPU]; got != 12000 {
		t.Errorf("allocatable cpu: %d, want that of all other CPUs online", got)
	}
}

func TestPodCapacity(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ maxPods, perCore, want int64 }{
		{110, 0, 110}, {110, 4, 64}, {50, 4, 50}, {0, 4, 64}, {0, 0, 0}, {math.MaxInt64, math.MaxInt64, math.MaxInt64},
	} {
		c, f := example(t)
		c.MaxPods, c.PodsPerCore = tt.maxPods, tt.perCore
		if got := build(t, c, f).Capacity()[Pods]; got != tt.want {
			t.Errorf("maxPods %d, podsPerCore %d: %d pods, want %d", tt.maxPods, tt.perCore, got, tt.want)
		}
	}
}

func TestRefusedConfigurations(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name   string
		change func(*Config)
		want   string
	}{
		{"unknown key", func(c *Config) { c.Enforce = Enforcement{"podz"} },
			"expected any of pods, system-reserved, kube-reserved, system-reserved-compressible, kube-reserved-compressible, none"},
		{"twice", func(c *Config) { c.Enforce = Enforcement{"pods", "pods"} }, "twice"},
		{"none with others", func(c *Config) { c.Enforce = Enforcement{"none", "pods"} }, "cannot be combined with other keys"},
		{"both of a family", func(c *Config) {
			c.Enforce = Enforcement{EnforceSystem, EnforceSystemCompressible}
			c.SystemReservedCgroup = "/system"
		}, "cannot be combined"},
		{"no cgroup", func(c *Config) { c.Enforce = Enforcement{EnforceKubeCompressible} },
			`kubeReservedCgroup: is required by "kube-reserved"`},
		{"resource", func(c *Config) { c.SystemReserved = workload.Quantities{"hugepages-2Mi": 1} },
			`systemReserved["hugepages-2Mi"]: cannot reserve "hugepages-2Mi" resource`},
		{"negative", func(c *Config) { c.KubeReserved = workload.Quantities{workload.CPU: -1} }, "no negative amount"},
		{"alien CPUs", func(c *Config) { c.ReservedCPUs = cpuset.Of(3, 16) }, "16 are not CPUs of this machine"},
		{"reserved CPUs and cgroup", func(c *Config) { c.ReservedCPUs, c.KubeReservedCgroup = cpuset.Of(3), "/kube" },
			"cannot be used with"},
		{"too much", func(c *Config) {
			c.SystemReserved = workload.Quantities{workload.Memory: 60 * gi}
			c.KubeReserved = workload.Quantities{workload.Memory: 4 * gi}
		}, `Resource "memory" has a reservation of 65636Mi (systemReserved 60Gi + kubeReserved 4Gi + evictionHard 100Mi) but capacity of 64Gi`},
		{"too many processes", func(c *Config) { c.SystemReserved = workload.Quantities{PIDs: 511001} },
			`"pid" has a reservation of 512001`},
		{"pods", func(c *Config) { c.MaxPods = -1 }, "maxPods"},
		{"pods per core", func(c *Config) { c.PodsPerCore = -1 }, "podsPerCore"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			c, f := example(t)
			tt.change(&c)
			_, err := New(c, f)
			if err == nil || errdefs.ClassOf(err) != errdefs.Invalid || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got %v, want an error of class Invalid about %q", err, tt.want)
			}
		})
	}
	c, f := example(t)
	c.SystemReserved = workload.Quantities{workload.CPU: 15500}
	if _, err := New(c, f); err != nil {
		t.Errorf("a reservation of all that there is: %v", err)
	}
}

func TestThresholds(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		value    string
		capacity int64
		want     int64
	}{
		{"5%", 64 * gi, 3435973888}, {"10%", 64 * gi, 6871947776}, {"5%", 10 * gi, 536870920},
		{"5%%", 64 * gi, 3435973888}, {"100Mi", 64 * gi, 100 * mi}, {"0%", 64 * gi, 0}, {"100%", 64 * gi, 0},
	} {
		got := thresholds(t, map[string]string{"memory.available": tt.value})[workload.Memory].of(tt.capacity).Whole
		if got != tt.want {
			t.Errorf("%s of %d: %d, want %d", tt.value, tt.capacity, got, tt.want)
		}
	}
	for signal, value := range map[string]string{
		"memory.available": "0", "nodefs.available": "-1Gi", "imagefs.available": "101%", "pid.available": "-1%",
		"nodefs.inodesFree": "many", "memory.free": "1Gi", "containerfs.available": "NaN%",
	} {
		_, err := ParseEviction(map[string]string{signal: value}, whole)
		if errdefs.ClassOf(err) != errdefs.Invalid || !strings.Contains(err.Error(), signal) {
			t.Errorf("%s=%s: got %v, want an error of class Invalid that names the signal", signal, value, err)
		}
	}
	if got := thresholds(t, map[string]string{"pid.available": "10%", "imagefs.available": "1Gi"}); len(got) != 0 {
		t.Errorf("signals of no resource of pods: %v", got)
	}
}

func files(n cgroup.Node, f cgroup.Facts) map[string]string {
	out := map[string]string{}
	for _, file := range n.Values.Files(f) {
		out[file.Name] = file.Text
	}
	return out
}

func TestPodsNode(t *testing.T) {
	t.Parallel()
	l, err := cgroup.NewLayout("/", cgroup.Cgroupfs)
	if err != nil {
		t.Fatal(err)
	}
	v1 := cgroup.Facts{Version: cgroup.V1, PageBytes: 4096, HugePageSizes: []int64{2 << 20, 1 << 30}}
	v2 := v1
	v2.Version = cgroup.V2
	c, f := example(t)
	tests := []struct {
		name   string
		change func(*Config, *Facts)
		facts  cgroup.Facts
		want   map[string]string
	}{
		{"v1", func(*Config, *Facts) {}, v1, map[string]string{
			"cpu.shares": "15360", "memory.limit_in_bytes": "66571993088", "pids.max": "509000"}},
		{"v2", func(c *Config, _ *Facts) { c.AllCPUs = true }, v2, map[string]string{
			"cpu.weight": "586", "memory.max": "66571993088", "pids.max": "509000", "cpuset.cpus": "0-15"}},
		{"not enforced", func(c *Config, _ *Facts) { c.Enforce = Enforcement{EnforceNone} }, v2, map[string]string{
			"cpu.weight": "625", "memory.max": "68719476736", "pids.max": "511000"}},
		{"processes not known", func(_ *Config, f *Facts) { f.MaxPIDs = 0 }, v2, map[string]string{
			"cpu.weight": "586", "memory.max": "66571993088"}},
	}
	for _, tt := range tests {
		c, f := c, f
		tt.change(&c, &f)
		n := build(t, c, f).PodsNode(l)
		if got := files(n, tt.facts); !maps.Equal(got, tt.want) || n.Name.String() != "/kubepods" {
			t.Errorf("%s: %s has %v, want %v", tt.name, n.Name, got, tt.want)
		}
	}
}

func TestReservedNodes(t *testing.T) {
	t.Parallel()
	c, f := example(t)
	c.SystemReservedCgroup, c.KubeReservedCgroup = "/sysres", "/kube.slice"
	c.Enforce = Enforcement{EnforcePods, EnforceKubeCompressible, EnforceSystem}
	c.MemoryQoS = true
	nodes, err := build(t, c, f).ReservedNodes(cgroup.Cgroupfs)
	if err != nil || len(nodes) != 2 {
		t.Fatalf("%v, %v", nodes, err)
	}
	v2 := cgroup.Facts{Version: cgroup.V2, PageBytes: 4096, HugePageSizes: []int64{2 << 20}}
	want := []map[string]string{
		{"cpu.weight": "20", "memory.max": "1073741824", "memory.min": "1073741824", "pids.max": "1000"},
		{"cpu.weight": "20"},
	}
	for i, name := range []string{"/sysres", "/kube.slice"} {
		if got := files(nodes[i], v2); !maps.Equal(got, want[i]) || nodes[i].Name.String() != name {
			t.Errorf("%s has %v, want %s with %v", nodes[i].Name, got, name, want[i])
		}
	}
	if _, err := build(t, c, f).ReservedNodes(cgroup.Systemd); errdefs.ClassOf(err) != errdefs.Invalid {
		t.Errorf("a name that is no slice under systemd: %v", err)
	}
	c.SystemReservedCgroup = "/system.slice"
	nodes, err = build(t, c, f).ReservedNodes(cgroup.Systemd)
	if err != nil || !nodes[0].Name.Equal(cgroup.Name{"system"}) {
		t.Errorf("%v, %v", nodes, err)
	}
	c.SystemReservedCgroup = "/a//b"
	if _, err := build(t, c, f).ReservedNodes(cgroup.Cgroupfs); errdefs.ClassOf(err) != errdefs.Invalid {
		t.Errorf("a doubled slash: %v", err)
	}
}

// pod requests amounts in one container.
func pod(uid string, requests workload.Quantities) *ledger.Pod {
	p := ledgertest.Pod(uid, "c")
	p.Pod.Containers[0].Requests = requests
	return p
}

func TestFit(t *testing.T) {
	t.Parallel()
	c, f := example(t)
	c.MaxPods = 3
	m := build(t, c, f)
	d := ledger.NewDraft(ledgertest.New(t, ledger.Rules{Machine: f.Machine}).View())
	d.PutPod(pod("a", workload.Quantities{workload.CPU: 10000, workload.Memory: 50 * gi}))
	two := d.View()
	d.PutPod(pod("b", workload.Quantities{"hugepages-2Mi": gi / 2}))
	view := d.View()
	tests := []struct {
		name     string
		requests workload.Quantities
		reason   errdefs.Reason
		message  string
	}{
		{"nothing", nil, "", ""},
		{"all that is left", workload.Quantities{workload.CPU: 5000, workload.Memory: 9*gi - 100*mi, "hugepages-2Mi": gi / 2}, "", ""},
		{"cpu first", workload.Quantities{workload.CPU: 5001, workload.Memory: 64 * gi}, errdefs.OutOfCPU,
			"Node didn't have enough resource: cpu, requested: 5001, used: 10000, capacity: 15000"},
		{"memory", workload.Quantities{workload.Memory: 9*gi - 100*mi + 1}, errdefs.OutOfMemory,
			"Node didn't have enough resource: memory, requested: 9558818817, used: 53687091200, capacity: 63245910016"},
		{"storage", workload.Quantities{workload.EphemeralStorage: 10 * gi}, "OutOfephemeral-storage",
			"Node didn't have enough resource: ephemeral-storage, requested: 10737418240, used: 0, capacity: 9663676400"},
		{"huge pages", workload.Quantities{"hugepages-2Mi": gi/2 + 2*mi}, "OutOfhugepages-2Mi",
			"Node didn't have enough resource: hugepages-2Mi, requested: 538968064, used: 536870912, capacity: 1073741824"},
		{"a page size that the kernel lacks", workload.Quantities{"hugepages-64Ki": 64 << 10}, "OutOfhugepages-64Ki",
			"Node didn't have enough resource: hugepages-64Ki, requested: 65536, used: 0, capacity: 0"},
		{"devices", workload.Quantities{"example.com/gpu": 9}, "", ""},
	}
	for _, tt := range tests {
		err := m.Fit(view, &pod("c", tt.requests).Pod)
		reason, _ := errdefs.ReasonOf(err)
		if reason != tt.reason || err != nil && err.Error() != tt.message {
			t.Errorf("%s: got %q, %v, want %q, %s", tt.name, reason, err, tt.reason, tt.message)
		}
	}
	d.PutPod(pod("c", workload.Quantities{workload.CPU: 5000}))
	if err := m.Fit(d.View(), &pod("c", workload.Quantities{workload.CPU: 5000}).Pod); err != nil {
		t.Errorf("a pod that is in the view: %v", err)
	}
	err := m.Fit(d.View(), &pod("d", nil).Pod)
	if reason, _ := errdefs.ReasonOf(err); reason != errdefs.OutOfPods ||
		err.Error() != "Node didn't have enough resource: pods, requested: 1, used: 3, capacity: 3" {
		t.Errorf("a fourth pod: %v", err)
	}
	if err := m.Fit(two, &pod("d", nil).Pod); err != nil {
		t.Errorf("a second pod: %v", err)
	}
}

// What pods are let in for never exceeds what their cgroup may use, and nothing
// is negative, whatever is reserved.
func TestMeaningsNest(t *testing.T) {
	t.Parallel()
	_, f := example(t)
	rapid.Check(t, func(t *rapid.T) {
		amounts := func(label string) workload.Quantities {
			return workload.Quantities{
				workload.CPU:    rapid.Int64Range(0, 9000).Draw(t, label+" cpu"),
				workload.Memory: rapid.Int64Range(0, 40*gi).Draw(t, label+" memory"),
				PIDs:            rapid.Int64Range(0, 300000).Draw(t, label+" pid"),
			}
		}
		m, err := New(Config{
			SystemReserved: amounts("system"), KubeReserved: amounts("kube"),
			EvictionHard: Thresholds{workload.Memory: {Part: rapid.Float32Range(0, 1).Draw(t, "eviction")}},
			Enforce:      Enforcement{EnforcePods},
		}, f)
		if err != nil {
			if errdefs.ClassOf(err) != errdefs.Invalid {
				t.Fatal(err)
			}
			return
		}
		allocatable, absolute, limit, have := m.Allocatable(), m.Absolute(), m.Limit(), m.Capacity()
		for r := range have {
			if allocatable[r] < 0 || allocatable[r] > absolute[r] || absolute[r] > have[r] {
				t.Errorf("%s: allocatable %d, absolute %d, capacity %d", r, allocatable[r], absolute[r], have[r])
			}
			if limit[r] < 0 || r != PIDs && limit[r] != absolute[r] {
				t.Errorf("%s: limit %d, absolute %d", r, limit[r], absolute[r])
			}
		}
	})
}

func TestGuard(t *testing.T) {
	t.Parallel()
	c, f := example(t)
	guard := Guard{build(t, c, f)}
	bus, err := hint.NewBus(nil, []hint.Entry{{Provider: guard, Mode: hint.Required}}, context.WithTimeout)
	if err != nil {
		t.Fatal(err)
	}
	view := ledgertest.New(t, ledger.Rules{Machine: f.Machine}).View()
	var trace ledger.Trace
	big := pod("a", workload.Quantities{workload.CPU: 15001})
	req := hint.Request{Pod: &big.Pod, Container: -1}
	replies, err := bus.Hints(t.Context(), view, req, &trace)
	if err != nil || len(replies) != 0 {
		t.Errorf("hints: %v, %v", replies, err)
	}
	err = bus.Validate(t.Context(), view, req, &trace)
	reason, message := errdefs.Verdict(err)
	if reason != errdefs.OutOfCPU || !strings.HasPrefix(message, "Node didn't have enough resource: cpu") {
		t.Errorf("a pod that is too large: %s, %s", reason, message)
	}
}

func TestFitResize(t *testing.T) {
	t.Parallel()
	c, f := example(t)
	m := build(t, c, f)
	d := ledger.NewDraft(ledgertest.New(t, ledger.Rules{Machine: f.Machine}).View())
	d.PutPod(pod("a", workload.Quantities{workload.CPU: 10000, workload.Memory: gi}))
	d.PutPod(pod("b", workload.Quantities{workload.CPU: 4000, workload.Memory: gi}))
	old := &pod("b", workload.Quantities{workload.CPU: 4000, workload.Memory: gi}).Pod
	tests := []struct {
		name     string
		requests workload.Quantities
		reason   errdefs.Reason
		message  string
	}{
		{"what is left", workload.Quantities{workload.CPU: 5000, workload.Memory: gi}, "", ""},
		{"more than is left", workload.Quantities{workload.CPU: 5001, workload.Memory: gi}, errdefs.ResizeDeferred,
			"Node didn't have enough resource: cpu, requested: 5001, used: 10000, capacity: 15000"},
		{"more than there is", workload.Quantities{workload.CPU: 15001, workload.Memory: gi}, errdefs.Infeasible,
			"Node didn't have enough capacity: cpu, requested: 15001, capacity: 15000"},
		{"less", workload.Quantities{workload.CPU: 1000, workload.Memory: mi}, "", ""},
	}
	for _, tt := range tests {
		_, err := Guard{m}.Resize(t.Context(), d.View(), old, &pod("b", tt.requests).Pod, hint.Widening{})
		reason, _ := errdefs.ReasonOf(err)
		if reason != tt.reason || err != nil && err.Error() != tt.message {
			t.Errorf("%s: got %q, %v, want %q, %s", tt.name, reason, err, tt.reason, tt.message)
		}
	}
	// A node that is over-committed already does not keep a pod from shrinking.
	d.PutPod(pod("c", workload.Quantities{workload.CPU: 9000}))
	if err := m.fitResize(d.View(), old, &pod("b", workload.Quantities{workload.CPU: 3000, workload.Memory: gi}).Pod); err != nil {
		t.Errorf("shrinking: %v", err)
	}
}

// TestSystemCgroupsLimit: whatever is reserved, as in section 14.2 of the specification.
func TestSystemCgroupsLimit(t *testing.T) {
	t.Parallel()
	m, err := New(Config{
		SystemReserved: workload.Quantities{workload.CPU: 500}, SystemReservedCgroup: "/system", Enforce: Enforcement{EnforceSystem},
	}, Facts{Machine: machinetest.Build("4c")})
	if err != nil {
		t.Fatal(err)
	}
	if got := m.SystemCgroupsLimit(); len(got) != 1 || got[workload.CPU] != 0 {
		t.Errorf("%v", got)
	}
}

// TestExcessOfPool: of one pool, a scheduler may count as much as pods and claims together can have.
func TestExcessOfPool(t *testing.T) {
	t.Parallel()
	allocatable := workload.Quantities{workload.CPU: 15000, workload.Memory: 8 * gi, "hugepages-2Mi": gi}
	for _, c := range []struct {
		scheduler workload.Quantities
		want      string
	}{
		{scheduler: allocatable},
		{scheduler: workload.Quantities{workload.CPU: 1000, workload.Memory: 8*gi + mi, "example.com/gpu": 4}},
		{workload.Quantities{workload.CPU: 15001},
			"counts 15001m of cpu as allocatable, and pods and claims together can have 15: give berthd"},
		{workload.Quantities{workload.Memory: 9 * gi}, "9Gi of memory"},
		{workload.Quantities{"hugepages-2Mi": 2 * gi}, "2Gi of hugepages-2Mi"},
	} {
		got := ExcessOfPool(allocatable, c.scheduler)
		if len(got) > 1 || (len(got) == 1) != (c.want != "") || len(got) == 1 && !strings.Contains(got[0], c.want) {
			t.Errorf("%v: %q, want %q", c.scheduler, got, c.want)
		}
	}
}

// TestPagesOutsideOfPods: huge pages that no pod uses and that are not free are not given to any pod. Those that pods use count
// with the pods.
func TestPagesOutsideOfPods(t *testing.T) {
	t.Parallel()
	cfg, facts := example(t)
	m := build(t, cfg, facts)
	l := ledgertest.New(t, ledger.Rules{Machine: facts.Machine})
	pod := func(mib int64) *workload.Pod {
		r := workload.Quantities{workload.CPU: 100, workload.Memory: mi, "hugepages-2Mi": mib * mi}
		return &workload.Pod{UID: "p", Containers: []workload.Container{{Name: "c", Requests: r, Limits: r}}}
	}
	taken := []ledger.TakenPages{
		{Node: 0, Resource: "hugepages-2Mi", Bytes: 24 * mi, Outside: 16 * mi},
		{Node: 0, Resource: "hugepages-1Gi", Bytes: gi, Outside: gi},
	}
	if err := l.SetTakenPages(t.Context(), taken); err != nil {
		t.Fatal(err)
	}
	if err := m.Fit(l.View(), pod(1024-16)); err != nil {
		t.Error(err)
	}
	if err := m.Fit(l.View(), pod(1024-14)); err == nil || !strings.Contains(err.Error(), "resource: hugepages-2Mi") {
		t.Errorf("a page that no pod can have: %v", err)
	}
	if err := m.fitResize(l.View(), pod(4), pod(1024-14)); err == nil {
		t.Error("a resize to a page that no pod can have")
	}
}
