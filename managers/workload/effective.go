package workload

// EffectiveRequests gives what the pod needs as a whole: the total of its containers (PodTotal, for every resource that any of
// them names), replaced per resource by a pod-level request where there is one and the feature is on, plus the overhead. To
// leave the overhead out, as for the pod's sandbox or for device hints, pass a copy of the pod without it.
func EffectiveRequests(p *Pod, f Features) Quantities {
	var room [usualNames]needed
	return requested(p, f, room[:0]).list().amounts
}

// EffectiveRequest gives one amount of EffectiveRequests, without making the others; 0 where there is none.
func EffectiveRequest(p *Pod, f Features, r Resource) int64 {
	var room [usualNames]needed
	all, i := requested(p, f, room[:0]).with(r)
	return all[i].Whole
}

// AddRequests adds EffectiveRequests to a sum over pods, without making the amounts of each. What is below zero, as in no
// valid pod, counts as nothing.
func AddRequests(to Quantities, p *Pod, f Features) {
	var room [usualNames]needed
	for _, n := range requested(p, f, room[:0]) {
		to[n.resource] = Sum(to[n.resource], max(n.Whole, 0))
	}
}

func requested(p *Pod, f Features, room needs) needs {
	all := totals(p, (*Container).requests, room)
	podLevel, _, overhead := p.podLevel()
	if f.PodLevelResources {
		all = all.replaced(podLevel)
	}
	for r := range overhead.amounts {
		var i int
		all, i = all.with(r)
		all[i].Exact = all[i].Plus(overhead.at(r))
	}
	return all
}

// EffectiveLimits gives the limits of the pod as a whole, by the same rule as EffectiveRequests, except that the overhead is
// added only to limits that are present and not zero. A limit in the result does not mean that everything in the pod is
// limited: see DeclaredLimits.
func EffectiveLimits(p *Pod, f Features) Quantities {
	var room [usualNames]needed
	all := totals(p, (*Container).limits, room[:0])
	_, podLevel, overhead := p.podLevel()
	if f.PodLevelResources {
		all = all.replaced(podLevel)
	}
	for i := range all {
		if n := &all[i]; n.Whole != 0 {
			n.Exact = n.Plus(overhead.at(n.resource))
		}
	}
	return all.list().amounts
}

// Declared is the set of resources for which every part of a pod is limited, so that the pod's cgroup may carry a limit.
type Declared struct {
	CPU, Memory bool
}

// DeclaredLimits reports whether cpu and memory are limited in every container, init containers too, or for the pod as a
// whole.
func DeclaredLimits(p *Pod, f Features) Declared {
	return Declared{CPU: declared(p, f, CPU), Memory: declared(p, f, Memory)}
}

func declared(p *Pod, f Features, r Resource) bool {
	if f.PodLevelResources && p.Resources != nil && p.Resources.Limits[r] > 0 {
		return true
	}
	for _, c := range p.Walk() {
		if c.Limits[r] == 0 {
			return false
		}
	}
	return true
}

// needed is what a pod needs of one resource.
type needed struct {
	resource Resource
	running  total
	Exact    // of running, in the end
}

// needs are in no particular order. They are few: looking through them costs less than a map.
type needs []needed

// with returns the needs with a resource among them, and its place.
func (n needs) with(r Resource) (needs, int) {
	for i := range n {
		if n[i].resource == r {
			return n, i
		}
	}
	return append(n, needed{resource: r}), len(n)
}

// totals gives PodTotal for every resource that of names in any container, in one pass and without rounding. It appends to
// room, which is empty.
func totals(p *Pod, of func(*Container) list, room needs) needs {
	for _, c := range p.Walk() {
		l := of(c)
		for r := range l.amounts {
			var i int
			room, i = room.with(r)
			room[i].running = room[i].running.with(c.Role, l.at(r))
		}
	}
	for i := range room {
		room[i].Exact = room[i].running.amount()
	}
	return room
}

// replaced puts pod-level amounts over the totals, for the resources that may be given at pod level.
func (n needs) replaced(podLevel list) needs {
	for r := range podLevel.amounts {
		if r.PodLevel() {
			var i int
			n, i = n.with(r)
			n[i].Exact = podLevel.at(r)
		}
	}
	return n
}

// list gives the amounts as a list that may be written to.
func (n needs) list() list {
	l := list{amounts: make(Quantities, len(n))}
	for i := range n {
		l.set(n[i].resource, n[i].Exact)
	}
	return l
}
