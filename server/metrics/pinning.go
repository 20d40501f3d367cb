package metrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/berthd/berth/managers/ledger"
)

// pinners are the providers that give containers something of their own, with the
// kubelet's names of the counters that each of them has.
var pinners = []struct{ provider, requests, errors, what string }{
	{"cpu", cpuPinningRequests, cpuPinningErrors, "CPUs"},
}

// pinning counts what one of the pinners was asked for.
type pinning struct {
	provider         string
	requests, errors prometheus.Counter
}

func newPinnings() (all []pinning) {
	for _, p := range pinners {
		all = append(all, pinning{
			provider: p.provider,
			requests: counter(p.requests, "Containers for which "+p.what+" of their own were to be found, repeated admissions included."),
			errors:   counter(p.errors, "Containers and pods for which "+p.what+" of their own could not be found."),
		})
	}
	return all
}

// count looks at what the provider planned. The container at which it failed was
// a request too.
func (p *pinning) count(d *decision) {
	planned := d.planned(p.provider)
	for _, c := range planned {
		if _, kind := share(c); kind == nodeExclusive || kind == podExclusive {
			p.requests.Inc()
		}
	}
	if !d.refusedBy(p.provider) {
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
	for _, p := range pinners {
		if !d.refusedBy(p.provider) {
			continue
		}
		source := sourceNode
		if d.last.Container == "" {
			source = sourcePod
		}
		m.errors.WithLabelValues(p.provider, source).Inc()
	}
}
