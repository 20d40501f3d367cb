package metrics

import (
	"context"
	"flag"
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/berthd/berth/managers/cgroup"
	"github.com/berthd/berth/managers/hint"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/ledger/check"
	"github.com/berthd/berth/managers/placement"
	"github.com/berthd/berth/managers/topology"
	"github.com/berthd/berth/managers/workload"
	"github.com/berthd/berth/server/internal/deviceplugin/registry"
	"github.com/berthd/berth/server/internal/system"
)

var update = flag.Bool("update", false, "write docs/metrics.md")

// described is the page's text on a metric beside its name, labels and help.
type described struct {
	kind, unit, use string
}

const (
	counts     = "counter"
	gauges     = "gauge"
	histograms = "histogram"
)

// uses has every metric but those of the Go runtime and of the process.
var uses = map[string]described{
	cpuSharedPool:         {gauges, "1/1000 CPU", "how many CPUs containers without own CPUs share"},
	cpuExclusive:          {gauges, "CPUs", "how many CPUs are allocated; compare with the allocatable CPUs"},
	cpuPerNUMA:            {gauges, "CPUs", "whether one NUMA node is full while others are not"},
	cpuPinningRequests:    {counts, "containers", "requests for exclusive CPUs"},
	cpuPinningErrors:      {counts, "containers", "requests for exclusive CPUs that failed"},
	memoryPinningRequests: {counts, "containers", "requests for memory on NUMA nodes"},
	memoryPinningErrors:   {counts, "containers", "requests for memory on NUMA nodes that failed"},
	alignedCount: {counts, "containers",
		"how often a container got what it has from as few cores, caches or NUMA nodes as the boundary says"},
	alignedFailures:     {counts, "containers", "how often that failed"},
	topologyRequests:    {counts, "pods", "decided admissions"},
	topologyErrors:      {counts, "pods", "admissions that the topology policy or a provider refused"},
	topologyDuration:    {histograms, "milliseconds", "how long admissions take, by the kubelet's name and unit"},
	rejections:          {counts, "pods", "which reasons pods are rejected for"},
	ownRejections:       {counts, "pods", "the same as `kubelet_admission_rejections_total`, in every installation, and from 0 on"},
	managerAllocations:  {counts, "allocations", "only with the feature PodLevelResourceManagers"},
	managerErrors:       {counts, "allocations", "only with the feature PodLevelResourceManagers"},
	managerAssignments:  {counts, "containers", "only with the feature PodLevelResourceManagers"},
	pluginRegistrations: {counts, "registrations", "a device plugin that registers again and again is restarting"},
	pluginAllocDuration: {histograms, "seconds", "whether a device plugin is slow"},
	pluginsFound:        {gauges, "1 each", "a socket that is only `desired_state_of_world` is not registered"},
	cgroupDuration:      {histograms, "seconds", "whether the kernel or systemd is slow"},
	cgroupVersion:       {gauges, "1 or 2", "the cgroup version"},
	losingSupport:       {gauges, "1", "the container runtime is too old; the label says from which Kubernetes on"},
	memoryQoSMin:        {gauges, "bytes", "only with the feature MemoryQoS"},
	memoryQoSLow:        {gauges, "bytes", "only with the feature MemoryQoS"},
	resizeDuration:      {histograms, "milliseconds", "how long resizes take"},
	infeasibleResizes:   {counts, "resizes", "resizes that this node can never do"},
	containerCPU:        {counts, "seconds", "CPU usage; the name and the labels are those of the kubelet's `/metrics/resource`"},
	containerMemory:     {gauges, "bytes", "memory usage; the name is cAdvisor's"},
	containerWorkingSet: {gauges, "bytes",
		"memory usage that the kernel cannot easily reclaim; the name and the labels are those of the kubelet's `/metrics/resource`"},
	usageOmitted: {gauges, "containers", "above 0, the sums of the container metrics are too small"},
	nodeAllocatable: {gauges, "CPUs, bytes, pieces",
		"what pods of the node can request; kubelets have no such metric, but dashboards name it so"},
	callDuration:      {histograms, "seconds", "rate, errors and duration of calls"},
	passDuration:      {histograms, "seconds", "whether berthd can compare and write the cgroups"},
	passOperations:    {counts, "cgroups", "how much berthd writes"},
	admissionDuration: {histograms, "seconds", "rate of verdicts, and how long they take"},
	stepDuration: {histograms, "seconds",
		"which step makes admissions slow: `wait` (for other admissions), `hints`, `merge`, `plan`, " +
			"`prepare` (calls of plugins and providers), `cgroup`, `record`, `commit`"},
	ledgerRevision:  {gauges, "revision", "whether the ledger changes"},
	ledgerPods:      {gauges, "pods", "how many pods the node has"},
	ledgerClaims:    {gauges, "claims", "how much each provider has allocated"},
	resourceClaims:  {gauges, "claims", "how many claims on dynamic resources the node has"},
	claimCPUs:       {gauges, "CPUs", "whether claims still fit on a NUMA node"},
	claimMemory:     {gauges, "bytes", "whether claims still fit on a NUMA node"},
	ledgerFindings:  {gauges, "findings", "no series on a healthy node; `berthctl ledger check` lists the findings"},
	containerPhases: {gauges, "containers", "containers that wait for their start"},
	cgroupDrifts:    {counts, "values", "another program changes cgroups"},
	cgroupOrphans:   {gauges, "cgroups", "cgroups of unknown pods"},
	buildInfo:       {gauges, "1", "which berthd runs on which node"},
	watchStreams:    {gauges, "streams", "how many clients follow the changes"},
	ledgerBytes:     {gauges, "bytes", "whether the ledger's file grows"},
	moveSteps:       {counts, "steps", "how much containers move; [live.md](live.md)"},
	replacements: {counts, "losses",
		"only with `hotplug.onLost: replace`: `moved` pods get others; `reported` ones keep what they have, because no others are free; " +
			"`failed` ones are tried again, for example because of another operation on the pod; the log has the reason"},
	historyEntries: {gauges, "entries", "how far back `berthctl history` goes, with the time of the oldest entry"},
	historyBytes:   {gauges, "bytes", "compare with `history.bytes` of the configuration"},
	historyOldest:  {gauges, "seconds", "the oldest moment for `--at`, unless an entry is damaged; no series without entries"},
	machineChanges: {counts, "changes",
		"how often CPUs, memory or huge pages come and go; `failed` means that berthd cannot follow, and the log says why"},
	machineCPUs:    {gauges, "CPUs", "offline CPUs, on which no container runs"},
	historyOmitted: {counts, "calls", "a user floods berthd with requests"},
	devicePlugins:  {gauges, "resources", "device resources without a connected plugin"},
	"kubelet_pod_resources_endpoint_requests_total": {counts, "calls", "calls of PodResources clients, by API version"},
}

// podResources is how the kubelet's counters of podresources calls begin.
const podResources = "kubelet_pod_resources_endpoint_"

// row is a metric as its descriptor has it.
type row struct {
	name, help string
	labels     []string
}

var descriptor = regexp.MustCompile(`^Desc\{fqName: "([^"]+)", help: "(.*?)"(?:, unit: "[^"]*")?, ` +
	`constLabels: \{[^}]*\}, variableLabels: \{([^}]*)\}\}$`)

// rows lists what a set with everything has registered.
func rows(t *testing.T) (all []row) {
	t.Helper()
	s := New()
	s.Start(system.Sources{
		View: func() *ledger.View { return nil },
		Settings: func() system.Settings {
			return system.Settings{StaticCPUs: true, Topology: topology.BestEffort, Scope: hint.Scope("container"),
				PodLevelResourceManagers: true, MemoryQoS: true}
		},
		Sockets: func() []registry.Socket { return nil }, Kernel: func() []check.Finding { return nil },
		Phases:      func() map[placement.Phase]int { return nil },
		Usage:       func(context.Context, ledger.Binding) (cgroup.Usage, bool) { return cgroup.Usage{}, false },
		Allocatable: func() workload.Quantities { return nil },
	})
	out := make(chan *prometheus.Desc)
	go func() { defer close(out); s.registry.Describe(out) }()
	for d := range out {
		m := descriptor.FindStringSubmatch(d.String())
		if m == nil {
			t.Fatalf("descriptor %s", d)
		}
		if strings.HasPrefix(m[1], "go_") || strings.HasPrefix(m[1], "process_") {
			continue
		}
		r := row{name: m[1], help: strings.ReplaceAll(m[2], `\"`, `"`)}
		if m[3] != "" {
			r.labels = strings.Split(m[3], ",")
		}
		all = append(all, r)
	}
	for _, r := range slices.Clone(all) {
		if own, ok := ownNames[r.name]; ok {
			all = append(all, row{own, r.help, r.labels})
		}
	}
	slices.SortFunc(all, func(a, b row) int { return strings.Compare(a.name, b.name) })
	return slices.CompactFunc(all, func(a, b row) bool { return a.name == b.name })
}

// page is docs/metrics.md.
func page(all []row) string {
	var out strings.Builder
	out.WriteString(`# Which metrics does berthd have?

With ` + "`http: ADDRESS`" + `, berthd serves these metrics at ` + "`/metrics`" + ` for Prometheus. Metrics that the
kubelet has too have the kubelet's name, unit and labels, so that existing dashboards work.
` + "`go test ./server/internal/metrics -run TestPage -update`" + ` writes this page from the
registered descriptors. A test compares it with ` + "`/metrics`" + ` of a real berthd. [alerts.md](alerts.md) has rules, a
dashboard, and what to do about each alert.

Series of a counter with labels appear with the first event, except those that alerts watch, which begin with 0. A scrape never waits for an
admission. Beside a kubelet (` + "`kubeletMetrics: false`" + `), metrics with names of the kubelet are left out;
those that rules and the dashboard use have a second name of berth. The verdict ` + "`error`" + ` counts what berthd has
failed at, ` + "`invalid`" + ` a caller's mistakes. At most four scrapes run at the same time; others get the status 503.
`)
	for _, section := range []struct {
		title string
		own   bool
	}{{"Metrics with names of the kubelet", false}, {"Metrics of berth", true}} {
		out.WriteString("\n## " + section.title +
			"\n\n| Metric | Type | Unit | Labels | Meaning | Use |\n| --- | --- | --- | --- | --- | --- |\n")
		for _, r := range all {
			if strings.HasPrefix(r.name, "berth_") != section.own {
				continue
			}
			d := use(r.name)
			labels := "-"
			if len(r.labels) > 0 {
				labels = "`" + strings.Join(r.labels, "`, `") + "`"
			}
			fmt.Fprintf(&out, "| `%s` | %s | %s | %s | %s | %s |\n", r.name, d.kind, d.unit, labels, strings.ReplaceAll(r.help, "|", "/"),
				d.use)
		}
	}
	out.WriteString(`
## Metrics of the process

| Metric | Meaning |
| --- | --- |
| ` + "`go_*`" + ` | the Go runtime: goroutines, memory, garbage collection |
| ` + "`process_*`" + ` | the process: CPU time, memory, open files, start time |

## How many series are there?

| Label | Bound |
| --- | --- |
| ` + "`namespace`, `pod`, `container`" + ` | 2000 containers; ` + "`berth_container_usage_omitted`" + ` counts the others |
| ` + "`provider` of `berth_admission_step_duration_seconds`" + ` | 32 providers; the others are ` + "`other`" + ` |
| ` + "`resource_name`, `resource`" + ` | the device resources, at most ` + "`limits.pluginResources`" + `, and those of the machine |
| ` + "`reason`" + ` | berth's reasons, and ` + "`Other`" + ` |
| ` + "`socket_path`" + ` | the sockets in the plugin directories |
`)
	return out.String()
}

// use finds the page's text on a metric.
func use(name string) described {
	if d, ok := uses[name]; ok {
		return d
	}
	for kubelets, own := range ownNames {
		if own == name {
			d := uses[kubelets]
			d.use = "the same as `" + kubelets + "`, in every installation"
			return d
		}
	}
	if strings.HasPrefix(name, podResources) {
		return described{counts, "calls", "calls of PodResources clients, by API version"}
	}
	return described{}
}

// TestPage: every registered metric is on the page, and every metric of the page is registered.
func TestPage(t *testing.T) {
	all := rows(t)
	names := map[string]bool{}
	for _, r := range all {
		names[r.name] = true
		if d := use(r.name); d.kind == "" || d.unit == "" || d.use == "" {
			t.Errorf("%s is registered and not described in this test's table", r.name)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(uses)) {
		if !names[name] {
			t.Errorf("%s is described and not registered", name)
		}
	}
	const file = "../../../docs/metrics.md"
	want := page(all)
	if *update {
		if err := os.WriteFile(file, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := os.ReadFile(file); err != nil || string(got) != want {
		t.Errorf("docs/metrics.md is not what is registered (%v): go test ./server/internal/metrics -run TestPage -update writes it", err)
	}
}
