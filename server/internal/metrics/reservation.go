package metrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/qos"
	"github.com/berthd/berth/managers/workload"
)

// reservationCollector reads from the view what memory QoS guarantees the pods of
// the node (KEP-2570): nothing, unless requests become guarantees.
type reservationCollector struct {
	view   func() *ledger.View
	tiered bool
}

var (
	descReservedMin = prometheus.NewDesc(memoryQoSMin, "Memory requests of Guaranteed pods, which the kernel does not reclaim.", nil, nil)
	descReservedLow = prometheus.NewDesc(memoryQoSLow, "Memory requests of Burstable pods, which the kernel reclaims last.", nil, nil)
)

// Describe implements prometheus.Collector.
func (reservationCollector) Describe(out chan<- *prometheus.Desc) {
	out <- descReservedMin
	out <- descReservedLow
}

// Collect implements prometheus.Collector.
func (c reservationCollector) Collect(out chan<- prometheus.Metric) {
	var sums map[workload.QoSClass]qos.Requests
	if c.tiered {
		sums = qos.Sums(c.view(), workload.Features{})
	}
	for class, d := range map[workload.QoSClass]*prometheus.Desc{workload.Guaranteed: descReservedMin,
		workload.Burstable: descReservedLow} {
		out <- series(d, prometheus.GaugeValue, float64(sums[class].MemoryBytes))
	}
}
