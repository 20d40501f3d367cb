package workload

// QoSClass is the quality of service class of a pod, in Kubernetes' spelling.
type QoSClass string

const (
	// BestEffort pods ask for no cpu and no memory.
	BestEffort QoSClass = "BestEffort"
	// Burstable pods are neither of the others.
	Burstable QoSClass = "Burstable"
	// Guaranteed pods limit cpu and memory everywhere and request exactly their limits.
	Guaranteed QoSClass = "Guaranteed"
)

// QoSClass gives the class of the pod: the one handed in as Pod.QoS, else the computed one. Only positive amounts of cpu and
// memory count. With pod-level resources in force and Resources present, even empty, the containers are not looked at; so a
// pod with empty Resources is BestEffort whatever its containers ask (as Kubernetes 1.36 has it; kubernetes#135082).
// Requests and limits are compared as sums over the containers, not container by container.
func (p *Pod) QoSClass(f Features) QoSClass {
	if p.QoS != "" {
		return p.QoS
	}
	requests, limits := Quantities{}, Quantities{}
	complete := true // everything that must be limited in cpu and memory is
	count := func(req, lim Quantities) {
		for _, r := range []Resource{CPU, Memory} {
			addPositive(requests, r, req[r])
			addPositive(limits, r, lim[r])
			complete = complete && lim[r] > 0
		}
	}
	if f.PodLevelResources && p.Resources != nil {
		count(p.Resources.Requests, p.Resources.Limits)
		complete = complete || len(p.Resources.Limits) == 0
	} else {
		for _, c := range p.Walk() {
			count(c.Requests, c.Limits)
		}
	}
	switch {
	case len(requests) == 0 && len(limits) == 0:
		return BestEffort
	case complete && sameAmounts(requests, limits):
		return Guaranteed
	default:
		return Burstable
	}
}

func addPositive(to Quantities, r Resource, amount int64) {
	if amount > 0 {
		to[r] = sum(to[r], amount)
	}
}

// sameAmounts needs no presence test: addPositive stores no zeros.
func sameAmounts(a, b Quantities) bool {
	return len(a) == len(b) && a[CPU] == b[CPU] && a[Memory] == b[Memory]
}
