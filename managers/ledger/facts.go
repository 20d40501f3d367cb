package ledger

import (
	"maps"
	"sync"

	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/internal/ordered"
	"github.com/berthd/berth/managers/workload"
)

// records are the pods of a view, with what follows from them.
type records struct {
	pods    ordered.Map[string, *Pod]            // by uid
	unknown ordered.Map[string, *UnknownLivePod] // by uid
	facts   facts
}

// facts are derived from the pods of a view, including unknown living ones. They are
// updated from view to view, in time proportional to the change. No other derived data of
// pods is stored.
type facts struct {
	claims int // number of claims of all pods
	// resourceClaims is how many of the pods are resource claims.
	resourceClaims int
	exclusive      cpuset.Set                // out of the shared pool
	contested      cpuset.Set                // CPUs in exclusive that more than one pod has
	holders        ordered.Map[string, *Pod] // the pods that hold devices, by uid
	admissions     *admissions
	sums           *sums
}

// settle computes what a draft computes on first use, so that it does not lead to other views.
func (f *facts) settle() {
	f.admissions.known()
	if f.sums != nil {
		f.sums.known()
	}
}

// admissions has the pods by admission id and uid; see admissionKey. Few drafts need it, so it is
// computed as sums are.
type admissions struct {
	once sync.Once
	// base and the changes since; empty once byKey is known.
	base       *admissions
	gone, come []*Pod
	byKey      ordered.Map[string, *Pod]
}

// known returns the pods, computed if necessary.
func (a *admissions) known() ordered.Map[string, *Pod] {
	if a == nil { // there are no pods
		return ordered.Map[string, *Pod]{}
	}
	a.once.Do(a.add)
	return a.byKey
}

func (a *admissions) add() {
	byKey := a.base.known()
	for _, p := range a.gone {
		byKey = byKey.Delete(admissionKey(p.AdmissionID, p.UID()))
	}
	for _, p := range a.come {
		byKey = byKey.Set(admissionKey(p.AdmissionID, p.UID()), p)
	}
	a.byKey, a.base, a.gone, a.come = byKey, nil, nil, nil
}

func admissionKey(id, uid string) string { return id + "\x00" + uid }

// hold adds the claims of a pod.
func (f *facts) hold(p *Pod) {
	set := p.HeldCPUs()
	if set.Overlaps(f.exclusive) {
		f.contested = f.contested.Union(set.Intersect(f.exclusive))
	}
	f.exclusive = f.exclusive.Union(set)
	if p.holdsDevices() {
		f.holders = f.holders.Set(p.UID(), p)
	}
}

// release removes the claims of a pod. Its CPUs are then free, unless CPUs are contested.
func (f *facts) release(p *Pod) {
	f.exclusive = f.exclusive.Minus(p.HeldCPUs())
	f.holders = f.holders.Delete(p.UID())
}

// put applies changes of pods, nil for removed ones, to records that no view shares yet.
func (r *records) put(changes map[string]*Pod) {
	if len(changes) == 0 {
		return
	}
	contested := !r.facts.contested.IsEmpty()
	next := r.facts.next()
	for uid := range changes {
		if old, ok := r.pods.Get(uid); ok {
			r.facts.release(old)
			r.facts.claims -= len(old.Claims)
			r.facts.resourceClaims -= resourceClaims(old)
			next.sums.gone = append(next.sums.gone, old)
		}
	}
	for uid, p := range changes {
		if p == nil {
			r.pods = r.pods.Delete(uid)
			continue
		}
		r.pods = r.pods.Set(uid, p)
		r.facts.hold(p)
		r.facts.claims += len(p.Claims)
		r.facts.resourceClaims += resourceClaims(p)
		next.sums.come = append(next.sums.come, p)
	}
	r.follow(next)
	if contested { // released CPUs may belong to another pod, too
		r.derive()
	}
}

// derived is what a view computes on first use, in one allocation: most views are of drafts, and
// differ in one pod.
type derived struct {
	sums       sums
	admissions admissions
	gone, come [1]*Pod
}

// next returns what follows from the changes that are put into its sums.
func (f *facts) next() *derived {
	d := &derived{sums: sums{base: f.sums}, admissions: admissions{base: f.admissions}}
	d.sums.gone, d.sums.come = d.gone[:0], d.come[:0]
	return d
}

// follow ends the changes.
func (r *records) follow(d *derived) {
	d.sums.pods, d.sums.unknown = r.pods, r.unknown
	d.admissions.gone, d.admissions.come = d.sums.gone, d.sums.come
	r.facts.sums, r.facts.admissions = &d.sums, &d.admissions
}

// derive computes the facts from all pods.
func (r *records) derive() {
	r.facts = facts{sums: &sums{pods: r.pods, unknown: r.unknown}, admissions: new(admissions)}
	for p := range r.allocations() {
		r.facts.hold(p)
		r.facts.admissions.come = append(r.facts.admissions.come, p)
	}
	for p := range r.pods.Values() {
		r.facts.claims += len(p.Claims)
		r.facts.resourceClaims += resourceClaims(p)
	}
}

// resourceClaims returns 1 for a resource claim and 0 for a pod.
func resourceClaims(p *Pod) int {
	if p.Pod.ResourceClaim != nil {
		return 1
	}
	return 0
}

// sums are the requests and memory of all pods. For a draft, requests and memory are each computed
// on first use, from the sums of its base; for the ledger, at the commit.
type sums struct {
	pods    ordered.Map[string, *Pod]
	unknown ordered.Map[string, *UnknownLivePod]

	mu sync.Mutex
	// base and the changes since; guarded by mu, and empty once all sums are known.
	base       *sums
	gone, come []*Pod

	requests [2]requests // guarded by mu; without and with pod-level resources; see variant
	memory   memorySum   // guarded by mu
	// knowsRequests and knowsMemory are whether these are computed; guarded by mu.
	knowsRequests, knowsMemory bool
}

// memorySum is the memory of pods, and that of resource claims, which count nowhere else.
type memorySum struct{ pods, claimed memoryHeld }

// known computes all sums if necessary.
func (s *sums) known() {
	s.knownRequests()
	s.knownMemory()
}

// knownRequests returns the requests, computed if necessary.
func (s *sums) knownRequests() [2]requests {
	if s == nil { // there are no pods
		return [2]requests{}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.knowsRequests {
		s.requests = s.base.knownRequests()
		s.compute(s.changeRequests, func() { s.requests = [2]requests{} })
		s.knowsRequests = true
		s.release()
	}
	return s.requests
}

// knownMemory returns the memory, computed if necessary.
func (s *sums) knownMemory() memorySum {
	if s == nil { // there are no pods
		return memorySum{}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.knowsMemory {
		s.memory = s.base.knownMemory()
		s.compute(s.changeMemory, func() { s.memory = memorySum{} })
		s.knowsMemory = true
		s.release()
	}
	return s.memory
}

// before returns the sums of the base and its record of a pod, nil if it has none. It returns
// false unless this pod differs, and no other.
func (s *sums) before(uid string) (base *sums, record *Pod, ok bool) {
	if s == nil {
		return nil, nil, false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	now, _ := s.pods.Get(uid)
	switch {
	case s.base == nil || s.knowsRequests || len(s.gone)+len(s.come) == 0 || len(s.gone) > 1 || len(s.come) > 1:
		return nil, nil, false
	case len(s.come) == 1 && s.come[0] != now, len(s.gone) == 1 && s.gone[0].UID() != uid:
		return nil, nil, false
	case len(s.gone) == 1:
		record = s.gone[0]
	}
	return s.base, record, true
}

// release lets go of the base if it is not needed any more. mu must be held.
func (s *sums) release() {
	if s.knowsRequests && s.knowsMemory {
		s.base, s.gone, s.come = nil, nil, nil
	}
}

// compute changes a sum from that of the base, or computes it anew if it cannot be reduced. mu
// must be held.
func (s *sums) compute(change func(p *Pod, add bool) (exact bool), reset func()) {
	exact := s.base != nil || len(s.come) == s.pods.Len()+s.unknown.Len()
	for _, p := range s.gone {
		exact = change(p, false) && exact
	}
	for _, p := range s.come {
		change(p, true)
	}
	if exact {
		return
	}
	reset()
	for p := range s.pods.Values() {
		change(p, true)
	}
	for u := range s.unknown.Values() {
		change(u.holds, true)
	}
}

// changeMemory adds or removes a pod, and returns whether removing it gives the sum without it.
// A sum that was limited by its maximum cannot be reduced.
func (s *sums) changeMemory(p *Pod, add bool) (exact bool) {
	if p.Pod.ResourceClaim != nil {
		return s.memory.claimed.change(p, add)
	}
	return s.memory.pods.change(p, add)
}

// changeRequests is changeMemory for requests.
func (s *sums) changeRequests(p *Pod, add bool) (exact bool) {
	if p.Pod.ResourceClaim != nil {
		return true
	}
	alone, podLevel := requestsOf(p, workload.Features{}), requestsOf(p, workload.Features{PodLevelResources: true})
	same := s.requests[0].byResource.Same(s.requests[1].byResource) && maps.Equal(alone, podLevel)
	exact = s.requests[0].change(p, alone, add)
	if same { // as on a node without pod-level resources
		s.requests[1] = s.requests[0]
		return exact
	}
	return s.requests[1].change(p, podLevel, add) && exact
}
