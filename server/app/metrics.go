package app

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/berthd/berth/server/reconcile"
)

// metrics are berth's own; the kubelet's names come with their managers.
type metrics struct {
	registry *prometheus.Registry
	calls    *prometheus.HistogramVec
	passes   *prometheus.HistogramVec
	writes   prometheus.Counter
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
	}
	m.registry.MustRegister(m.calls, m.passes, m.writes,
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
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
