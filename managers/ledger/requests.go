package ledger

import (
	"math"
	"slices"

	"github.com/berthd/berth/managers/internal/ordered"
	"github.com/berthd/berth/managers/workload"
)

// Requests returns the sum of the pods' requests, without the excepted pod, and their
// number. Resource claims do not count. Its cost does not grow with the number of pods.
func (v *View) Requests(f workload.Features, except string) (sum workload.Quantities, pods int) {
	s, pods := v.facts.sums, v.pods.Len()-v.facts.resourceClaims
	p, ok := v.pods.Get(except)
	if ok && p.Pod.ResourceClaim == nil {
		pods--
	}
	if base, record, same := s.before(except); same { // a draft's, which may not need its own sums
		s, p = base, record
	}
	total := s.knownRequests()[variant(f)]
	var own workload.Quantities // of the excepted pod
	var class int
	if p != nil && p.Pod.ResourceClaim == nil {
		own, class = requestsOf(p, f), classOf(p)
		if !total.exactWithout(own, class) {
			total, own = requests{}, nil
			for p := range v.pods.Values() {
				if p.UID() != except && p.Pod.ResourceClaim == nil {
					total.change(p, requestsOf(p, f), true)
				}
			}
		}
	}
	sum = make(workload.Quantities, total.byResource.Len()+1)
	for resource, all := range total.byResource.All() {
		if n, ok := own[resource]; ok {
			all[class] = requested{all[class].amount - n, all[class].pods - 1}
		}
		for _, class := range all {
			if class.pods > 0 {
				sum[resource] = workload.Sum(sum[resource], class.amount)
			}
		}
	}
	return sum, pods
}

// ClassRequests returns the requests of the pods of each class; its cost is that of
// Requests.
func (v *View) ClassRequests(f workload.Features) ClassRequests {
	return ClassRequests{v.facts.sums.knownRequests()[variant(f)]}
}

// ClassRequests are sums over the pods of each class.
type ClassRequests struct{ all requests }

// Of returns one sum, limited to the largest int64. It is 0 for an unknown class.
func (r ClassRequests) Of(class workload.QoSClass, resource workload.Resource) int64 {
	i := slices.Index(classes[:], class)
	if i < 0 {
		return 0
	}
	all, _ := r.all.byResource.Get(resource)
	return all[i].amount
}

// requests are sums over pods, by resource and class.
type requests struct {
	byResource ordered.Map[workload.Resource, [len(classes)]requested]
}

// classes are the classes in the order of requests.
var classes = [...]workload.QoSClass{workload.BestEffort, workload.Burstable, workload.Guaranteed}

// classOf is the index of a pod's class; a pod without one counts as the lowest.
func classOf(p *Pod) int { return max(0, slices.Index(classes[:], p.QoS)) }

// requested is an amount, limited to the largest int64, and the number of pods that name
// the resource.
type requested struct {
	amount int64
	pods   int
}

// variant is the index of the sums with or without pod-level resources, the only feature
// that affects them.
func variant(f workload.Features) int {
	if f.PodLevelResources {
		return 1
	}
	return 0
}

// change adds or removes the requests of a pod; see sums.change.
func (r *requests) change(p *Pod, own workload.Quantities, add bool) (exact bool) {
	exact = true
	class := classOf(p)
	for resource, n := range own {
		all, _ := r.byResource.Get(resource)
		if one := &all[class]; add {
			one.amount, one.pods = workload.Sum(one.amount, n), one.pods+1
		} else {
			exact = exact && one.amount < math.MaxInt64
			one.amount, one.pods = one.amount-n, one.pods-1
		}
		if all == [len(classes)]requested{} {
			r.byResource = r.byResource.Delete(resource)
		} else {
			r.byResource = r.byResource.Set(resource, all)
		}
	}
	return exact
}

// exactWithout returns whether the sums minus the requests of a pod are those without the pod.
func (r *requests) exactWithout(own workload.Quantities, class int) bool {
	for resource := range own {
		if all, _ := r.byResource.Get(resource); all[class].amount == math.MaxInt64 {
			return false
		}
	}
	return true
}

// requestsOf is what one pod requests.
func requestsOf(p *Pod, f workload.Features) workload.Quantities {
	own := make(workload.Quantities)
	workload.AddRequests(own, &p.Pod, f)
	return own
}
