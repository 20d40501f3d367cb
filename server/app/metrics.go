package app

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/berthd/berth/server/reconcile"
	"github.com/berthd/berth/server/rpc/podresources"
)

// metrics are berth's own under berth_, and the kubelet's under its names.
type metrics struct {
	registry *prometheus.Registry
	calls    *prometheus.HistogramVec
	passes   *prometheus.HistogramVec
	writes   prometheus.Counter
	// readers are the kubelet's counters of podresources calls, by name.
	readers map[podresources.Metric]*prometheus.CounterVec
}

func newMetrics() *metrics {
	m := &metrics{
		registry: prometheus.NewRegistry(),
		calls: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "berth_rpc_duration_seconds",
			Help:    "Time that calls took, by method and status code.",
			Buckets: prometheus.ExponentialBuckets(0.0001, 2.5, 14),
		}, []string{"method", "code"}),
		passes: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "berth_reconcile_duration_seconds",
			Help:    "Time that passes over the cgroup tree took, by result.",
			Buckets: prometheus.ExponentialBuckets(0.0001, 2.5, 14),
		}, []string{"result"}),
		writes: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "berth_reconcile_operations_total",
			Help: "Cgroups that passes created or changed.",
		}),
		readers: make(map[podresources.Metric]*prometheus.CounterVec),
	}
	for _, name := range podresources.Metrics() {
		c := prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: string(name), Help: "Calls of the PodResources API, as the kubelet counts them.",
		}, []string{podresources.VersionLabel})
		m.readers[name] = c
		m.registry.MustRegister(c)
	}
	m.registry.MustRegister(m.calls, m.passes, m.writes,
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

// Count implements podresources.Counter.
func (m *metrics) Count(name podresources.Metric, version string) {
	m.readers[name].WithLabelValues(version).Inc()
}

func (m *metrics) observeCall(method, code string, took time.Duration) {
	m.calls.WithLabelValues(method, code).Observe(took.Seconds())
}

func (m *metrics) observePass(o reconcile.Outcome) {
	result := "ok"
	if o.Err != nil {
		result = "error"
	}
	m.passes.WithLabelValues(result).Observe(o.Took.Seconds())
	m.writes.Add(float64(len(o.Ops)))
}
