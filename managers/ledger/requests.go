package ledger

import (
	"maps"
	"math"
	"sync"

	"github.com/berthd/berth/managers/workload"
)

// Requests adds up what the pods request, beside the one named, and counts them.
// It costs no more where many pods are: what those of the ledger request is
// carried from commit to commit, and a draft adds its own.
func (v *View) Requests(f workload.Features, except string) (sum workload.Quantities, pods int) {
	r := v.pods
	base := r.facts().requests.of(r.base, f)
	total, exact := maps.Clone(base), true
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
	sum = make(workload.Quantities, len(total)+1)
	for resource, all := range total {
		sum[resource] = all.amount
	}
	return sum, pods
}

// requests are sums over pods, by resource.
type requests map[workload.Resource]requested

// requested is an amount that stops at the end of int64, and how many pods named
// the resource.
type requested struct {
	amount int64
	pods   int
}

func (r requests) add(p *Pod, f workload.Features) {
	for resource, n := range requestsOf(p, f) {
		all := r[resource]
		all.amount, all.pods = saturated(all.amount, n), all.pods+1
		r[resource] = all
	}
}

// subtract takes out a pod that has been added, and tells whether the sums are what
// they were before: of one that has stopped at the end nobody knows.
func (r requests) subtract(p *Pod, f workload.Features) (exact bool) {
	exact = true
	for resource, n := range requestsOf(p, f) {
		all := r[resource]
		exact = exact && all.amount < math.MaxInt64
		if all.pods--; all.pods == 0 {
			delete(r, resource)
			continue
		}
		all.amount -= n
		r[resource] = all
	}
	return exact
}

// requestsOf is what one pod requests.
func requestsOf(p *Pod, f workload.Features) workload.Quantities {
	own := make(workload.Quantities)
	workload.AddRequests(own, &p.Pod, f)
	return own
}

func saturated(a, b int64) int64 {
	if a > math.MaxInt64-b {
		return math.MaxInt64
	}
	return a + b
}

// lazyRequests are the sums over the pods of a ledger, worked out by the first who
// asks, and again for who asks under other features.
type lazyRequests struct {
	mu       sync.Mutex
	features workload.Features
	all      requests // never changed once it is here; nil until asked for
}

func (l *lazyRequests) of(base map[string]*Pod, f workload.Features) requests {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.all == nil || l.features != f {
		l.all, l.features = make(requests), f
		for _, p := range base {
			l.all.add(p, f)
		}
	}
	return l.all
}

// follow takes over what is known before changes, as far as it is.
func (l *lazyRequests) follow(r records) {
	before := &r.facts().requests
	before.mu.Lock()
	defer before.mu.Unlock()
	if before.all == nil {
		return
	}
	all, exact := maps.Clone(before.all), true
	for uid, p := range r.changes {
		if old, ok := r.base[uid]; ok {
			exact = all.subtract(old, before.features) && exact
		}
		if p != nil {
			all.add(p, before.features)
		}
	}
	if exact {
		l.all, l.features = all, before.features
	}
}
