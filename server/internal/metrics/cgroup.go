package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/berthd/berth/managers/cgroup"
	"github.com/berthd/berth/server/internal/reconcile"
)

// cgroupCounters have the kubelet's metrics of the cgroup tree, and berth's own.
type cgroupCounters struct {
	operations *prometheus.HistogramVec
	version    prometheus.Gauge
	losing     *prometheus.GaugeVec
	drifts     *prometheus.CounterVec
	orphans    prometheus.Gauge
}

func newCgroupCounters(f factory) cgroupCounters {
	return cgroupCounters{
		operations: f.NewHistogramVec(prometheus.HistogramOpts{
			Name: cgroupDuration, Buckets: prometheus.DefBuckets,
			Help: "Time that operations on cgroups took in seconds, by operation.",
		}, []string{labelOperation}),
		version: f.NewGauge(prometheus.GaugeOpts{
			Name: cgroupVersion, Help: "Version of the kernel's cgroup interface, 1 or 2.",
		}),
		losing: f.NewGaugeVec(prometheus.GaugeOpts{
			Name: losingSupport,
			Help: "1 if the container runtime does not report its cgroup driver; the version is that of the first Kubernetes whose kubelet does not work with such a runtime.",
		}, []string{labelVersion}),
		drifts:  f.counters(cgroupDrifts, "Values of cgroups that another program changed, by control file.", labelFile),
		orphans: f.NewGauge(prometheus.GaugeOpts{Name: cgroupOrphans, Help: "Cgroups of pods that are not in the ledger."}),
	}
}

func (c *cgroupCounters) count(o reconcile.Outcome) {
	for _, d := range o.Drifts {
		c.drifts.WithLabelValues(d.File).Inc()
	}
	c.orphans.Set(float64(o.Orphans))
}

// Cgroup counts an operation on a cgroup.
func (s *Set) Cgroup(op reconcile.Operation, took time.Duration) {
	s.cgroups.operations.WithLabelValues(string(op)).Observe(took.Seconds())
}

// CgroupVersion sets the version of the tree.
func (s *Set) CgroupVersion(v cgroup.Version) { s.cgroups.version.Set(float64(v)) }

// OldRuntime records a container runtime that does not report its cgroup driver. The series does
// not exist with other runtimes.
func (s *Set) OldRuntime() { s.cgroups.losing.WithLabelValues(firstWithout).Set(1) }
