package explain

import (
	"fmt"
	"maps"
	"slices"

	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/workload"
)

// adjustable is one amount of a pod's specification that can be lowered, request and
// limit alike. Amounts are counted in steps of a unit that makes sense: whole
// CPUs, mebibytes, pages, devices.
type adjustable struct {
	container int // by index; -1 for the pod's own resources
	resource  workload.Resource
	unit      int64
	// request is the requested amount, and now the same in steps, rounded up; least
	// is the smallest that is tried.
	request, now, least int64
	// unlimited means that only the request is lowered: the limit is another one.
	unlimited bool
}

// requests searches smaller amounts: of one resource, or if that does not help,
// of several together. For whole cores, larger requests are tried too.
func (s *search) requests() {
	adjustables := s.adjustables()
	alone := false
	for _, l := range adjustables {
		if l.resource == workload.CPU && s.wholeCores(l) {
			alone = true
			continue
		}
		to, ok := s.largest(s.Request.Pod, l)
		if perCore := s.perCore(); !ok && l.resource == workload.CPU && perCore > 1 && l.now%perCore == 0 {
			// Single CPUs may be refused where whole cores are not.
			l.unit, l.now = l.unit*perCore, l.now/perCore
			to, ok = s.largest(s.Request.Pod, l)
		}
		if ok {
			s.offerRequest(adjustment{l, to})
			alone = true
		}
	}
	if alone || len(adjustables) < 2 {
		return
	}
	pod := *s.Request.Pod
	for _, l := range adjustables {
		pod = l.set(&pod, l.least)
	}
	if !s.fits(change{pod: &pod}) {
		return
	}
	var set []adjustment
	for _, l := range adjustables {
		to := l.now
		if whole := l.set(&pod, to); !s.fits(change{pod: &whole}) {
			to, _ = s.largest(&pod, l)
			to = max(to, l.least) // with which the pod was seen to fit
			set = append(set, adjustment{l, to})
		}
		pod = l.set(&pod, to)
	}
	if len(set) > 0 {
		s.offerRequest(set...)
	}
}

// wholeCores answers a refusal to tear cores with the whole cores next to the
// request, below and above.
func (s *search) wholeCores(l adjustable) bool {
	perCore := s.perCore()
	if reason, _ := errdefs.ReasonOf(s.Err); reason != errdefs.SMTAlignmentError || perCore < 2 || l.now%perCore == 0 {
		return false
	}
	below := l.now - l.now%perCore
	for _, to := range []int64{below, below + perCore} {
		if pod := l.set(s.Request.Pod, to); to > 0 && s.fits(change{pod: &pod}) {
			s.offerRequest(adjustment{l, to})
		}
	}
	return true
}

func (s *search) perCore() int64 { return int64(s.Base.Machine().CPUsPerCore()) }

// largest finds the largest smaller amount with which the pod fits; false if
// there is none. It is exact where less always fits better; preferences may make
// a request of fewer nodes harder to serve, and then it may find a smaller one.
func (s *search) largest(pod *workload.Pod, l adjustable) (int64, bool) {
	fits := func(to int64) bool {
		changed := l.set(pod, to)
		return s.fits(change{pod: &changed})
	}
	low, high := l.least, l.now
	if low >= high || !fits(low) {
		return 0, false
	}
	// What is free somewhere is likely to be the answer.
	for _, short := range s.shortages {
		if free := l.steps(short); short.Resource == string(l.resource) && low < free && free < high {
			if fits(free) {
				low = free
			} else {
				high = free
			}
		}
	}
	if low+1 < high && fits(low+1) {
		low++
	} else {
		high = low + 1
	}
	for high-low > 1 {
		if mid := low + (high-low)/2; fits(mid) {
			low = mid
		} else {
			high = mid
		}
	}
	return low, true
}

// adjustables lists what can be lowered for the request that failed, by resource.
func (s *search) adjustables() []adjustable {
	pod, at := s.Request.Pod, s.Request.Container
	best, full := map[workload.Resource]adjustable{}, s.full()
	add := func(container int, requests, limits workload.Quantities) {
		for r, request := range requests {
			l, ok := newAdjustable(container, r, request, limits[r], r == full)
			if have, known := best[r]; ok && (!known || have.now < l.now) {
				best[r] = l
			}
		}
	}
	for i := range pod.Containers {
		if at < 0 || at == i {
			add(i, pod.Containers[i].Requests, pod.Containers[i].Limits)
		}
	}
	if at < 0 && pod.HasPodLevel() {
		for r := range best {
			if r.PodLevel() {
				delete(best, r)
			}
		}
		add(-1, pod.Resources.Requests, pod.Resources.Limits)
	}
	var adjustables []adjustable
	for _, r := range slices.Sorted(maps.Keys(best)) {
		adjustables = append(adjustables, best[r])
	}
	return adjustables
}

// newAdjustable makes an adjustable of an amount that a manager allocates: only requests that
// equal the limit are, and whole CPUs. Where the node as a whole is full, any
// request counts.
func newAdjustable(container int, r workload.Resource, request, limit int64, full bool) (adjustable, bool) {
	l := adjustable{container: container, resource: r, unit: 1, least: 1, unlimited: request != limit}
	switch {
	case r == workload.CPU:
		if l.unit = 1000; request%l.unit != 0 {
			return l, false
		}
	case r.IsHugePages():
		l.unit, _ = workload.HugePageSize(r)
	case r == workload.Memory:
		if request >= mebi {
			l.unit = mebi
		}
	case r.IsExtended():
		l.least = 0 // a pod can do without devices
	default:
		return l, false
	}
	if l.unlimited && !full || request <= 0 || l.unit <= 0 {
		return l, false
	}
	l.request, l.now = request, (request+l.unit-1)/l.unit
	return l, true
}

const mebi = 1 << 20

// steps is the free amount of a shortage, in the adjustable's steps.
func (l adjustable) steps(s ledger.Shortage) int64 {
	if l.resource == workload.CPU {
		return int64(s.Free) * 1000 / l.unit
	}
	return int64(s.Free / uint64(l.unit))
}

// set returns the pod with another amount.
func (l adjustable) set(pod *workload.Pod, steps int64) workload.Pod {
	out := *pod
	if l.container < 0 {
		out.Resources = &workload.Resources{
			Requests: l.put(pod.Resources.Requests, steps), Limits: l.limit(pod.Resources.Limits, steps),
		}
		out.Excess = l.exact(pod.Excess)
		return out
	}
	out.Containers = slices.Clone(pod.Containers)
	c := &out.Containers[l.container]
	c.Requests, c.Limits = l.put(c.Requests, steps), l.limit(c.Limits, steps)
	c.Excess = l.exact(c.Excess)
	return out
}

func (l adjustable) put(q workload.Quantities, steps int64) workload.Quantities {
	q = maps.Clone(q)
	q[l.resource] = l.amount(steps)
	if steps == 0 {
		delete(q, l.resource)
	}
	return q
}

func (l adjustable) limit(q workload.Quantities, steps int64) workload.Quantities {
	if l.unlimited {
		return q
	}
	return l.put(q, steps)
}

// amount is a number of steps as pods count the resource.
func (l adjustable) amount(steps int64) int64 {
	if steps == l.now {
		return l.request
	}
	return steps * l.unit
}

// exact removes the effect of rounding from the amount.
func (l adjustable) exact(x *workload.Excess) *workload.Excess {
	if x == nil {
		return nil
	}
	out := workload.Excess{Requests: maps.Clone(x.Requests), Limits: maps.Clone(x.Limits), Overhead: x.Overhead}
	delete(out.Requests, l.resource)
	delete(out.Limits, l.resource)
	return &out
}

// adjustment is an adjustable with what it is set to.
type adjustment struct {
	adjustable
	to int64
}

func (s *search) offerRequest(set ...adjustment) {
	offer := ledger.Suggestion{Kind: ledger.SuggestRequest}
	text, owner := "with ", ""
	for i, a := range set {
		who := "the pod"
		change := ledger.RequestChange{Resource: string(a.resource), From: a.own(a.now), To: a.own(a.to)}
		if a.container >= 0 {
			change.Container = s.Request.Pod.Containers[a.container].Name
			who = "container " + change.Container
		}
		offer.Requests = append(offer.Requests, change)
		if i > 0 && who != owner {
			text += " for " + owner
		}
		if i > 0 {
			text += " and "
		}
		text += fmt.Sprintf("%s instead of %s", a.phrase(a.to), a.resource.Text(a.request))
		owner = who
	}
	offer.Text, offer.How = text+" for "+owner, s.lines(set)
	s.found = append(s.found, offer)
}

// own is an amount in the resource's own unit.
func (a adjustment) own(steps int64) uint64 { return own(a.resource, a.amount(steps)) }

func own(r workload.Resource, amount int64) uint64 {
	if r == workload.CPU {
		return uint64(amount / 1000)
	}
	return uint64(amount)
}

// phrase names an amount in a sentence.
func (a adjustment) phrase(steps int64) string {
	text := a.resource.Text(a.amount(steps))
	switch {
	case a.resource == workload.CPU && text == "1":
		return "1 CPU"
	case a.resource == workload.CPU:
		return text + " CPUs"
	case steps == 0:
		return "no " + string(a.resource)
	case a.resource == workload.Memory, a.resource.IsHugePages():
		return text + " of " + string(a.resource)
	}
	return text + " " + string(a.resource)
}
