package main

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"

	"github.com/berthd/berth/clients/dra/driver"
)

// counted is a driver whose calls are counted.
type counted struct {
	*driver.Driver
	registry *prometheus.Registry
	prepares *prometheus.CounterVec
	duration prometheus.Histogram
}

func newCounted(d *driver.Driver) *counted {
	flag := func(name, help string, set func() bool) prometheus.GaugeFunc {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, func() float64 {
			if set() {
				return 1
			}
			return 0
		})
	}
	c := &counted{
		Driver: d, registry: prometheus.NewRegistry(),
		prepares: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "berth_dra_prepares_total", Help: "Claims that the kubelet has had prepared, by result: ok or failed.",
		}, []string{"result"}),
		duration: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "berth_dra_prepare_duration_seconds", Help: "Time that calls of the kubelet took, which prepare all claims of a pod.",
			Buckets: prometheus.ExponentialBuckets(0.001, 2, 12),
		}),
	}
	for _, result := range []string{"ok", "failed"} {
		c.prepares.WithLabelValues(result) // a series that appears with the first failure has no increase at it
	}
	c.registry.MustRegister(c.prepares, c.duration,
		flag("berth_dra_ready", "1 if the devices of the node are published.", func() bool { return d.Ready() == nil }),
		flag("berth_dra_counted_twice", "1 if nothing is published, because the scheduler gives to pods what claims can have.",
			d.CountedTwice),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "berth_dra_unrestored_claims",
			Help: "Prepared claims that berthd has lost and does not admit again. No claim gets anything of their NUMA nodes.",
		}, func() float64 { return float64(d.Unrestored()) }))
	return c
}

// PrepareResourceClaims implements kubeletplugin.DRAPlugin.
func (c *counted) PrepareResourceClaims(ctx context.Context,
	claims []*resourceapi.ResourceClaim) (map[types.UID]kubeletplugin.PrepareResult, error) {
	began := time.Now()
	results, err := c.Driver.PrepareResourceClaims(ctx, claims)
	c.duration.Observe(time.Since(began).Seconds())
	for _, r := range results {
		result := "ok"
		if r.Err != nil {
			result = "failed"
		}
		c.prepares.WithLabelValues(result).Inc()
	}
	return results, err
}
