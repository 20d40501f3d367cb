package reservations

import (
	"maps"
	"slices"
	"sync"

	"github.com/berthd/berth/managers/ledger"
)

// Set has the pods with a confirmed plan before its commit; the pods that are
// being resized, with their new record; and the ending pods, which are being removed. It is
// only in memory, so a crash discards it. The zero value is empty.
type Set struct {
	mu     sync.Mutex
	pods   map[string]*ledger.Pod // guarded by mu; the records are immutable
	ending map[string]bool        // guarded by mu
	ended  chan struct{}          // guarded by mu; closed when an entry of pods or ending is removed
	since  map[*Since]bool        // guarded by mu; those that have not ended
}

// Put reserves the claims of a record, and replaces an earlier reservation of the pod.
func (r *Set) Put(p *ledger.Pod) {
	own := *p
	own.Claims = slices.Clone(p.Claims)
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.pods == nil {
		r.pods = map[string]*ledger.Pod{}
	}
	r.pods[p.UID()] = &own
	for s := range r.since {
		s.had[p.UID()] = true
	}
}

// Drop ends the reservation of a pod, after its commit or without one.
func (r *Set) Drop(uid string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, ok := r.pods[uid]; ok {
		delete(r.pods, uid)
		r.notify()
	}
}

// notify closes ended. The caller holds mu.
func (r *Set) notify() {
	if r.ended != nil {
		close(r.ended)
		r.ended = nil
	}
}

// End marks the pod as ending until done is called. The caller holds the pod's lock.
func (r *Set) End(uid string) (done func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ending == nil {
		r.ending = map[string]bool{}
	}
	r.ending[uid] = true
	return func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		delete(r.ending, uid)
		r.notify()
	}
}

// Has returns whether a pod has a reservation.
func (r *Set) Has(uid string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.pods[uid] != nil
}

// Since keeps which pods have had a reservation since a moment, also if it has ended.
type Since struct {
	set *Set
	had map[string]bool // guarded by set.mu
}

// Since begins to keep the pods with a reservation. The caller ends it.
func (r *Set) Since() *Since {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := &Since{set: r, had: map[string]bool{}}
	for uid := range r.pods {
		s.had[uid] = true
	}
	if r.since == nil {
		r.since = map[*Since]bool{}
	}
	r.since[s] = true
	return s
}

// Had returns whether a pod has, or has had, a reservation.
func (s *Since) Had(uid string) bool {
	s.set.mu.Lock()
	defer s.set.mu.Unlock()
	return s.had[uid]
}

// End ends it: no more pods are added.
func (s *Since) End() {
	s.set.mu.Lock()
	defer s.set.mu.Unlock()
	delete(s.set.since, s)
}

// Others returns the other pods with a reservation, and the ending pods.
func (r *Set) Others(uid string) (reserved, ending []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	reserved = slices.DeleteFunc(slices.Sorted(maps.Keys(r.pods)), func(o string) bool { return o == uid })
	return reserved, slices.Sorted(maps.Keys(r.ending))
}

// Counted is a view with reservations added.
type Counted struct {
	View *ledger.View
	// Reserved are the added records; they are immutable.
	Reserved []*ledger.Pod
	// Ended is closed when a reservation or a removal has ended; it is nil if there are none.
	Ended <-chan struct{}
}

// On returns a view with all reservations added, and Counted.Ended.
func (r *Set) On(current func() *ledger.View, except ...string) (*ledger.View, <-chan struct{}) {
	c := r.Count(current, except...)
	return c.View, c.Ended
}

// Count returns a view with all reservations added. For excepted pods, reservations are not
// added, and the claims of ending pods are removed. The view is read after
// the reservations, so a pod that is committed meanwhile is in one of them.
func (r *Set) Count(current func() *ledger.View, except ...string) Counted {
	reserved, gone, ended := r.list(except)
	view := current()
	if len(reserved)+len(gone) == 0 {
		return Counted{View: view, Ended: ended}
	}
	draft := ledger.NewDraft(view)
	for _, uid := range gone {
		draft.RemovePod(uid)
	}
	for _, p := range reserved {
		own := *p
		own.Claims = slices.Clone(p.Claims)
		draft.PutPod(&own)
	}
	return Counted{draft.View(), reserved, ended}
}

func (r *Set) list(except []string) (reserved []*ledger.Pod, gone []string, ended <-chan struct{}) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for uid, p := range r.pods {
		if !slices.Contains(except, uid) {
			reserved = append(reserved, p)
		}
	}
	for uid := range r.ending {
		if slices.Contains(except, uid) {
			gone = append(gone, uid)
		}
	}
	if len(r.pods)+len(r.ending) == 0 {
		return nil, nil, nil
	}
	if r.ended == nil {
		r.ended = make(chan struct{})
	}
	return reserved, gone, r.ended
}
