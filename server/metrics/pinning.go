package metrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/workload"
)

// pinning are the kubelet's two counters that each manager of its own resource
// has.
type pinning struct {
	requests, errors prometheus.Counter
}

func newPinning(requests, errors, what string) pinning {
	return pinning{
		requests: counter(requests, "Containers for which "+what+" of their own were to be found, repeated admissions included."),
		errors:   counter(errors, "Containers and pods for which "+what+" of their own could not be found."),
	}
}

func (p *pinning) all() []prometheus.Collector { return []prometheus.Collector{p.requests, p.errors} }

// count looks at what a provider planned. The container at which it failed was a
// request too.
func (p *pinning) count(d *decision, provider string) {
	planned := d.planned(provider)
	for _, c := range planned {
		if _, kind := share(c); kind == nodeExclusive || kind == podExclusive {
			p.requests.Inc()
		}
	}
	if !d.refusedBy(provider) {
		return
	}
	p.errors.Inc()
	// Nothing was wanting where the provider disliked the plan as a whole.
	if d.last.Container != "" || len(planned) == 0 {
		p.requests.Inc()
	}
}

// The kinds of share that a container has of what a manager gives out.
const (
	nodeExclusive = "node_exclusive"
	podExclusive  = "pod_exclusive"
	podShared     = "pod_shared"
)

// share tells out of whose pool a container's claim was taken, and its kind. Both
// are empty for a claim that is no container's share of anything.
func share(c *ledger.Claim) (source, kind string) {
	if c.CPUs == nil {
		return "", ""
	}
	switch c.CPUs.Use {
	case ledger.CPUExclusive:
		return sourceNode, nodeExclusive
	case ledger.CPUPodExclusive:
		return sourcePod, podExclusive
	case ledger.CPUPodShared:
		return sourcePod, podShared
	}
	return "", ""
}

// managerCounters are the kubelet's across the managers (KEP-5526).
type managerCounters struct {
	allocations, errors, assignments *prometheus.CounterVec
}

func newManagerCounters() managerCounters {
	return managerCounters{
		allocations: counters(managerAllocations,
			"Containers that were given a resource, by whose pool it was taken from.", labelResource, labelSource),
		errors: counters(managerErrors,
			"Containers and pods that could not be given a resource, by whose pool it should have been taken from.", labelResource, labelSource),
		assignments: counters(managerAssignments,
			"Containers that were given a resource, by the kind of their share.", labelResource, labelAssignmentType),
	}
}

func (m *managerCounters) all() []prometheus.Collector {
	return []prometheus.Collector{m.allocations, m.errors, m.assignments}
}

func (m *managerCounters) count(d *decision) {
	for _, c := range d.committed() {
		if source, kind := share(&c); kind != "" {
			m.allocations.WithLabelValues(c.Provider, source).Inc()
			m.assignments.WithLabelValues(c.Provider, kind).Inc()
		}
	}
	if d.refusedBy("cpu") {
		source := sourceNode
		if d.last.Container == "" {
			source = sourcePod
		}
		m.errors.WithLabelValues(string(workload.CPU), source).Inc()
	}
}
