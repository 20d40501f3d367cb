package workload

// EffectiveRequests gives what the pod needs as a whole: the total of its containers (PodTotal, for every resource that any of
// them names), replaced per resource by a pod-level request where there is one and the feature is on, plus the overhead. To
// leave the overhead out, as for the pod's sandbox or for device hints, pass a copy of the pod without it.
func EffectiveRequests(p *Pod, f Features) Quantities {
	total := totals(p, (*Container).requests)
	podLevel, _, overhead := p.podLevel()
	if f.PodLevelResources {
		total.replace(podLevel)
	}
	for r := range overhead.amounts {
		total.set(r, total.at(r).plus(overhead.at(r)))
	}
	return total.amounts
}

// EffectiveLimits gives the limits of the pod as a whole, by the same rule as EffectiveRequests, except that the overhead is
// added only to limits that are present and not zero. A limit in the result does not mean that everything in the pod is
// limited: see DeclaredLimits.
func EffectiveLimits(p *Pod, f Features) Quantities {
	total := totals(p, (*Container).limits)
	_, podLevel, overhead := p.podLevel()
	if f.PodLevelResources {
		total.replace(podLevel)
	}
	for r := range overhead.amounts {
		if total.amounts[r] != 0 {
			total.set(r, total.at(r).plus(overhead.at(r)))
		}
	}
	return total.amounts
}

// Declared says for which resources every part of a pod is limited, so that the pod's cgroup may carry a limit.
type Declared struct {
	CPU, Memory bool
}

// DeclaredLimits says whether cpu and memory are limited in every container, or for the pod as a whole. An ordinary init
// container counts as limited if it or any sidecar before it is: the kubelet looks at the sum of both, and so does berth.
func DeclaredLimits(p *Pod, f Features) Declared {
	return Declared{CPU: declared(p, f, CPU), Memory: declared(p, f, Memory)}
}

func declared(p *Pod, f Features, r Resource) bool {
	if f.PodLevelResources && p.Resources != nil && p.Resources.Limits[r] > 0 {
		return true
	}
	var sidecars int64
	for _, c := range p.Walk() {
		limit := c.Limits[r]
		switch c.Role {
		case Sidecar:
			sidecars = sum(sidecars, limit)
			limit = sidecars
		case Init:
			limit = sum(sidecars, limit)
		}
		if limit == 0 {
			return false
		}
	}
	return true
}

// totals gives PodTotal for every resource that of names in any container, in one pass and without rounding.
func totals(p *Pod, of func(*Container) list) list {
	running := map[Resource]total{}
	for _, c := range p.Walk() {
		l := of(c)
		for r := range l.amounts {
			running[r] = running[r].with(c.Role, l.at(r))
		}
	}
	sums := list{amounts: make(Quantities, len(running))}
	for r, t := range running {
		sums.set(r, t.amount())
	}
	return sums
}

// replace puts pod-level amounts over the totals, for the resources that may be given at pod level.
func (l *list) replace(podLevel list) {
	for r := range podLevel.amounts {
		if r.PodLevel() {
			l.set(r, podLevel.at(r))
		}
	}
}
