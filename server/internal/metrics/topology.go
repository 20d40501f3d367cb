package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/berthd/berth/managers/topology"
)

// topologyCounters are the kubelet's about the topology manager.
type topologyCounters struct {
	requests, errors prometheus.Counter
	duration         prometheus.Histogram
}

// durationBuckets are the kubelet's 15, from 0.05 ms to 0.8 s, and 9 more: an
// admission may wait for device plugins, up to 7 minutes. A kubelet's query works
// on them unchanged.
var durationBuckets = prometheus.ExponentialBuckets(0.05, 2, 24)

func newTopologyCounters(f factory) topologyCounters {
	return topologyCounters{
		requests: f.counter(topologyRequests, "Admissions that were decided, answers to repeated ones included."),
		errors: f.counter(topologyErrors,
			"Admissions that the topology manager or a provider refused, unless the topology policy is none."),
		duration: f.NewHistogram(prometheus.HistogramOpts{
			Name: topologyDuration, Buckets: durationBuckets,
			Help: "Time that admissions took in milliseconds, with fractions, the wait for other admissions included.",
		}),
	}
}

func (c *topologyCounters) count(d *decision, took time.Duration) {
	c.requests.Inc()
	c.duration.Observe(took.Seconds() * 1e3)
	if d.settings.Topology != topology.None && (d.refusedByMerge() || d.last.Provider != "") {
		c.errors.Inc()
	}
}
