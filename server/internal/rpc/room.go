package rpc

import (
	"context"
	"sync"
)

// room is an amount that is shared: who wants more than is left waits for those before. It is safe for concurrent use.
type room struct {
	mu      sync.Mutex
	left    int
	waiting []*entry // in the order of their coming
}

// entry is one that waits.
type entry struct {
	amount int
	ready  chan struct{} // closed when it has what it wants
}

// enter takes an amount. It is given back by leave. An error says that ctx has ended; then nothing is taken.
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
			r.admit() // those behind may want less
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

// take takes an amount whether or not it is left: who enters next waits until it is back.
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

// admit lets those in for whom there is room. The caller holds mu.
func (r *room) admit() {
	for len(r.waiting) > 0 && r.waiting[0].amount <= r.left {
		r.left -= r.waiting[0].amount
		close(r.waiting[0].ready)
		r.waiting = r.waiting[1:]
	}
}
