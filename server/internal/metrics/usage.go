package metrics

import (
	"context"
	"iter"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/berthd/berth/managers/cgroup"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/workload"
	"github.com/berthd/berth/server/internal/usage"
)

// usageCollector reads from the cgroups what the containers of admitted pods use.
type usageCollector struct {
	view     func() *ledger.View
	bindings func(*ledger.View) iter.Seq[ledger.Binding]
	usage    func(ctx context.Context, b ledger.Binding) (cgroup.Usage, bool)
}

var (
	containerLabels = []string{"namespace", "pod", "container"}

	descContainerCPU = prometheus.NewDesc(containerCPU,
		"CPU time of a container since its start.", containerLabels, nil)
	descContainerMemory = prometheus.NewDesc(containerMemory,
		"Memory of a container, with the page cache.", containerLabels, nil)
	descContainerWorkingSet = prometheus.NewDesc(containerWorkingSet,
		"Memory of a container without the inactive part of the page cache.", containerLabels, nil)
	descUsageOmitted = prometheus.NewDesc(usageOmitted,
		"Running containers that this scrape has no usage of, because there are more than 2000, reading took longer than 5 s, or another pod has the same name.", nil, nil)
)

// Describe implements prometheus.Collector.
func (c *usageCollector) Describe(out chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{descContainerCPU, descContainerMemory, descContainerWorkingSet, descUsageOmitted} {
		out <- d
	}
}

// Collect implements prometheus.Collector. A pod may have the name of one that is about to end;
// only the first of them has series.
func (c *usageCollector) Collect(out chan<- prometheus.Metric) {
	view, repeated, seen := c.view(), 0, map[[3]string]bool{}
	omitted := usage.Each(context.Background(), view, c.bindings, c.usage, func(b ledger.Binding, used cgroup.Usage) {
		pod, _ := view.Pod(b.Owner.Pod)
		labels := [3]string{pod.Pod.Namespace, pod.Pod.Name, b.Owner.Container}
		if seen[labels] {
			repeated++
			return
		}
		seen[labels] = true
		out <- series(descContainerCPU, prometheus.CounterValue, used.CPU.Seconds(), labels[:]...)
		out <- series(descContainerMemory, prometheus.GaugeValue, float64(used.MemoryBytes), labels[:]...)
		out <- series(descContainerWorkingSet, prometheus.GaugeValue, float64(used.WorkingSetBytes), labels[:]...)
	})
	out <- series(descUsageOmitted, prometheus.GaugeValue, float64(omitted+repeated))
}

// allocatableCollector reports what the node's pods may have.
type allocatableCollector struct {
	allocatable func() workload.Quantities
}

var descAllocatable = prometheus.NewDesc(nodeAllocatable,
	"What pods of the node may request together: cpu in CPUs, memory and huge pages in bytes, other resources in pieces.",
	[]string{labelNodeResource}, nil)

// labelNodeResource is the label of a resource as kube-state-metrics has it.
const labelNodeResource = "resource"

// Describe implements prometheus.Collector.
func (allocatableCollector) Describe(out chan<- *prometheus.Desc) { out <- descAllocatable }

// Collect implements prometheus.Collector.
func (c allocatableCollector) Collect(out chan<- prometheus.Metric) {
	for resource, amount := range c.allocatable() {
		value := float64(amount)
		if resource == workload.CPU {
			value /= 1000
		}
		out <- series(descAllocatable, prometheus.GaugeValue, value, string(resource))
	}
}
