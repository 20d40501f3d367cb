package metrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/berthd/berth/managers/admission"
	"github.com/berthd/berth/managers/hint"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/machine"
	"github.com/berthd/berth/managers/topology"
	"github.com/berthd/berth/server/internal/system"
)

// alignment counts allocations within one core, one uncore or one NUMA node, and admissions that
// failed because no such allocation was possible.
type alignment struct {
	done, failed *prometheus.CounterVec
}

func newAlignment(f factory) alignment {
	return alignment{
		done: f.counters(alignedCount,
			"Allotments that keep within a boundary: whole cores (only under full-pcpus-only), one uncore, one NUMA node (only under single-numa-node).",
			labelScope, labelBoundary),
		failed: f.counters(alignedFailures,
			"Refusals because a boundary cannot be kept.", labelScope, labelBoundary),
	}
}

// begin starts the series at 0 that the kubelet starts at 0.
func (a *alignment) begin(s system.Settings) {
	container := string(hint.ContainerScope)
	a.done.WithLabelValues(container, boundaryCore)
	a.done.WithLabelValues(container, boundaryUncore)
	a.failed.WithLabelValues(container, boundaryCore)
	if s.Topology == topology.SingleNUMANode {
		a.done.WithLabelValues(string(s.Scope), boundaryNode)
		a.failed.WithLabelValues(string(s.Scope), boundaryNode)
	}
}

func (a *alignment) count(d *decision) {
	container := string(hint.ContainerScope)
	claims := d.committed()
	for i := range claims {
		c := &claims[i]
		if !c.CPUs.OfNode() {
			continue
		}
		if d.settings.FullCores {
			a.done.WithLabelValues(container, boundaryCore).Inc()
		}
		if inOneUncore(d.View.Machine(), c) {
			a.done.WithLabelValues(container, boundaryUncore).Inc()
		}
	}
	if d.settings.FullCores && d.refusedBy("cpu") {
		a.failed.WithLabelValues(container, boundaryCore).Inc()
	}
	if d.settings.Topology != topology.SingleNUMANode {
		return
	}
	scope := string(d.settings.Scope)
	switch {
	case d.refusedByMerge():
		a.failed.WithLabelValues(scope, boundaryNode).Inc()
	case d.Outcome == admission.Admitted && !d.Repeated:
		a.done.WithLabelValues(scope, boundaryNode).Add(float64(d.merges()))
	}
}

func inOneUncore(m *machine.Topology, c *ledger.Claim) bool {
	uncores := 0
	for range m.ByUncore().Touched(c.CPUs.Set) {
		uncores++
	}
	return uncores <= 1
}
