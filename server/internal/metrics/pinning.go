package metrics

import (
	"slices"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/memory"
	"github.com/berthd/berth/managers/workload"
)

// pinners are the providers that give containers something of their own, with the
// kubelet's names of the counters that each of them has.
var pinners = []struct{ provider, requests, errors, what string }{
	{"cpu", cpuPinningRequests, cpuPinningErrors, "CPUs"},
	{memory.Name, memoryPinningRequests, memoryPinningErrors, "memory"},
}

// pinning counts the calls of one of the pinners.
type pinning struct {
	provider         string
	requests, errors prometheus.Counter
}

func newPinnings(f factory) (all []pinning) {
	for _, p := range pinners {
		all = append(all, pinning{
			provider: p.provider,
			requests: f.counter(p.requests, "Containers for which "+p.what+" of their own were to be found, repeated admissions included."),
			errors:   f.counter(p.errors, "Containers and pods for which "+p.what+" of their own could not be found."),
		})
	}
	return all
}

// count counts the provider's planned claims. A container whose plan failed counts as a request
// too.
func (p *pinning) count(d *decision) {
	planned := d.planned(p.provider)
	requested := map[ledger.Owner]bool{}
	for _, c := range planned {
		if d.isRequest(c) && !requested[c.Owner] {
			requested[c.Owner] = true
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

// The kinds of share that a container has of what a manager allocates.
const (
	nodeExclusive = "node_exclusive"
	podExclusive  = "pod_exclusive"
	podShared     = "pod_shared"
)

// share returns the pool from which a container's claim was allocated, and its kind. Both are
// empty for other claims.
func (d *decision) share(c *ledger.Claim) (source, kind string) {
	switch {
	case c.Provider == memory.Name && c.Owner.Container != "":
		if !d.wholeMemory() {
			return sourceNode, nodeExclusive
		}
		if container := d.pod.Container(c.Owner.Container); container != nil && container.Guaranteed() {
			return sourcePod, podExclusive
		}
		return sourcePod, podShared
	case c.CPUs == nil:
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

// isRequest reports whether a claim counts as a request. For a pod with memory as a whole, the
// kubelet counts the pod. Of the containers that share the memory, it counts those that run
// before the others.
func (d *decision) isRequest(c *ledger.Claim) bool {
	if c.Provider == memory.Name && d.wholeMemory() {
		container := d.pod.Container(c.Owner.Container)
		return c.Owner.Container == "" || container != nil && (container.Role != workload.App || container.Guaranteed())
	}
	_, kind := d.share(c)
	return kind == nodeExclusive || kind == podExclusive
}

// wholeMemory reports whether the pod was given memory as a whole.
func (d *decision) wholeMemory() bool {
	return slices.ContainsFunc(d.planned(memory.Name), func(c *ledger.Claim) bool { return c.Owner.Container == "" })
}

// managerCounters are the kubelet's across the managers (KEP-5526).
type managerCounters struct {
	allocations, errors, assignments *prometheus.CounterVec
}

func newManagerCounters(f factory) managerCounters {
	return managerCounters{
		allocations: f.counters(managerAllocations,
			"Containers that were given a resource, by whose pool it was taken from. Memory and each size of huge pages count by themselves, unless they are the pod's.", labelResource, labelSource),
		errors: f.counters(managerErrors,
			"Containers and pods that could not be given a resource, by whose pool it should have been taken from.", labelResource,
			labelSource),
		assignments: f.counters(managerAssignments,
			"Containers that were given a resource, by the kind of their share.", labelResource, labelAssignmentType),
	}
}

func (m *managerCounters) count(d *decision) {
	type container struct{ provider, name string }
	seen := map[container]bool{}
	claims := d.committed()
	for i := range claims {
		c := &claims[i]
		source, kind := d.share(c)
		if kind == "" {
			continue
		}
		of := container{c.Provider, c.Owner.Container}
		if source == sourceNode || !seen[of] {
			m.allocations.WithLabelValues(c.Provider, source).Inc()
		}
		if !seen[of] {
			m.assignments.WithLabelValues(c.Provider, kind).Inc()
		}
		seen[of] = true
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
