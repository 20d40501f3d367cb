package metrics

import (
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/berthd/berth/managers/admission"
	"github.com/berthd/berth/managers/cpu"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/live"
	"github.com/berthd/berth/managers/memory"
	"github.com/berthd/berth/managers/node"
)

// resizeCounters are the kubelet's about pods that change in place.
type resizeCounters struct {
	duration   *prometheus.HistogramVec
	infeasible *prometheus.CounterVec
}

func newResizeCounters(f factory) resizeCounters {
	return resizeCounters{
		duration: f.NewHistogramVec(prometheus.HistogramOpts{
			Name: resizeDuration, Help: "Time that resizes took which were carried out or tried, in milliseconds.",
			Buckets: prometheus.ExponentialBuckets(10, 3, 11),
		}, []string{labelSuccess}),
		infeasible: f.counters(infeasibleResizes, "Resizes that this node can never grant, by reason.", labelReasonDetail),
	}
}

// infeasibleBy has the kubelet's label for each provider that can refuse a resize permanently.
var infeasibleBy = map[string]string{
	cpu.Name:       "guaranteed_pod_cpu_manager_static_policy",
	memory.Name:    "guaranteed_pod_memory_manager_static_policy",
	node.GuardName: "insufficient_node_allocatable",
}

// Resize counts the outcome of a resize that is no dry run, and how long it took.
func (s *Set) Resize(r live.Resized, took time.Duration, err error) {
	switch {
	case err == nil && r.Outcome == admission.Rejected:
		s.resizes.infeasible.WithLabelValues(infeasibleDetail(r.Trace)).Inc()
	case err != nil || r.Outcome == admission.Admitted && !r.Repeated:
		s.resizes.duration.WithLabelValues(strconv.FormatBool(err == nil)).Observe(float64(took.Microseconds()) / 1000)
	}
}

func infeasibleDetail(t *ledger.Trace) string {
	if detail, ok := infeasibleBy[lastStep(t).Provider]; ok {
		return detail
	}
	return reasonOther
}
