package metrics

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/berthd/berth/managers/cgroup"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/workload"
)

// Bounds of one scrape.
const (
	maxContainers = 2000
	maxReading    = 5 * time.Second
)

// usageCollector reads from the cgroups what the containers of admitted pods use.
type usageCollector struct {
	view  func() *ledger.View
	usage func(ctx context.Context, b ledger.Binding) (cgroup.Usage, bool)
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

// Collect implements prometheus.Collector. Of a container that was started again it reads the
// newest cgroup that is there.
func (c *usageCollector) Collect(out chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), maxReading)
	defer cancel()
	view := c.view()
	bound := map[ledger.Owner][]ledger.Binding{}
	for b := range view.Bindings() {
		bound[b.Owner] = append(bound[b.Owner], b)
	}
	owners := slices.SortedFunc(maps.Keys(bound), func(a, b ledger.Owner) int {
		return cmp.Or(cmp.Compare(a.Pod, b.Pod), cmp.Compare(a.Container, b.Container))
	})
	series, omitted := 0, 0
	seen := map[[3]string]bool{} // a pod may have the name of one that is about to end
	for _, owner := range owners {
		pod, ok := view.Pod(owner.Pod)
		if !ok {
			continue
		}
		labels := [3]string{pod.Pod.Namespace, pod.Pod.Name, owner.Container}
		if series == maxContainers || ctx.Err() != nil || seen[labels] {
			omitted++
			continue
		}
		for _, b := range slices.Backward(bound[owner]) {
			used, ok := c.usage(ctx, b)
			if !ok {
				continue
			}
			series++
			seen[labels] = true
			out <- prometheus.MustNewConstMetric(descContainerCPU, prometheus.CounterValue, used.CPU.Seconds(), labels[:]...)
			out <- prometheus.MustNewConstMetric(descContainerMemory, prometheus.GaugeValue, float64(used.MemoryBytes), labels[:]...)
			out <- prometheus.MustNewConstMetric(descContainerWorkingSet, prometheus.GaugeValue, float64(used.WorkingSetBytes), labels[:]...)
			break
		}
	}
	out <- prometheus.MustNewConstMetric(descUsageOmitted, prometheus.GaugeValue, float64(omitted))
}

// allocatableCollector reports what the node's pods may have.
type allocatableCollector struct {
	allocatable func() workload.Quantities
}

var descAllocatable = prometheus.NewDesc(nodeAllocatable,
	"What pods of the node may request together: cpu in CPUs, memory and huge pages in bytes, other resources in pieces.", []string{labelNodeResource}, nil)

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
		out <- prometheus.MustNewConstMetric(descAllocatable, prometheus.GaugeValue, value, string(resource))
	}
}
