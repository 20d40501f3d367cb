package ledger

import (
	"sync"

	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/internal/ordered"
	"github.com/berthd/berth/managers/workload"
)

// facts are what follows from the pods of a view, unknown living ones included. They are carried from view to view
// in time proportional to the change; nothing else is kept of the pods twice.
type facts struct {
	claims    int                       // how many the pods of the ledger hold together
	exclusive cpuset.Set                // out of the shared pool
	contested cpuset.Set                // of exclusive, what more than one pod holds
	holders   ordered.Map[string, *Pod] // the pods that hold devices, by uid
	// admissions has the pods by the admission that brought them, and by uid; see
	// admissionKey.
	admissions ordered.Map[string, *Pod]
	sums       *sums
}

func admissionKey(id, uid string) string { return id + "\x00" + uid }

// hold adds what a pod holds.
func (f *facts) hold(p *Pod) {
	set := nodeCPUs(p)
	if set.Overlaps(f.exclusive) {
		f.contested = f.contested.Union(set.Intersect(f.exclusive))
	}
	f.exclusive = f.exclusive.Union(set)
	f.admissions = f.admissions.Set(admissionKey(p.AdmissionID, p.UID()), p)
	if p.holdsDevices() {
		f.holders = f.holders.Set(p.UID(), p)
	}
}

// release takes out what a pod held. Its CPUs are free then, unless CPUs are
// contested.
func (f *facts) release(p *Pod) {
	f.exclusive = f.exclusive.Minus(nodeCPUs(p))
	f.admissions = f.admissions.Delete(admissionKey(p.AdmissionID, p.UID()))
	f.holders = f.holders.Delete(p.UID())
}

// put applies changes of pods, nil for those that are removed, to a view that nobody
// else has yet.
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
		next.come = append(next.come, p)
	}
	next.pods, next.unknown = v.pods, v.unknown
	v.facts.sums = next
	if contested { // what was released may be another's still
		v.derive()
	}
}

// derive works the facts out anew.
func (v *View) derive() {
	v.facts = facts{sums: &sums{pods: v.pods, unknown: v.unknown}}
	for p := range v.holdings() {
		v.facts.hold(p)
	}
	for p := range v.pods.Values() {
		v.facts.claims += len(p.Claims)
	}
}

// sums are what pods request and hold together. Those of a draft are worked out by
// the first who asks, from those of its base, those of a ledger at the commit.
type sums struct {
	once    sync.Once
	pods    ordered.Map[string, *Pod]
	unknown ordered.Map[string, *UnknownLivePod]
	// base and what has changed since; empty once the sums are known, and where they
	// begin.
	base       *sums
	gone, come []*Pod

	requests [2]requests // without and with pod-level resources; see variant
	memory   memoryHeld
}

// known returns the sums once they are worked out.
func (s *sums) known() *sums {
	if s == nil { // of no pods
		return new(sums)
	}
	s.once.Do(s.add)
	return s
}

func (s *sums) add() {
	if s.base != nil {
		base := s.base.known()
		s.requests, s.memory = base.requests, base.memory
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
	s.requests, s.memory = [2]requests{}, memoryHeld{}
	for p := range s.pods.Values() {
		s.change(p, true)
	}
	for u := range s.unknown.Values() {
		s.change(u.holds, true)
	}
}

// change adds a pod, or takes out one that has been added, and tells whether the sums
// are what they were before that: of one that has stopped at its end nobody knows.
func (s *sums) change(p *Pod, add bool) (exact bool) {
	exact = s.memory.change(p, add)
	for i := range s.requests {
		f := workload.Features{PodLevelResources: i == 1}
		exact = s.requests[i].change(p, requestsOf(p, f), add) && exact
	}
	return exact
}
