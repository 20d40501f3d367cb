package workload

import "slices"

// Change holds what a resize gives a container, or with an empty Container the pod as a whole: its requests and limits of cpu
// and memory. Amounts that are absent stay as they are.
type Change struct {
	Container        string
	Requests, Limits Quantities
	// Excess is what rounding put on Requests and Limits.
	Excess *Excess
}

// With gives a copy of p with the changes, and the first container that p does not have, in which case the copy is of no use.
// Changes of the pod as a whole are ignored if p has no resources as a whole; the caller checks that.
//
// The copy has no class unless p has another one than the computed class: then the class is the agent's, and stays.
func (p *Pod) With(changes []Change, f Features) (out Pod, unknown string) {
	out = *p
	if out.QoS = ""; out.QoSClass(f) != p.QoS {
		out.QoS = p.QoS
	}
	out.Containers = slices.Clone(p.Containers)
	for i := range changes {
		c := &changes[i]
		given := Container{Requests: c.Requests, Limits: c.Limits, Excess: c.Excess}
		if c.Container == "" {
			requests, limits, overhead := out.podLevel()
			if out.Resources == nil {
				continue
			}
			requests, limits = requests.with(given.requests()), limits.with(given.limits())
			out.Resources, out.Excess = &Resources{Requests: requests.amounts, Limits: limits.amounts}, excess(requests, limits, overhead)
			continue
		}
		have := out.Container(c.Container)
		if have == nil {
			return out, c.Container
		}
		requests, limits := have.requests().with(given.requests()), have.limits().with(given.limits())
		have.Requests, have.Limits, have.Excess = requests.amounts, limits.amounts, excess(requests, limits, list{})
	}
	return out, ""
}

// with gives l with the amounts of changes in place of its own.
func (l list) with(changes list) list {
	if len(changes.amounts) == 0 {
		return l
	}
	out := l.copied()
	for r := range changes.amounts {
		delete(out.excess, r)
		out.set(r, changes.at(r))
	}
	if len(out.excess) == 0 {
		out.excess = nil
	}
	return out
}
