package rpc

import (
	"context"
	"sync"
)

// room is a shared amount. A caller that needs more than the rest waits behind earlier ones. It
// is safe for concurrent use.
type room struct {
	mu      sync.Mutex
	left    int
	waiting []*entry // in the order of their coming
}

// entry is one that waits.
type entry struct {
	amount int
	ready  chan struct{} // closed when it has its amount
}

// enter takes an amount, which leave returns. An error means that ctx has ended and nothing was
// taken.
func (r *room) enter(ctx context.Context, amount int) error {
	r.mu.Lock()
	if amount <= r.left && len(r.waiting) == 0 {
		r.left -= amount
		r.mu.Unlock()
		return nil
	}
	e := &entry{amount: amount, ready: make(chan struct{})}
	r.waiting = append(r.waiting, e)
	r.mu.Unlock()
	select {
	case <-e.ready:
		return nil
	case <-ctx.Done():
	}
	r.mu.Lock()
	for i := range r.waiting {
		if r.waiting[i] == e {
			r.waiting = append(r.waiting[:i:i], r.waiting[i+1:]...)
			r.admit() // later ones may need less
			r.mu.Unlock()
			return context.Cause(ctx)
		}
	}
	r.mu.Unlock()
	r.leave(amount) // it became ready just now
	return context.Cause(ctx)
}

// has reports whether something is left.
func (r *room) has() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.left > 0
}

// take takes an amount even if it exceeds the rest. The next caller of enter waits until it is
// returned.
func (r *room) take(amount int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.left -= amount
}

// leave gives an amount back.
func (r *room) leave(amount int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.left += amount
	r.admit()
}

// admit lets waiting callers in while their amounts fit. The caller holds mu.
func (r *room) admit() {
	for len(r.waiting) > 0 && r.waiting[0].amount <= r.left {
		r.left -= r.waiting[0].amount
		close(r.waiting[0].ready)
		r.waiting = r.waiting[1:]
	}
}
