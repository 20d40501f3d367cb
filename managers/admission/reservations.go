package admission

import (
	"maps"
	"slices"
	"sync"

	"github.com/berthd/berth/managers/ledger"
)

// reservations are the pods of which a plan is confirmed and that are not committed
// yet, and the pods that are being resized, each with the record that it is going to
// have. They are in memory only: a crash forgets them. The zero value has none.
type reservations struct {
	mu    sync.Mutex
	pods  map[string]*ledger.Pod // guarded by mu; the records are never changed
	ended chan struct{}          // guarded by mu; closed when one of pods is dropped
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
	if _, ok := r.pods[uid]; !ok {
		return
	}
	delete(r.pods, uid)
	if r.ended != nil {
		close(r.ended)
		r.ended = nil
	}
}

// has reports whether a pod has a reservation.
func (r *reservations) has(uid string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.pods[uid] != nil
}

// others lists the pods with a reservation, except one.
func (r *reservations) others(uid string) []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.DeleteFunc(slices.Sorted(maps.Keys(r.pods)), func(o string) bool { return o == uid })
}

// on returns a view with what is reserved on top of it, but for the reservations of
// some pods. The channel is closed when one of the others has ended; it is nil
// where there are none. The view is taken after the reservations, so that a pod
// which is committed meanwhile is in one of them.
func (r *reservations) on(current func() *ledger.View, except ...string) (*ledger.View, <-chan struct{}) {
	reserved, ended := r.list(except)
	view := current()
	if len(reserved) == 0 {
		return view, nil
	}
	draft := ledger.NewDraft(view)
	for _, p := range reserved {
		own := *p
		own.Claims = slices.Clone(p.Claims)
		draft.PutPod(&own)
	}
	return draft.View(), ended
}

func (r *reservations) list(except []string) (reserved []*ledger.Pod, ended <-chan struct{}) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for uid, p := range r.pods {
		if !slices.Contains(except, uid) {
			reserved = append(reserved, p)
		}
	}
	if len(reserved) == 0 {
		return nil, nil
	}
	if r.ended == nil {
		r.ended = make(chan struct{})
	}
	return reserved, r.ended
}
