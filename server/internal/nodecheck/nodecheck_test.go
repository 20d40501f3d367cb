package nodecheck_test

import (
	"errors"
	"flag"
	"maps"
	"math"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/berthd/berth/api/config"
	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/ledger/kubelet"
	"github.com/berthd/berth/managers/machine"
	"github.com/berthd/berth/managers/machine/machinetest"
	"github.com/berthd/berth/managers/numa"
	"github.com/berthd/berth/managers/topology"
	"github.com/berthd/berth/managers/workload"
	"github.com/berthd/berth/server/internal/nodecheck"
)

var update = flag.Bool("update", false, "write the table of docs/check.md")

const (
	gib       = 1 << 30
	mib       = 1 << 20
	hugePages = "hugepages-2Mi"
	gpu       = "example.com/gpu"
)

// healthy is a node with nothing wrong: two NUMA nodes with 4 cores of 2 threads and 4 GiB, and a pod with an init container and two
// others.
func healthy(options ...machinetest.Option) *nodecheck.Input {
	c := config.Default()
	c.CPU.Policy, c.Memory.Policy, c.Topology.Policy = "static", "Static", topology.Restricted
	c.Topology.MaxNodes = topology.ReferenceMaxNodes
	c.Reserved.CPUs = cpus("0,8")
	c.Reserved.System = map[string]string{"memory": "512Mi"}
	c.Reserved.EvictionHard = map[string]string{}
	c.Memory.Reserved = []config.ReservedMemory{
		{NUMANode: 0, Limits: map[string]string{"memory": "256Mi"}}, {NUMANode: 1, Limits: map[string]string{"memory": "256Mi"}},
	}
	options = append([]machinetest.Option{
		machinetest.Memory(0, 4*gib), machinetest.Memory(1, 4*gib),
		machinetest.HugePages(0, 2048, 16), machinetest.HugePages(1, 2048, 16),
	}, options...)
	table := func(held uint64) map[string]kubelet.MemoryTable {
		const rest = 4*gib - 256*mib - 32*mib
		return map[string]kubelet.MemoryTable{
			"memory":  {Total: 4 * gib, SystemReserved: 256 * mib, Allocatable: rest, Reserved: held, Free: rest - held},
			hugePages: {Total: 32 * mib, Allocatable: 32 * mib, Free: 32 * mib},
		}
	}
	return &nodecheck.Input{
		Machine: machinetest.Build("1s2n4c2t", options...), Config: &c, Dir: "var/lib/kubelet",
		CPU: &kubelet.CPUState{
			Policy: "static", Shared: cpus("0-1,6-15"),
			Containers: map[string]map[string]cpuset.Set{
				"a": {"init": cpus("2-3"), "one": cpus("2-3"), "two": cpus("4-5")},
			},
		},
		Memory: &kubelet.MemoryState{
			Policy: "Static",
			Nodes: map[int]kubelet.MemoryNode{
				0: {Blocks: 1, Group: numa.Of(0), Tables: table(gib)}, 1: {Group: numa.Of(1), Tables: table(0)},
			},
			Containers: map[string]map[string][]kubelet.MemoryBlock{
				"a": {"one": {{Nodes: numa.Of(0), Resource: "memory", Bytes: gib}}},
			},
		},
		Devices: &kubelet.DeviceState{
			Entries:    []kubelet.DeviceEntry{{Pod: "a", Container: "one", Resource: gpu, IDs: map[int64][]string{0: {"g0"}}}},
			Registered: map[string][]string{gpu: {"g0", "g1"}},
		},
		Claims:    &kubelet.ClaimState{Claims: []kubelet.ClaimEntry{{UID: "c", Namespace: "default", Name: "nic", Pods: []string{"a"}}}},
		PodsKnown: true,
		Pods: []workload.Pod{{UID: "a", Namespace: "default", Name: "web", Containers: []workload.Container{
			{Name: "init", Role: workload.Init}, {Name: "one"}, {Name: "two"},
		}}},
	}
}

func cpus(list string) cpuset.Set {
	set, err := cpuset.Parse(list)
	if err != nil {
		panic(err)
	}
	return set
}

// set changes the CPUs of a container.
func set(in *nodecheck.Input, pod, container, list string) {
	if in.CPU.Containers[pod] == nil {
		in.CPU.Containers[pod] = map[string]cpuset.Set{}
	}
	in.CPU.Containers[pod][container] = cpus(list)
}

// memoryOf changes a table of a NUMA node.
func memoryOf(in *nodecheck.Input, node int, resource string, change func(*kubelet.MemoryTable)) {
	t := in.Memory.Nodes[node].Tables[resource]
	change(&t)
	in.Memory.Nodes[node].Tables[resource] = t
}

// web is the pod of the healthy node.
const web = "pod default/web"

// row is a node with something wrong, or only looking like it.
type row struct {
	name    string
	options []machinetest.Option
	change  func(*nodecheck.Input)
	// want are the findings, as check and object.
	want []string
}

// compare makes the checks of a row's node, and returns which have findings.
func (r row) compare(t *testing.T, in *nodecheck.Input) (isTrue map[string]bool) {
	t.Helper()
	if r.change != nil {
		r.change(in)
	}
	var got []string
	isTrue = map[string]bool{}
	result := nodecheck.Run(*in)
	for _, f := range result.Findings {
		got = append(got, f.ID+" "+f.Object)
		isTrue[f.ID] = true
		if f.Text == "" || len(f.Do) == 0 || strings.ContainsAny(strings.Join(f.Do, ""), "{}") {
			t.Errorf("%s: incomplete: %+v", r.name, f)
		}
	}
	if !slices.Equal(got, r.want) {
		t.Errorf("%s: got %q, want %q: %+v", r.name, got, r.want, result.Findings)
	}
	return isTrue
}

var rows = []row{
	{name: "healthy"},

	{"configuration refused", nil, func(in *nodecheck.Input) {
		var vs errdefs.Violations
		vs.Addf("topology.scope", "expected one of container, pod")
		in.Refused = vs.Err("configuration")
	}, []string{"configuration topologyManagerScope"}},
	{"configuration refused twice", nil, func(in *nodecheck.Input) {
		in.Config.Node.MaxPods = -1
		in.Refused = in.Config.Validate()
	}, []string{"configuration maxPods"}},
	{"configuration not read", nil, func(in *nodecheck.Input) {
		in.Config, in.Refused = nil, errors.New("no YAML")
	}, []string{"configuration configuration"}},
	{"damaged CPUs", nil, func(in *nodecheck.Input) {
		in.CPU, in.Damaged = nil, map[kubelet.Kind]error{kubelet.CPU: errors.New("checkpoint is corrupted")}
	}, []string{"state-damaged /var/lib/kubelet/cpu_manager_state"}},
	{"damaged devices", nil, func(in *nodecheck.Input) {
		in.Devices, in.Damaged = nil, map[kubelet.Kind]error{kubelet.Device: errors.New("checkpoint is corrupted")}
	}, []string{"devices-damaged /var/lib/kubelet/device-plugins/kubelet_internal_checkpoint"}},
	{"no files", nil, func(in *nodecheck.Input) { in.CPU, in.Memory, in.Devices = nil, nil, nil }, nil},

	{"unknown CPU option", nil, func(in *nodecheck.Input) {
		in.Config.CPU.Options = map[string]string{"full-cores": "true"}
	}, []string{`policy-options cpuManagerPolicyOptions["full-cores"]`}},
	{"unknown CPU option, and CPUs lost", nil, func(in *nodecheck.Input) {
		in.Config.CPU.Options = map[string]string{"full-cores": "true", "strict-cpu-reservation": "true"}
		in.CPU.Shared = cpus("1,6-7,9-14")
	}, []string{`policy-options cpuManagerPolicyOptions["full-cores"]`, "cpus-in-no-set CPUs 15"}},
	{"no reservation", nil, func(in *nodecheck.Input) { in.Config.Reserved.CPUs = cpuset.Set{} }, []string{"policy-options kubeReserved"}},
	{"unknown topology option", nil, func(in *nodecheck.Input) {
		in.Config.Topology.Options = map[string]string{"closest": "true"}
	}, []string{"policy-options topologyManagerPolicyOptions"}},
	{"known options", nil, func(in *nodecheck.Input) {
		in.Config.CPU.Options = map[string]string{"full-pcpus-only": "true"}
		in.Config.Topology.Options = map[string]string{"prefer-closest-numa-nodes": "false"}
	}, nil},

	{"CPU policy changed", nil, func(in *nodecheck.Input) {
		in.CPU = &kubelet.CPUState{Policy: "none"}
	}, []string{"policy-changed cpuManagerPolicy"}},
	{"memory policy changed", nil, func(in *nodecheck.Input) {
		in.Memory = &kubelet.MemoryState{Policy: "None"}
	}, []string{"policy-changed memoryManagerPolicy"}},

	{"CPUs offline", []machinetest.Option{machinetest.Offline("5,7")}, func(*nodecheck.Input) {}, []string{"cpus-gone CPUs 5,7"}},
	{"CPUs lost", nil, func(in *nodecheck.Input) {
		in.CPU.Shared = cpus("0-1,8-15")
	}, []string{"cpus-in-no-set CPUs 6-7"}},
	{"reserved CPUs are in no set with strict reservation", nil, func(in *nodecheck.Input) {
		in.CPU.Shared = cpus("1,6-7,9-15")
		in.Config.CPU.Options = map[string]string{"strict-cpu-reservation": "true"}
	}, nil},
	{"CPUs of a pod as a whole", nil, func(in *nodecheck.Input) {
		in.CPU.Shared = cpus("0-1,8-15")
		in.CPU.Pods = map[string]cpuset.Set{"a": cpus("2-7")}
		set(in, "a", "two", "2-7")
	}, nil},
	{"before the first start", nil, func(in *nodecheck.Input) { in.CPU = &kubelet.CPUState{Policy: "static"} }, nil},

	{"reserved CPUs offline", []machinetest.Option{machinetest.Offline("15")}, func(in *nodecheck.Input) {
		in.Config.Reserved.CPUs = cpus("0,8,15")
		in.CPU.Shared = cpus("0-1,6-14")
	}, []string{"reserved-offline reservedSystemCPUs"}},
	{"reserved CPUs that are not there, without a policy", nil, func(in *nodecheck.Input) {
		in.Config.CPU.Policy, in.Config.Reserved.CPUs, in.CPU = "none", cpus("99"), &kubelet.CPUState{Policy: "none"}
	}, nil},
	{"reservation changed", nil, func(in *nodecheck.Input) {
		in.Config.Reserved.CPUs = cpus("0,2")
	}, []string{"reservation-changed reservedSystemCPUs"}},
	{"strict reservation added", nil, func(in *nodecheck.Input) {
		in.Config.CPU.Options = map[string]string{"strict-cpu-reservation": "true"}
	}, []string{"reservation-changed reservedSystemCPUs"}},

	{"memory changed", []machinetest.Option{machinetest.Memory(1, 4*gib-4096)}, func(*nodecheck.Input) {}, []string{
		"memory-changed NUMA node 1"}},
	{"huge pages changed", []machinetest.Option{machinetest.HugePages(0, 2048, 17)}, func(*nodecheck.Input) {}, []string{
		"memory-changed NUMA node 0"}},
	{"another page size", []machinetest.Option{machinetest.HugePages(0, 1048576, 0), machinetest.HugePages(1, 1048576, 0)},
		func(*nodecheck.Input) {}, []string{"memory-miscounted memory_manager_state"}},
	{"a node more", nil, func(in *nodecheck.Input) { delete(in.Memory.Nodes, 1) }, []string{"memory-changed NUMA node 1"}},
	{"a node less", nil, func(in *nodecheck.Input) { in.Memory.Nodes[2] = in.Memory.Nodes[1] }, []string{"memory-changed NUMA node 2"}},
	{"memory changed, without a policy", []machinetest.Option{machinetest.Memory(1, gib)}, func(in *nodecheck.Input) {
		in.Config.Memory.Policy, in.Memory = "None", &kubelet.MemoryState{Policy: "None"}
	}, nil},
	{"reserved memory changed", nil, func(in *nodecheck.Input) {
		in.Config.Memory.Reserved[0].Limits["memory"], in.Config.Memory.Reserved[1].Limits["memory"] = "128Mi", "384Mi"
	}, []string{"reserved-memory-changed reservedMemory", "reserved-memory-changed reservedMemory"}},
	{"reserved memory does not add up", nil, func(in *nodecheck.Input) {
		in.Config.Reserved.EvictionHard = map[string]string{"memory.available": "100Mi"}
	}, []string{"reserved-memory-sum reservedMemory"}},
	{"reserved memory adds up", nil, func(in *nodecheck.Input) {
		in.Config.Reserved.System["memory"], in.Config.Reserved.EvictionHard = "412Mi", map[string]string{"memory.available": "100Mi"}
	}, nil},

	{"CPUs of two pods", nil, func(in *nodecheck.Input) {
		in.Pods = append(in.Pods, workload.Pod{UID: "b", Namespace: "default", Name: "db", Containers: []workload.Container{{Name: "c"}}})
		set(in, "b", "c", "4-5")
	}, []string{"cpus-twice " + web + ", container two"}},
	{"CPUs of two containers", nil, func(in *nodecheck.Input) { set(in, "a", "one", "2-4") }, []string{
		"cpus-twice " + web + ", container one"}},
	{"CPUs of a sidecar before an init container", nil, func(in *nodecheck.Input) {
		in.Pods[0].Containers = []workload.Container{
			{Name: "two", Role: workload.Sidecar}, {Name: "init", Role: workload.Init}, {Name: "one"},
		}
		set(in, "a", "init", "2-5")
	}, []string{"cpus-twice " + web + ", container init"}},
	{"CPUs of a sidecar after an init container", nil, func(in *nodecheck.Input) {
		in.Pods[0].Containers[1].Role = workload.Sidecar
	}, nil},
	{"containers of a pod that is not known", nil, func(in *nodecheck.Input) { in.Pods, in.PodsKnown = nil, false }, nil},
	{"exclusive CPUs shared", nil, func(in *nodecheck.Input) {
		in.CPU.Shared = cpus("0-1,5-15")
	}, []string{"cpus-shared " + web + ", container two"}},

	{"allocatable below zero", nil, func(in *nodecheck.Input) {
		memoryOf(in, 1, "memory", func(t *kubelet.MemoryTable) { t.Allocatable, t.Free = math.MaxUint64-4095, math.MaxUint64-4095 })
	}, []string{"memory-below-zero memory of NUMA node 1", "memory-miscounted memory_manager_state"}},
	{"free below zero", nil, func(in *nodecheck.Input) {
		memoryOf(in, 0, hugePages, func(t *kubelet.MemoryTable) { t.Free = math.MaxUint64 - 4095 })
	}, []string{"memory-below-zero hugepages-2Mi of NUMA node 0", "memory-miscounted memory_manager_state"}},
	{"memory counted twice", nil, func(in *nodecheck.Input) {
		memoryOf(in, 0, "memory", func(t *kubelet.MemoryTable) { t.Reserved, t.Free = t.Reserved+gib, t.Free-gib })
	}, []string{"memory-miscounted memory_manager_state"}},

	{"no pods", nil, func(in *nodecheck.Input) { in.Pods = nil }, []string{
		"cpus-left-behind pod a", "memory-left-behind pod a", "devices-left-behind pod a", "claims-left-behind pod a"}},
	{"one of two pods of a claim", nil, func(in *nodecheck.Input) {
		in.Claims.Claims[0].Pods = []string{"a", "b"}
	}, []string{"claims-left-behind pod b"}},
	{"no claims", nil, func(in *nodecheck.Input) { in.Claims = nil }, nil},
	{"damaged claims", nil, func(in *nodecheck.Input) {
		in.Claims, in.Damaged = nil, map[kubelet.Kind]error{kubelet.Claims: errors.New("damaged")}
	}, []string{"claims-damaged /var/lib/kubelet/dra_manager_state"}},
	{"damaged amounts", nil, func(in *nodecheck.Input) {
		in.Damaged = map[kubelet.Kind]error{kubelet.Actuated: errors.New("damaged")}
	}, []string{"amounts-damaged /var/lib/kubelet/actuated_pods_state"}},
	{"a static pod's mirror", nil, func(in *nodecheck.Input) {
		in.Pods[0].UID, in.Pods[0].Annotations = "mirror", map[string]string{workload.MirrorAnnotation: "a"}
	}, nil},

	{"plugin forgotten", nil, func(in *nodecheck.Input) { in.Devices.Registered = nil }, []string{"no-device-plugin " + gpu}},
	{"plugin away", nil, func(in *nodecheck.Input) { in.Devices.Registered[gpu] = nil }, []string{"no-device-plugin " + gpu}},
	{"device gone", nil, func(in *nodecheck.Input) {
		in.Devices.Registered[gpu] = []string{"g1"}
	}, []string{"devices-not-registered " + web + ", container one"}},
	{"device on another node", nil, func(in *nodecheck.Input) { at(in, 1, 0) }, []string{"devices-elsewhere " + web + ", container one"}},
	{"device where the plugin says", nil, func(in *nodecheck.Input) { at(in, 1, 1) }, nil},
	{"device whose plugin says nothing", nil, func(in *nodecheck.Input) { at(in, -1, 0) }, nil},
	{"device of which the kernel says nothing", nil, func(in *nodecheck.Input) { at(in, 1, 0); in.PCI = nil }, nil},
	{"no plugin and no devices", nil, func(in *nodecheck.Input) {
		in.Devices = &kubelet.DeviceState{Registered: map[string][]string{gpu: nil}}
	}, nil},

	{"scattered CPUs", nil, func(in *nodecheck.Input) {
		in.Scattered = &nodecheck.Scattered{Free: 12, Fits: 4, Possible: 8, Moves: []string{"default/web"}}
	}, []string{"scattered-cpus free CPUs"}},
	{"CPUs that are not scattered", nil, func(in *nodecheck.Input) { in.Scattered = &nodecheck.Scattered{Free: 12, Fits: 6} }, nil},

	{"topology policy alone", nil, func(in *nodecheck.Input) {
		alone(in)
		in.Devices = nil
	}, []string{"topology-without-hints topologyManagerPolicy"}},
	{"topology policy and devices", nil, alone, nil},
	{"topology policy and devices that cannot be read", nil, func(in *nodecheck.Input) {
		alone(in)
		in.Devices, in.Unread = nil, map[kubelet.Kind]error{kubelet.Device: errors.New("not permitted")}
	}, nil},
	{"half a core reserved", nil, func(in *nodecheck.Input) {
		in.Config.CPU.Options, in.Config.Reserved.CPUs = map[string]string{"full-pcpus-only": "true"}, cpus("0")
	}, []string{"half-core-reserved reservedSystemCPUs"}},
	{"half a core reserved, without the option", nil, func(in *nodecheck.Input) { in.Config.Reserved.CPUs = cpus("0") }, nil},
	{"a quota that is not known", nil, func(in *nodecheck.Input) {
		in.Config.Cgroups.QuotaWithExclusiveCPUs, in.Unseen = true, "there are no cgroups"
	}, []string{"quota-on-exclusive-cpus featureGates.DisableCPUQuotaWithExclusiveCPUs"}},
	{"no quota at all", nil, func(in *nodecheck.Input) {
		in.Config.Cgroups.QuotaWithExclusiveCPUs, in.Config.Cgroups.CPUCFSQuota = true, false
	}, nil},
	{"isolated CPUs", []machinetest.Option{isolate("12-13", "14-15")}, func(*nodecheck.Input) {}, []string{
		"isolated-cpus-shared isolcpus", "isolated-cpus-shared nohz_full"}},
	{"isolated CPUs without a policy", []machinetest.Option{isolate("12-13", "")}, func(in *nodecheck.Input) {
		in.Config.CPU.Policy, in.CPU = "none", &kubelet.CPUState{Policy: "none"}
	}, []string{"isolated-cpus-shared isolcpus"}},
	{"isolated exclusive CPUs", []machinetest.Option{isolate("2-3", "4-5")}, func(*nodecheck.Input) {}, nil},
	{"reservations apart", nil, func(in *nodecheck.Input) {
		in.Config.Memory.Reserved = []config.ReservedMemory{{NUMANode: 1, Limits: map[string]string{"memory": "512Mi"}}}
		for id, reserved := range map[int]uint64{0: 0, 1: 512 * mib} {
			memoryOf(in, id, "memory", func(t *kubelet.MemoryTable) {
				rest := 4*gib - 32*mib - reserved
				t.SystemReserved, t.Allocatable, t.Free = reserved, rest, rest-t.Reserved
			})
		}
	}, []string{"reservations-apart reservedMemory"}},
	{"huge pages on one node", []machinetest.Option{machinetest.HugePages(1, 2048, 0)}, func(in *nodecheck.Input) {
		in.Memory = nil
	}, []string{"huge-pages-uneven " + hugePages}},
	{"huge pages on one node, without a policy", []machinetest.Option{machinetest.HugePages(1, 2048, 0)}, func(in *nodecheck.Input) {
		in.Config.Memory.Policy, in.Memory = "None", nil
	}, nil},
	{"pods not enforced", nil, func(in *nodecheck.Input) {
		in.Config.Node.Enforce = []string{"none"}
	}, []string{"pods-not-enforced enforceNodeAllocatable"}},
}

// at gives a container a device with a PCI address: where the plugin and where the kernel has it.
func at(in *nodecheck.Input, plugin int64, kernel int) {
	const id = "0000:3b:02.1"
	in.Devices.Entries[0].IDs = map[int64][]string{plugin: {id}}
	in.Devices.Registered[gpu] = []string{id}
	in.PCI = map[string]int{id: kernel}
}

// alone turns the managers of CPUs and memory off.
func alone(in *nodecheck.Input) {
	in.Config.CPU.Policy, in.CPU = "none", &kubelet.CPUState{Policy: "none"}
	in.Config.Memory.Policy, in.Memory = "None", &kubelet.MemoryState{Policy: "None"}
}

func isolate(isolated, noHZ string) machinetest.Option {
	return func(s *machine.Snapshot) { s.Isolated, s.NoHZFull = cpus(isolated), cpus(noHZ) }
}

// TestChecks: each check finds what it is for, and nothing on a node that only looks like it.
func TestChecks(t *testing.T) {
	t.Parallel()
	isTrue := map[string]bool{"too-many-nodes": true} // TestManyNodes
	for _, r := range rows {
		maps.Copy(isTrue, r.compare(t, healthy(r.options...)))
	}
	for _, r := range kernelRows {
		in := healthy(r.options...)
		seen(in)
		maps.Copy(isTrue, r.compare(t, in))
	}
	for line := range strings.Lines(nodecheck.Page()) {
		if id, ok := strings.CutPrefix(line, "| `"); ok {
			if id, _, _ = strings.Cut(id, "`"); !isTrue[id] {
				t.Errorf("%s is true in no row", id)
			}
		}
	}
}

// TestManyNodes: eight NUMA nodes are the most, unless an option allows more.
func TestManyNodes(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		shape  string
		policy topology.Policy
		option string
		want   bool
	}{
		{"1s8n1c1t", topology.BestEffort, "", false},
		{"1s9n1c1t", topology.BestEffort, "", true},
		{"1s9n1c1t", topology.None, "", false},
		{"1s9n1c1t", topology.BestEffort, "9", false},
		{"1s10n1c1t", topology.BestEffort, "9", true},
	} {
		c := config.Default()
		c.CPU.Policy, c.Reserved.CPUs = "static", cpus("0")
		c.Topology.Policy, c.Topology.MaxNodes = row.policy, topology.ReferenceMaxNodes
		if row.option != "" {
			c.Topology.Options = map[string]string{topology.OptionMaxNodes: row.option}
		}
		var got []string
		for _, f := range nodecheck.Run(nodecheck.Input{Machine: machinetest.Build(row.shape), Config: &c}).Findings {
			got = append(got, f.ID)
		}
		if (len(got) == 1 && got[0] == "too-many-nodes") != row.want || len(got) > 1 {
			t.Errorf("%+v: %q", row, got)
		}
	}
}

// TestSkipped: a check without its needs is named, with the reason.
func TestSkipped(t *testing.T) {
	t.Parallel()
	in := healthy()
	in.PodsKnown = false
	got := nodecheck.Run(*in).Skipped
	if len(got) != 1 || !strings.Contains(got[0].Why, "--pods") ||
		!slices.Equal(got[0].IDs, []string{"cpus-left-behind", "memory-left-behind", "devices-left-behind", "claims-left-behind",
			"scattered-cpus"}) {
		t.Errorf("without pods: %+v", got)
	}
	in = healthy()
	in.Config, in.CPU, in.Memory, in.Devices = nil, nil, nil, nil
	if got := nodecheck.Run(*in); len(got.Findings) > 0 || len(got.Skipped) < 2 {
		t.Errorf("without anything: %+v", got)
	}
	in = healthy()
	if got := nodecheck.Run(*in).Skipped; got != nil {
		t.Errorf("with everything: %+v", got)
	}
}

// TestOrder: errors are first.
func TestOrder(t *testing.T) {
	t.Parallel()
	in := healthy()
	in.Pods, in.Config.Node.Enforce, in.CPU.Shared = nil, nil, cpus("0-1,5-15")
	findings := nodecheck.Run(*in).Findings
	errorsFirst := slices.IsSortedFunc(findings, func(a, b nodecheck.Finding) int {
		return slices.Index([]nodecheck.Severity{nodecheck.Error, nodecheck.Warning}, a.Severity) -
			slices.Index([]nodecheck.Severity{nodecheck.Error, nodecheck.Warning}, b.Severity)
	})
	if len(findings) < 4 || findings[0].Severity != nodecheck.Error || !errorsFirst {
		t.Errorf("%+v", findings)
	}
}

// TestPage: docs/check.md has the table of checks.
func TestPage(t *testing.T) {
	t.Parallel()
	const file = "../../../docs/check.md"
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	const begin = "| Check | Severity |"
	before, rest, ok := strings.Cut(string(text), begin)
	if !ok {
		t.Fatalf("docs/check.md has no table of checks")
	}
	_, after, _ := strings.Cut(rest, "\n\n")
	want := before + nodecheck.Page() + "\n" + after
	if *update {
		if err := os.WriteFile(file, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if string(text) != want {
		t.Error("docs/check.md has another table of checks: go test ./server/internal/nodecheck -run TestPage -update writes it")
	}
}
