package workload

// QoSClass is the quality of service class of a pod, in Kubernetes' spelling.
type QoSClass string

const (
	// BestEffort pods request no cpu and no memory.
	BestEffort QoSClass = "BestEffort"
	// Burstable pods are neither of the others.
	Burstable QoSClass = "Burstable"
	// Guaranteed pods limit cpu and memory everywhere and request exactly their limits.
	Guaranteed QoSClass = "Guaranteed"
)

// QoSClass gives the class of the pod: the one handed in as Pod.QoS, else the computed one. Only positive amounts of cpu and
// memory count. With pod-level resources in force and Resources present, even empty, the containers do not matter; so a
// pod with empty Resources is BestEffort whatever its containers request (as Kubernetes 1.36 has it; kubernetes#135082).
// Requests and limits are compared as sums over the containers, not container by container.
func (p *Pod) QoSClass(f Features) QoSClass {
	if p.QoS != "" {
		return p.QoS
	}
	var requests, limits amounts
	complete := true // everything that must be limited in cpu and memory is
	count := func(req, lim list) {
		requests.add(req)
		limits.add(lim)
		complete = complete && lim.amounts[CPU] > 0 && lim.amounts[Memory] > 0
	}
	if f.PodLevelResources && p.Resources != nil {
		req, lim, _ := p.podLevel()
		count(req, lim)
		complete = complete || len(lim.amounts) == 0
	} else {
		for _, c := range p.Walk() {
			count(c.requests(), c.limits())
		}
	}
	switch {
	case requests == (amounts{}) && limits == (amounts{}):
		return BestEffort
	case complete && requests == limits:
		return Guaranteed
	default:
		return Burstable
	}
}

// amounts are sums of what counts for the class. Zero stands for absent: only positive amounts are added.
type amounts struct {
	cpu, memory Exact
}

func (a *amounts) add(l list) {
	if l.amounts[CPU] > 0 {
		a.cpu = a.cpu.Plus(l.at(CPU))
	}
	if l.amounts[Memory] > 0 {
		a.memory = a.memory.Plus(l.at(Memory))
	}
}
