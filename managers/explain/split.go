package explain

import (
	"fmt"
	"maps"
	"slices"

	"github.com/berthd/berth/managers/hint"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/topology"
	"github.com/berthd/berth/managers/workload"
)

// split divides the container that does not fit into two that share its amounts. That helps where the policy places each container
// by itself, and a half fits on a NUMA node that is too small for the whole.
func (s *search) split() {
	pod, at := s.Request.Pod, s.Request.Container
	strict := s.Policy.Policy() == topology.SingleNUMANode || s.Policy.Policy() == topology.Restricted
	if !strict || s.Policy.Scope() != hint.ContainerScope || at < 0 || pod.ResourceClaim != nil {
		return
	}
	whole := &pod.Containers[at]
	name := whole.Name + "-2"
	if whole.Role != workload.App || len(whole.ExternalDevices) > 0 || pod.Container(name) != nil || !s.divisible(whole) {
		return
	}
	for _, swap := range []bool{false, true} { // a single device goes to either of them
		a, b := *whole, *whole
		a.Excess, b.Excess, b.Name = nil, nil, name
		a.Requests, b.Requests = s.halves(whole.Requests, swap)
		a.Limits, b.Limits = s.halves(whole.Limits, swap)
		two := *pod
		two.Containers = slices.Concat(pod.Containers[:at], []workload.Container{a, b}, pod.Containers[at+1:])
		if s.fits(change{pod: &two}) {
			s.offerSplit(whole, &a, &b)
			return
		}
		if !slices.ContainsFunc(slices.Collect(maps.Keys(whole.Requests)), func(r workload.Resource) bool {
			return r.IsExtended() && whole.Requests[r]%2 != 0
		}) {
			return
		}
	}
}

// divisible reports whether both halves of a container have CPUs or devices of their own.
func (s *search) divisible(c *workload.Container) bool {
	cpus := c.Requests[workload.CPU]
	return cpus%1000 == 0 && cpus >= 2*s.cores() && c.Limits[workload.CPU] == cpus
}

// cores is the unit in which CPUs are divided, in thousandths: whole cores have no other container on them.
func (s *search) cores() int64 { return 1000 * max(s.perCore(), 1) }

// halves divides amounts; what is left over is in the first half, of devices in the second if swap is set.
func (s *search) halves(q workload.Quantities, swap bool) (first, second workload.Quantities) {
	if q == nil {
		return nil, nil
	}
	first, second = workload.Quantities{}, workload.Quantities{}
	for r, n := range q {
		unit := int64(1)
		switch {
		case r == workload.CPU && n%s.cores() == 0:
			unit = s.cores()
		case r == workload.CPU:
			unit = 1000
		case r.IsHugePages():
			unit, _ = workload.HugePageSize(r)
		case r == workload.Memory && n >= 2*mebi:
			unit = mebi
		}
		half := n / max(unit, 1) / 2 * unit
		more, less := n-half, half
		if swap && r.IsExtended() {
			more, less = less, more
		}
		for to, amount := range map[*workload.Quantities]int64{&first: more, &second: less} {
			if amount > 0 {
				(*to)[r] = amount
			}
		}
	}
	return first, second
}

func (s *search) offerSplit(whole, first, second *workload.Container) {
	offer := ledger.Suggestion{Kind: ledger.SuggestSplit, Text: fmt.Sprintf(
		"with two containers, %s and %s, that share the amounts of container %s", first.Name, second.Name, whole.Name)}
	for i, c := range []*workload.Container{first, second} {
		for _, r := range slices.Sorted(maps.Keys(whole.Requests)) {
			change := ledger.RequestChange{Container: c.Name, Resource: string(r), To: own(r, c.Requests[r])}
			if i == 0 {
				change.From = own(r, whole.Requests[r])
			}
			offer.Requests = append(offer.Requests, change)
		}
		where := "   # container " + c.Name
		if i > 0 { // containers are placed in the order of the pod
			where += ", next after " + first.Name
		}
		offer.How = append(offer.How, resources(c.Limits, c.Requests)+where)
	}
	s.found = append(s.found, offer)
}
