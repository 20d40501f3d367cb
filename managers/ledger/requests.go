package ledger

import (
	"maps"
	"math"
	"slices"
	"sync"

	"github.com/berthd/berth/managers/workload"
)

// Requests adds up what the pods request, beside the one named, and counts them.
// It costs no more where many pods are: what those of the ledger request is
// carried from commit to commit, and a draft adds its own.
func (v *View) Requests(f workload.Features, except string) (sum workload.Quantities, pods int) {
	total, pods := v.pods.requests(f, except)
	sum = make(workload.Quantities, len(total)+1)
	for resource, all := range total {
		for _, class := range all {
			if class.pods > 0 {
				sum[resource] = workload.Sum(sum[resource], class.amount)
			}
		}
	}
	return sum, pods
}

// ClassRequests gives what the pods of each class request; as cheap as Requests.
func (v *View) ClassRequests(f workload.Features) ClassRequests {
	total, _ := v.pods.requests(f, "")
	return ClassRequests{total}
}

// ClassRequests are sums over the pods of each class.
type ClassRequests struct{ all requests }

// Of gives one of the sums. It stops at the end of int64. What is no class has no
// pods, so it is 0 for that.
func (r ClassRequests) Of(class workload.QoSClass, resource workload.Resource) int64 {
	i := slices.Index(classes[:], class)
	if i < 0 {
		return 0
	}
	return r.all[resource][i].amount
}

// requests are sums over pods, by resource and class.
type requests map[workload.Resource][len(classes)]requested

// classes are the classes in the order of requests.
var classes = [...]workload.QoSClass{workload.BestEffort, workload.Burstable, workload.Guaranteed}

// classOf is a pod's place among the classes; whoever has none is the least.
func classOf(p *Pod) int { return max(0, slices.Index(classes[:], p.QoS)) }

// requested is an amount that stops at the end of int64, and how many pods named
// the resource.
type requested struct {
	amount int64
	pods   int
}

// requests are those of the records but one, which are counted too.
func (r records) requests(f workload.Features, except string) (total requests, pods int) {
	total, exact := maps.Clone(r.facts().requests.of(r.base, f)), true
	pods = len(r.base)
	change := func(uid string, now *Pod) {
		if old, ok := r.base[uid]; ok {
			exact = total.subtract(old, f) && exact
			pods--
		}
		if now != nil && uid != except {
			total.add(now, f)
			pods++
		}
	}
	for uid, p := range r.changes {
		change(uid, p)
	}
	if _, changed := r.changes[except]; !changed {
		change(except, nil)
	}
	if !exact {
		total = make(requests)
		for p := range r.all() {
			if p.UID() != except {
				total.add(p, f)
			}
		}
	}
	return total, pods
}

func (r requests) add(p *Pod, f workload.Features) {
	class := classOf(p)
	for resource, n := range requestsOf(p, f) {
		all := r[resource]
		one := &all[class]
		one.amount, one.pods = workload.Sum(one.amount, n), one.pods+1
		r[resource] = all
	}
}

// subtract takes out a pod that has been added, and tells whether the sums are what
// they were before: of one that has stopped at the end nobody knows.
func (r requests) subtract(p *Pod, f workload.Features) (exact bool) {
	exact = true
	class := classOf(p)
	for resource, n := range requestsOf(p, f) {
		all := r[resource]
		one := &all[class]
		exact = exact && one.amount < math.MaxInt64
		one.pods--
		one.amount -= n
		if r[resource] = all; all == [len(classes)]requested{} {
			delete(r, resource)
		}
	}
	return exact
}

// requestsOf is what one pod requests.
func requestsOf(p *Pod, f workload.Features) workload.Quantities {
	own := make(workload.Quantities)
	workload.AddRequests(own, &p.Pod, f)
	return own
}

// lazyRequests are the sums over the pods of a ledger, worked out by the first who
// asks with and without pod-level resources, the one feature that they depend on.
type lazyRequests struct {
	mu  sync.Mutex
	all [2]requests // never changed once they are here; nil until asked for
}

// variant is the place of a feature's sums.
func variant(f workload.Features) int {
	if f.PodLevelResources {
		return 1
	}
	return 0
}

func (l *lazyRequests) of(base map[string]*Pod, f workload.Features) requests {
	l.mu.Lock()
	defer l.mu.Unlock()
	all := &l.all[variant(f)]
	if *all == nil {
		*all = make(requests)
		for _, p := range base {
			(*all).add(p, f)
		}
	}
	return *all
}

// follow takes over what is known before changes, as far as it is.
func (l *lazyRequests) follow(r records) {
	before := &r.facts().requests
	before.mu.Lock()
	defer before.mu.Unlock()
	for i, known := range before.all {
		if known == nil {
			continue
		}
		f := workload.Features{PodLevelResources: i == 1}
		all, exact := maps.Clone(known), true
		for uid, p := range r.changes {
			if old, ok := r.base[uid]; ok {
				exact = all.subtract(old, f) && exact
			}
			if p != nil {
				all.add(p, f)
			}
		}
		if exact {
			l.all[i] = all
		}
	}
}
