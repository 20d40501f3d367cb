package admission

import (
	"maps"
	"slices"
	"sync"

	"github.com/berthd/berth/managers/ledger"
)

// reservations are the pods of which a plan is confirmed and that are not committed
// yet, and the pods that are being resized, each with the record that it is going to
// have; and the pods that are ending, whose removal is under way. They are in memory
// only: a crash forgets them. The zero value has none.
type reservations struct {
	mu     sync.Mutex
	pods   map[string]*ledger.Pod // guarded by mu; the records are never changed
	ending map[string]bool        // guarded by mu
	ended  chan struct{}          // guarded by mu; closed when one of pods or ending is dropped
}

// put reserves what a record holds, in place of an earlier reservation of the pod.
func (r *reservations) put(p *ledger.Pod) {
	own := *p
	own.Claims = slices.Clone(p.Claims)
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.pods == nil {
		r.pods = map[string]*ledger.Pod{}
	}
	r.pods[p.UID()] = &own
}

// drop ends the reservation of a pod: it is committed, or given up.
func (r *reservations) drop(uid string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, ok := r.pods[uid]; ok {
		delete(r.pods, uid)
		r.notify()
	}
}

// notify closes ended. The caller holds mu.
func (r *reservations) notify() {
	if r.ended != nil {
		close(r.ended)
		r.ended = nil
	}
}

// remove notes that the removal of a pod is under way, until done is called. The pod's
// lock is held meanwhile.
func (r *reservations) remove(uid string) (done func()) {
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

// has reports whether a pod has a reservation.
func (r *reservations) has(uid string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.pods[uid] != nil
}

// others lists the pods with a reservation, except one, and those that are ending.
func (r *reservations) others(uid string) (reserved, ending []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	reserved = slices.DeleteFunc(slices.Sorted(maps.Keys(r.pods)), func(o string) bool { return o == uid })
	return reserved, slices.Sorted(maps.Keys(r.ending))
}

// on returns a view with what is reserved on top of it. Some pods are excepted: what is
// reserved for them does not count, nor what they hold if they are ending. The channel is
// closed when a reservation or a removal has ended; it is nil where there are none. The
// view is taken after the reservations, so that a pod which is committed meanwhile is in
// one of them.
func (r *reservations) on(current func() *ledger.View, except ...string) (*ledger.View, <-chan struct{}) {
	reserved, gone, ended := r.list(except)
	view := current()
	if len(reserved)+len(gone) == 0 {
		return view, ended
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
	return draft.View(), ended
}

func (r *reservations) list(except []string) (reserved []*ledger.Pod, gone []string, ended <-chan struct{}) {
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
