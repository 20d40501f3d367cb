package main

import (
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/berthd/berth/managers/errdefs"
)

const (
	// maxReasons bounds the reasons with a series of their own.
	maxReasons = 32
	otherCause = "Other"
)

// counters are what berth-nri counts.
type counters struct {
	registry *prometheus.Registry
	refusals *prometheus.CounterVec
	repeated prometheus.Counter
	// writes of the NodeResourceTopology object
	writes *prometheus.CounterVec
	// condition is when the condition of the node was written last.
	condition prometheus.Gauge

	mu      sync.Mutex // guards reasons
	reasons map[string]bool
}

func newCounters(ready func() error) *counters {
	c := &counters{
		registry: prometheus.NewRegistry(), reasons: map[string]bool{},
		refusals: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "berth_nri_refusals_total", Help: "Pods, and containers that are placed by themselves, that berthd rejected, by reason.",
		}, []string{"reason"}),
		repeated: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "berth_nri_repeated_refusals_total",
			Help: "Tries of rejected pods that were refused without a call of berthd, because nothing had become free.",
		}),
		writes: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "berth_nri_topology_writes_total", Help: "Writes of the node's NodeResourceTopology object, by result: ok or failed.",
		}, []string{"result"}),
		condition: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "berth_nri_node_condition_timestamp_seconds",
			Help: "Time of the last write of the node's condition BerthReady, in seconds since 1970.",
		}),
	}
	// Series that appear with the first event have no increase at it.
	for _, reason := range []errdefs.Reason{errdefs.TopologyAffinityError, errdefs.UnexpectedAdmissionError} {
		c.refusals.WithLabelValues(string(reason))
		c.reasons[string(reason)] = true
	}
	c.registry.MustRegister(c.refusals, c.repeated, c.writes, prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "berth_nri_ready", Help: "1 if berth-nri is connected to the runtime and to berthd, and the runtime answers updates.",
	}, func() float64 {
		if ready() != nil {
			return 0
		}
		return 1
	}))
	return c
}

// serveNode adds the metrics of a node whose condition is written, and with topology the zeros of its NodeResourceTopology object.
func (c *counters) serveNode(topology bool) {
	c.registry.MustRegister(c.condition)
	if topology {
		for _, result := range []string{"ok", "failed"} {
			c.writes.WithLabelValues(result)
		}
	}
}

// refused counts a refusal.
func (c *counters) refused(reason string, repeated bool) {
	if repeated {
		c.repeated.Inc()
		return
	}
	c.mu.Lock()
	if !c.reasons[reason] && len(c.reasons) >= maxReasons {
		reason = otherCause
	}
	c.reasons[reason] = true
	c.mu.Unlock()
	c.refusals.WithLabelValues(reason).Inc()
}
