package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/berthd/berth/server/internal/deviceplugin/registry"
)

// deviceCounters are the kubelet's about device plugins.
type deviceCounters struct {
	registrations *prometheus.CounterVec
	allocations   *prometheus.HistogramVec
}

func newDeviceCounters(f factory) deviceCounters {
	return deviceCounters{
		registrations: f.counters(pluginRegistrations,
			"Registrations of device plugins, refused ones included, by resource.", labelResource),
		allocations: f.NewHistogramVec(prometheus.HistogramOpts{
			Name: pluginAllocDuration,
			Help: "Time that a device plugin's Allocate took in seconds, by resource.",
		}, []string{labelResource}),
	}
}

// Registered implements deviceplugin.Observer.
func (s *Set) Registered(resource string) {
	s.devices.registrations.WithLabelValues(resource).Inc()
}

// Allocated implements deviceplugin.Observer.
func (s *Set) Allocated(resource string, took time.Duration) {
	s.devices.allocations.WithLabelValues(resource).Observe(took.Seconds())
}

// pluginCollector collects the sockets in the watched directory.
type pluginCollector struct{ sockets func() []registry.Socket }

var descPlugins = prometheus.NewDesc(pluginsFound,
	"Plugin sockets that are there (desired) and those that are registered (actual), one series each.",
	[]string{labelSocket, labelState}, nil)

// Describe implements prometheus.Collector.
func (pluginCollector) Describe(out chan<- *prometheus.Desc) { out <- descPlugins }

// Collect implements prometheus.Collector.
func (c pluginCollector) Collect(out chan<- prometheus.Metric) {
	for _, s := range c.sockets() {
		out <- series(descPlugins, prometheus.GaugeValue, 1, s.Path, stateDesired)
		if s.Registered {
			out <- series(descPlugins, prometheus.GaugeValue, 1, s.Path, stateActual)
		}
	}
}
