package workload

// QoSClass is the quality of service class of a pod, as Kubernetes names it.
type QoSClass string

const (
	// BestEffort pods request no cpu and no memory.
	BestEffort QoSClass = "BestEffort"
	// Burstable pods are neither of the others.
	Burstable QoSClass = "Burstable"
	// Guaranteed pods limit cpu and memory everywhere and request exactly their limits.
	Guaranteed QoSClass = "Guaranteed"
)

// QoSClasses has all classes, the one with the most guarantees first.
var QoSClasses = [...]QoSClass{Guaranteed, Burstable, BestEffort}

// QoSClass gives the class of the pod: the one handed in as Pod.QoS, else the computed one. With pod-level resources in
// force and set (HasPodLevel), the containers do not matter. Else a pod has the class that all its containers have, init
// containers too, and is Burstable if they differ.
func (p *Pod) QoSClass(f Features) QoSClass {
	if p.QoS != "" {
		return p.QoS
	}
	if f.PodLevelResources && p.HasPodLevel() {
		requests, limits, _ := p.podLevel()
		return classOf(requests, limits)
	}
	var class QoSClass
	for _, c := range p.Walk() {
		switch of := classOf(c.requests(), c.limits()); class {
		case "", of:
			class = of
		default:
			return Burstable
		}
	}
	if class == "" {
		return BestEffort
	}
	return class
}

// classOf gives the class of one list of requests and limits. Only cpu and memory count.
func classOf(requests, limits list) QoSClass {
	cpu, memory := requests.at(CPU), requests.at(Memory)
	switch none := (Exact{}); {
	case cpu != limits.at(CPU) || memory != limits.at(Memory) || (cpu == none) != (memory == none):
		return Burstable
	case cpu == none:
		return BestEffort
	default:
		return Guaranteed
	}
}
