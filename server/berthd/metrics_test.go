package main

import (
	"bufio"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	admissionv1 "github.com/berthd/berth/api/berth/admission/v1"
	cpuv1 "github.com/berthd/berth/api/berth/cpu/v1"
	inspectv1 "github.com/berthd/berth/api/berth/inspect/v1"
	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/hack/testing/script"
	"github.com/berthd/berth/managers/cpuset"
)

// simulated makes a node on a machine of its own, without cgroups. config is
// the content of berth.yaml below its head.
func simulated(t *testing.T, shape, config string, args ...string) *node {
	t.Helper()
	n := newNode(t, append([]string{"--machine", shape, "--cgroup-tree", "memory", "--http", "127.0.0.1:0"}, args...)...)
	n.kernel = false
	text := "apiVersion: config.berthd.github.io/v1alpha1\nkind: BerthConfiguration\n" + config
	if err := os.WriteFile(n.root+"/berth.yaml", []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	n.args = append(n.args, "--config", n.root+"/berth.yaml")
	return n
}

var httpAddress = regexp.MustCompile(`over HTTP" address=(\S+)`)

// metrics are the values of one scrape by name and labels as they stand there.
type metrics map[string]float64

// http is the address of /metrics.
func (d *daemon) http() string {
	d.t.Helper()
	var address []string
	d.eventually("berthd says where /metrics is", func() bool {
		address = httpAddress.FindStringSubmatch(d.log.String())
		return address != nil
	})
	return address[1]
}

// scrape reads /metrics.
func (d *daemon) scrape() metrics {
	d.t.Helper()
	resp, err := http.Get("http://" + d.http() + "/metrics")
	if err != nil {
		d.t.Fatal(err)
	}
	defer resp.Body.Close()
	out := metrics{}
	for lines := bufio.NewScanner(resp.Body); lines.Scan(); {
		line := lines.Text()
		if strings.HasPrefix(line, "#") {
			continue
		}
		at := strings.LastIndexByte(line, ' ')
		value, err := strconv.ParseFloat(line[at+1:], 64)
		if err != nil {
			d.t.Fatalf("%s: %v", line, err)
		}
		out[line[:at]] = value
	}
	return out
}

// expect compares the metrics that are named in want, and finds those of the
// same families that are not.
func (m metrics) expect(t *testing.T, when string, want metrics) {
	t.Helper()
	families := map[string]bool{}
	for name, value := range want {
		family, _, _ := strings.Cut(name, "{")
		families[family] = true
		if got, ok := m[name]; !ok || got != value {
			t.Errorf("%s: %s is %v (there: %t), want %v", when, name, got, ok, value)
		}
	}
	for name, value := range m {
		if family, _, _ := strings.Cut(name, "{"); families[family] {
			if _, ok := want[name]; !ok {
				t.Errorf("%s: %s %v is too much", when, name, value)
			}
		}
	}
}

const (
	alignedDone   = "kubelet_container_aligned_compute_resources_count"
	alignedFailed = "kubelet_container_aligned_compute_resources_failure_count"
)

// counting is a client that computes the counters' values after each of its
// calls.
type counting struct {
	*daemon
	want metrics
	pods map[string]*typesv1.Pod
}

func newCounting(d *daemon) *counting {
	return &counting{daemon: d, pods: map[string]*typesv1.Pod{}, want: metrics{
		"kubelet_cpu_manager_pinning_requests_total":                  0,
		"kubelet_cpu_manager_pinning_errors_total":                    0,
		"kubelet_topology_manager_admission_requests_total":           0,
		"kubelet_topology_manager_admission_errors_total":             0,
		"kubelet_topology_manager_admission_duration_ms_count":        0,
		alignedDone + `{boundary="physical_cpu",scope="container"}`:   0,
		alignedDone + `{boundary="uncore_cache",scope="container"}`:   0,
		alignedDone + `{boundary="numa_node",scope="container"}`:      0,
		alignedFailed + `{boundary="physical_cpu",scope="container"}`: 0,
		alignedFailed + `{boundary="numa_node",scope="container"}`:    0,
		"resource_manager_allocations_total":                          0,
		"resource_manager_container_assignments_total":                0,
	}}
}

// admit admits a pod and counts what the answer means. Every container of it requests
// whole CPUs.
func (c *counting) admit(p *typesv1.Pod) {
	c.t.Helper()
	uid := p.GetMetadata().GetUid()
	resp := c.daemon.admit(p)
	containers := len(p.GetSpec().GetInitContainers()) + len(p.GetSpec().GetContainers())
	c.want["kubelet_topology_manager_admission_requests_total"]++
	c.want["kubelet_topology_manager_admission_duration_ms_count"]++
	if resp.GetVerdict() == admissionv1.Verdict_VERDICT_ADMITTED {
		c.want["kubelet_cpu_manager_pinning_requests_total"] += float64(containers)
		if c.pods[uid] != nil {
			return // an answer that was given before
		}
		c.pods[uid] = p
		c.want[alignedDone+`{boundary="physical_cpu",scope="container"}`] += float64(containers)
		c.want[alignedDone+`{boundary="numa_node",scope="container"}`] += float64(containers)
		for _, a := range resp.GetAllocations() {
			if cpus, err := cpuset.Parse(a.GetCpus().GetList()); err != nil || oneUncore(cpus) {
				c.want[alignedDone+`{boundary="uncore_cache",scope="container"}`]++
			}
		}
		return
	}
	c.want[fmt.Sprintf("kubelet_admission_rejections_total{reason=%q}", counted(resp.GetReason()))]++
	c.want["kubelet_topology_manager_admission_errors_total"]++
	planned := 0
	for _, s := range resp.GetTrace().GetSteps() {
		if s.GetKind() == typesv1.TraceStepKind_TRACE_STEP_KIND_PLANNED && s.GetProvider() == "cpu" {
			planned++
		}
	}
	c.want["kubelet_cpu_manager_pinning_requests_total"] += float64(planned)
	if resp.GetReason() == "TopologyAffinityError" {
		c.want[alignedFailed+`{boundary="numa_node",scope="container"}`]++
		return
	}
	c.want["kubelet_cpu_manager_pinning_requests_total"]++
	c.want["kubelet_cpu_manager_pinning_errors_total"]++
	c.want[alignedFailed+`{boundary="physical_cpu",scope="container"}`]++
}

// counted is the label that a reason counts under.
func counted(reason string) string {
	if reason == "SMTAlignmentError" {
		return "Other"
	}
	return reason
}

// oneUncore knows the simulated machine: one last level cache for each node, 8
// CPUs, siblings 8 apart.
func oneUncore(cpus cpuset.Set) bool {
	var uncores []int
	for id := range cpus.All() {
		uncores = append(uncores, id/4%2)
	}
	slices.Sort(uncores)
	return len(slices.Compact(uncores)) <= 1
}

// compare scrapes and compares: the gauges with the ledger, as the CPU service
// has it, and the counters with the computed values.
func (c *counting) compare(when string) {
	c.t.Helper()
	state, err := cpuv1.NewCPUServiceClient(c.conn).GetState(c.ctx(), &cpuv1.GetStateRequest{})
	if err != nil {
		c.t.Fatal(err)
	}
	parse := func(s *typesv1.CPUSet) cpuset.Set {
		set, err := cpuset.Parse(s.GetList())
		if err != nil {
			c.t.Fatal(err)
		}
		return set
	}
	exclusive, pool := parse(state.GetExclusive()), parse(state.GetShared()).Minus(parse(state.GetReserved()))
	nodes := [2]cpuset.Set{}
	for id := range parse(state.GetAll()).All() {
		nodes[id/4%2] = nodes[id/4%2].Union(cpuset.Of(id))
	}
	c.want["kubelet_cpu_manager_shared_pool_size_millicores"] = float64(1000 * pool.Len())
	c.want["kubelet_cpu_manager_exclusive_cpu_allocation_count"] = float64(exclusive.Len())
	for i, cpus := range nodes {
		c.want[fmt.Sprintf(`kubelet_cpu_manager_allocation_per_numa{numa_node="%d"}`, i)] = float64(exclusive.IntersectLen(cpus))
	}
	check, err := c.inspect.Check(c.ctx(), &inspectv1.CheckRequest{})
	if err != nil {
		c.t.Fatal(err)
	}
	c.want["berth_ledger_revision"] = float64(check.GetRevision())
	want := metrics{}
	for name, value := range c.want {
		if !strings.HasPrefix(name, "resource_manager_") { // not registered without the feature
			want[name] = value
		}
	}
	got := c.scrape()
	got.expect(c.t, when, want)
	for name := range got {
		if strings.HasPrefix(name, "resource_manager_") {
			c.t.Errorf("%s: %s is there without the feature PodLevelResourceManagers", when, name)
		}
	}
}

// TestMetricsFollowTheLedger does random things to a daemon that gives out whole
// cores on one NUMA node, and scrapes after each.
func TestMetricsFollowTheLedger(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 1))
	// CPUs 0-3 and 8-11 are node 0, 4-7 and 12-15 node 1.
	n := simulated(t, "2s1n4c2t", "cpu: {options: {full-pcpus-only: \"true\"}}\n", "--topology-manager-policy", "single-numa-node")
	c := newCounting(n.start())
	c.compare("at the start")
	for i := range 80 {
		switch op := rnd.IntN(10); {
		case op < 5:
			p := guaranteed("p"+strconv.Itoa(i), 1+rnd.IntN(7), 0)
			if rnd.IntN(2) == 0 { // its init container's CPUs are handed on
				init := guaranteed("", 2, 0).GetSpec().GetContainers()[0]
				init.Name = "init"
				p.Spec.InitContainers = []*typesv1.Container{init}
			}
			c.admit(p)
		case op < 6:
			dry, err := c.admission.Admit(n.ctx(),
				&admissionv1.AdmitRequest{Subject: &admissionv1.AdmitRequest_Pod{Pod: guaranteed("dry", 2, 0)}, DryRun: true})
			if err != nil || dry.GetVerdict() == admissionv1.Verdict_VERDICT_DEFERRED {
				t.Fatalf("%v, %v", dry, err)
			}
		case op < 7:
			for _, p := range c.pods {
				c.admit(p)
				break
			}
		default:
			for uid := range c.pods {
				c.remove(uid)
				delete(c.pods, uid)
				break
			}
		}
		c.compare("after step " + strconv.Itoa(i))
		if t.Failed() {
			return
		}
	}
	for uid := range c.pods {
		c.remove(uid)
	}
	c.compare("in the end")
	if c.want["kubelet_cpu_manager_exclusive_cpu_allocation_count"] != 0 || c.want["kubelet_cpu_manager_pinning_errors_total"] == 0 {
		t.Errorf("nothing was refused, or something is left: %v", c.want)
	}
}

// TestMetricsAfterACrash: gauges come from what was kept, counters start again.
func TestMetricsAfterACrash(t *testing.T) {
	t.Parallel()
	n := simulated(t, "2s1n4c2t", "")
	d := n.start()
	d.admitted(guaranteed("a", 4, 0))
	d.kill()
	n.start().scrape().expect(t, "after the crash", metrics{
		"kubelet_cpu_manager_exclusive_cpu_allocation_count":        4,
		"kubelet_cpu_manager_shared_pool_size_millicores":           11000,
		`kubelet_cpu_manager_allocation_per_numa{numa_node="0"}`:    4,
		`kubelet_cpu_manager_allocation_per_numa{numa_node="1"}`:    0,
		"kubelet_cpu_manager_pinning_requests_total":                0,
		`berth_ledger_pods{qos_class="Guaranteed"}`:                 1,
		`berth_ledger_pods{qos_class="Burstable"}`:                  0,
		`berth_ledger_pods{qos_class="BestEffort"}`:                 0,
		`berth_ledger_claims{provider="cpu",resource="cpu"}`:        1,
		alignedDone + `{boundary="physical_cpu",scope="container"}`: 0,
		alignedDone + `{boundary="uncore_cache",scope="container"}`: 0,
	})
}

// TestMetricsOfPodsAsAWhole: pods with resources of their own, under the feature
// that gives them CPUs.
func TestMetricsOfPodsAsAWhole(t *testing.T) {
	t.Parallel()
	n := simulated(t, "2s1n4c2t",
		"features: {podLevelResources: true, podLevelResourceManagers: true, cpuManagerPolicyBetaOptions: true}\n",
		"--topology-manager-policy", "single-numa-node", "--topology-manager-scope", "pod")
	d := n.start()
	whole := guaranteed("whole", 2, 0)
	whole.Spec.Containers = append(whole.Spec.Containers, &typesv1.Container{Name: "shares"}, &typesv1.Container{Name: "too"})
	r := map[string]string{"cpu": "4", "memory": "64Mi"}
	whole.Spec.Resources = &typesv1.ResourceRequirements{Requests: r, Limits: r}
	d.admitted(whole)
	d.admitted(guaranteed("plain", 2, 0))
	starved := guaranteed("starved", 2, 0)
	starved.Spec.Containers = append(starved.Spec.Containers, &typesv1.Container{Name: "shares"})
	two := map[string]string{"cpu": "2", "memory": "64Mi"}
	starved.Spec.Resources = &typesv1.ResourceRequirements{Requests: two, Limits: two}
	if resp := d.admit(starved); resp.GetVerdict() != admissionv1.Verdict_VERDICT_REJECTED {
		t.Fatalf("%v", resp)
	}
	d.scrape().expect(t, "after three admissions", metrics{
		`resource_manager_allocations_total{resource_name="cpu",source="pod"}`:                               3,
		`resource_manager_allocations_total{resource_name="cpu",source="node"}`:                              1,
		`resource_manager_container_assignments_total{assignment_type="pod_exclusive",resource_name="cpu"}`:  1,
		`resource_manager_container_assignments_total{assignment_type="pod_shared",resource_name="cpu"}`:     2,
		`resource_manager_container_assignments_total{assignment_type="node_exclusive",resource_name="cpu"}`: 1,
		"kubelet_cpu_manager_pinning_requests_total":                                                         2,
		"kubelet_cpu_manager_pinning_errors_total":                                                           0,
		`kubelet_admission_rejections_total{reason="TopologyAffinityError"}`:                                 1,
		"kubelet_cpu_manager_exclusive_cpu_allocation_count":                                                 6,
		alignedDone + `{boundary="physical_cpu",scope="container"}`:                                          0,
		alignedDone + `{boundary="uncore_cache",scope="container"}`:                                          2,
		alignedDone + `{boundary="numa_node",scope="pod"}`:                                                   2,
		alignedFailed + `{boundary="physical_cpu",scope="container"}`:                                        0,
		alignedFailed + `{boundary="numa_node",scope="pod"}`:                                                 1,
	})
}

func TestMetricsOfPlugins(t *testing.T) {
	t.Parallel()
	n := simulated(t, "2s1n4c2t", "")
	d := n.start()
	p := d.plugin("g0@0 g1@0")
	d.admitted(guaranteed("a", 1, 1))
	p.Behave(script.Allocate, script.Refuse)
	if resp := d.admit(guaranteed("b", 1, 1)); resp.GetVerdict() != admissionv1.Verdict_VERDICT_REJECTED {
		t.Fatalf("%v", resp)
	}
	got, want := d.scrape(), metrics{
		`kubelet_device_plugin_registration_total{resource_name="` + gpu + `"}`:           1,
		`kubelet_device_plugin_alloc_duration_seconds_count{resource_name="` + gpu + `"}`: 2,
		`kubelet_admission_rejections_total{reason="UnexpectedAdmissionError"}`:           1,
		"kubelet_topology_manager_admission_errors_total":                                 1,
		// The refused pod's CPU was found before the call of the plugin for its device.
		"kubelet_cpu_manager_pinning_requests_total": 2,
		"kubelet_cpu_manager_pinning_errors_total":   0,
	}
	for name, value := range want {
		if got[name] != value {
			t.Errorf("%s is %v, want %v", name, got[name], value)
		}
	}
}
