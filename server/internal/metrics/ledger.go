package metrics

import (
	"strconv"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/ledger/check"
	"github.com/berthd/berth/managers/placement"
	"github.com/berthd/berth/managers/workload"
)

// ledgerCollector reads the gauges from the view of the moment.
type ledgerCollector struct {
	view func() *ledger.View
	// cpu reports whether CPUs are allocated at all.
	cpu func() bool
	// kernel lists differences between the kernel and the ledger; may be nil.
	kernel func() []check.Finding
	// phases counts the containers in each phase; nil for none.
	phases func() map[placement.Phase]int
}

var (
	descSharedPool = prometheus.NewDesc(cpuSharedPool,
		"Thousandths of CPUs in the shared pool that are not reserved.", nil, nil)
	descExclusive = prometheus.NewDesc(cpuExclusive,
		"CPUs that are out of the shared pool.", nil, nil)
	descPerNUMA = prometheus.NewDesc(cpuPerNUMA,
		"CPUs that are out of the shared pool, by NUMA node.", []string{labelNode}, nil)
	descRevision = prometheus.NewDesc(ledgerRevision,
		"Revision of the ledger; it grows by 1 with each commit.", nil, nil)
	descPods = prometheus.NewDesc(ledgerPods,
		"Admitted pods, by class.", []string{"qos_class"}, nil)
	descResourceClaims = prometheus.NewDesc(resourceClaims,
		"Claims on dynamic resources that hold something.", nil, nil)
	descClaimCPUs = prometheus.NewDesc(claimCPUs,
		"CPUs that claims on dynamic resources may have, by NUMA node; held ones belong to a claim.", []string{labelNode, labelState}, nil)
	descClaimMemory = prometheus.NewDesc(claimMemory,
		"Memory and huge pages that claims on dynamic resources may have, by NUMA node; held bytes belong to a claim.",
		[]string{labelNode, labelResource, labelState}, nil)
	descClaims = prometheus.NewDesc(ledgerClaims,
		"Facts of ownership, by provider and resource.", []string{"provider", "resource"}, nil)
	descFindings = prometheus.NewDesc(ledgerFindings,
		"What a check of the ledger finds, by kind and rule; policy findings are claims that today's rules would not allow, "+
			"kernel findings what the kernel does otherwise than the ledger says.",
		[]string{"kind", "rule"}, nil)
	descMachineCPUs = prometheus.NewDesc(machineCPUs,
		"CPUs of the machine, by state; offline ones are present and not in use.", []string{labelState}, nil)
	descContainers = prometheus.NewDesc(containerPhases,
		"Containers that berthd places, by phase; docs/lifecycle.md has the phases.", []string{"phase"}, nil)
)

// Describe implements prometheus.Collector.
func (c *ledgerCollector) Describe(out chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		descSharedPool, descExclusive, descPerNUMA, descRevision, descPods, descResourceClaims, descClaimCPUs, descClaimMemory,
		descClaims, descFindings, descContainers, descMachineCPUs,
	} {
		out <- d
	}
}

// Collect implements prometheus.Collector.
func (c *ledgerCollector) Collect(out chan<- prometheus.Metric) {
	view := c.view()
	gauge := func(d *prometheus.Desc, value float64, labels ...string) {
		out <- series(d, prometheus.GaugeValue, value, labels...)
	}
	c.collectCPUs(view, gauge)
	gauge(descRevision, float64(view.Revision()))
	pods := map[workload.QoSClass]int{workload.Guaranteed: 0, workload.Burstable: 0, workload.BestEffort: 0}
	claims, findings := map[[2]string]int{}, map[[2]string]int{}
	for p := range view.Pods() {
		if p.Pod.ResourceClaim == nil {
			pods[p.QoS]++
		}
		for i := range p.Claims {
			claims[[2]string{p.Claims[i].Provider, p.Claims[i].Resource}]++
		}
	}
	found := check.View(view)
	if c.kernel != nil {
		found = append(found, c.kernel()...)
	}
	for _, f := range found {
		findings[[2]string{string(f.Kind), string(f.Rule)}]++
	}
	collectResourceClaims(view, gauge)
	for class, n := range pods {
		gauge(descPods, float64(n), string(class))
	}
	for of, n := range claims {
		gauge(descClaims, float64(n), of[0], of[1])
	}
	for of, n := range findings {
		gauge(descFindings, float64(n), of[0], of[1])
	}
	if c.phases != nil {
		in := c.phases()
		for _, phase := range placement.Phases() {
			gauge(descContainers, float64(in[phase]), string(phase))
		}
	}
}

// collectResourceClaims sets what resource claims may have and hold; only the count if they may have nothing.
func collectResourceClaims(view *ledger.View, gauge func(*prometheus.Desc, float64, ...string)) {
	gauge(descResourceClaims, float64(view.NumResourceClaims()))
	rules, machine, held, ofClaims := view.Rules(), view.Machine(), view.ExclusiveCPUs(), view.ResourceClaimCPUs()
	for node := range machine.CPUNodeMask().All() {
		if cpus := rules.ClaimCPUs.Intersect(machine.CPUsInNode(node)); !cpus.IsEmpty() {
			gauge(descClaimCPUs, float64(ofClaims.IntersectLen(cpus)), strconv.Itoa(node), "held")
			gauge(descClaimCPUs, float64(cpus.Len()-held.IntersectLen(cpus)), strconv.Itoa(node), "free")
		}
	}
	use, all := view.ResourceClaimMemory(), view.ResourceClaimMemory()
	if rules.OnePool {
		all = view.MemoryUse()
	}
	for _, m := range rules.ClaimMemory {
		if m.Allocatable == 0 {
			continue
		}
		used := min(use.Held(m.Resource)[m.Node], m.Allocatable)
		gauge(descClaimMemory, float64(used), strconv.Itoa(m.Node), m.Resource, "held")
		gauge(descClaimMemory, float64(m.Allocatable-min(all.Held(m.Resource)[m.Node], m.Allocatable)), strconv.Itoa(m.Node), m.Resource,
			"free")
	}
}

// collectCPUs sets a value for every NUMA node with CPUs, also 0. The policy none has no shared
// pool, and the gauge is 0, as in the kubelet.
func (c *ledgerCollector) collectCPUs(view *ledger.View, gauge func(*prometheus.Desc, float64, ...string)) {
	pool := 0
	if c.cpu() {
		pool = view.SharedCPUs().Minus(view.Rules().ReservedCPUs).Len()
	}
	gauge(descSharedPool, float64(1000*pool))
	held, machine := view.ExclusiveCPUs(), view.Machine()
	gauge(descMachineCPUs, float64(machine.CPUs().Len()), "online")
	gauge(descMachineCPUs, float64(machine.Offline().Len()), "offline")
	gauge(descExclusive, float64(held.Len()))
	for node := range machine.CPUNodeMask().All() {
		gauge(descPerNUMA, float64(held.IntersectLen(machine.CPUsInNode(node))), strconv.Itoa(node))
	}
}
