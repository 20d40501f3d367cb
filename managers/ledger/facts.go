package ledger

import (
	"maps"
	"sync"

	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/internal/ordered"
	"github.com/berthd/berth/managers/workload"
)

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
	f.sums.known()
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
	set := nodeCPUs(p)
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
	f.exclusive = f.exclusive.Minus(nodeCPUs(p))
	f.holders = f.holders.Delete(p.UID())
}

// put applies changes of pods, nil for removed ones, to a view that is not shared yet.
func (v *View) put(changes map[string]*Pod) {
	if len(changes) == 0 {
		return
	}
	contested := !v.facts.contested.IsEmpty()
	next := &sums{base: v.facts.sums}
	for uid := range changes {
		if old, ok := v.pods.Get(uid); ok {
			v.facts.release(old)
			v.facts.claims -= len(old.Claims)
			v.facts.resourceClaims -= resourceClaims(old)
			next.gone = append(next.gone, old)
		}
	}
	for uid, p := range changes {
		if p == nil {
			v.pods = v.pods.Delete(uid)
			continue
		}
		v.pods = v.pods.Set(uid, p)
		v.facts.hold(p)
		v.facts.claims += len(p.Claims)
		v.facts.resourceClaims += resourceClaims(p)
		next.come = append(next.come, p)
	}
	next.pods, next.unknown = v.pods, v.unknown
	v.facts.sums = next
	v.facts.admissions = &admissions{base: v.facts.admissions, gone: next.gone, come: next.come}
	if contested { // released CPUs may belong to another pod, too
		v.derive()
	}
}

// derive computes the facts from all pods.
func (v *View) derive() {
	v.facts = facts{sums: &sums{pods: v.pods, unknown: v.unknown}, admissions: new(admissions)}
	for p := range v.allocations() {
		v.facts.hold(p)
		v.facts.admissions.come = append(v.facts.admissions.come, p)
	}
	for p := range v.pods.Values() {
		v.facts.claims += len(p.Claims)
		v.facts.resourceClaims += resourceClaims(p)
	}
}

// resourceClaims returns 1 for a resource claim and 0 for a pod.
func resourceClaims(p *Pod) int {
	if p.Pod.ResourceClaim != nil {
		return 1
	}
	return 0
}

// sums are the requests and memory of all pods. For a draft they are computed on first use,
// from the sums of its base; for the ledger, at the commit.
type sums struct {
	once    sync.Once
	pods    ordered.Map[string, *Pod]
	unknown ordered.Map[string, *UnknownLivePod]
	// base and the changes since; empty once the sums are known.
	base       *sums
	gone, come []*Pod

	requests [2]requests // without and with pod-level resources; see variant
	memory   memoryHeld
	claimed  memoryHeld // of resource claims, which count nowhere else
}

// known returns the sums, computed if necessary.
func (s *sums) known() *sums {
	if s == nil { // there are no pods
		return new(sums)
	}
	s.once.Do(s.add)
	return s
}

func (s *sums) add() {
	if s.base != nil {
		base := s.base.known()
		s.requests, s.memory, s.claimed = base.requests, base.memory, base.claimed
	}
	exact := s.base != nil || len(s.come) == s.pods.Len()+s.unknown.Len()
	for _, p := range s.gone {
		exact = s.change(p, false) && exact
	}
	for _, p := range s.come {
		s.change(p, true)
	}
	s.base, s.gone, s.come = nil, nil, nil
	if exact {
		return
	}
	s.requests, s.memory, s.claimed = [2]requests{}, memoryHeld{}, memoryHeld{}
	for p := range s.pods.Values() {
		s.change(p, true)
	}
	for u := range s.unknown.Values() {
		s.change(u.holds, true)
	}
}

// change adds or removes a pod, and returns whether removing it gives the sums without it.
// A sum that was limited by its maximum cannot be reduced.
func (s *sums) change(p *Pod, add bool) (exact bool) {
	if p.Pod.ResourceClaim != nil {
		return s.claimed.change(p, add)
	}
	exact = s.memory.change(p, add)
	alone, podLevel := requestsOf(p, workload.Features{}), requestsOf(p, workload.Features{PodLevelResources: true})
	same := s.requests[0].byResource.Same(s.requests[1].byResource) && maps.Equal(alone, podLevel)
	exact = s.requests[0].change(p, alone, add) && exact
	if same { // as on a node without pod-level resources
		s.requests[1] = s.requests[0]
		return exact
	}
	return s.requests[1].change(p, podLevel, add) && exact
}
