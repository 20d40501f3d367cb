package locks

import (
	"context"
	"fmt"
	"sync"
)

// Named are locks by name. A lock exists while it is held or waited for. The zero value has none.
type Named struct {
	Waits func(ctx context.Context) // called when a call is about to wait; may be nil

	mu    sync.Mutex
	locks map[string]*namedLock // guarded by mu
}

type namedLock struct {
	held    chan struct{}
	waiting int // guarded by Named.mu; includes the holder
}

// Lock waits for the lock with a name; what describes the lock in an error.
func (n *Named) Lock(ctx context.Context, what, name string) (unlock func(), err error) {
	if unlock, ok := n.TryLock(name); ok {
		return unlock, nil
	}
	if n.Waits != nil {
		n.Waits(ctx)
	}
	l := n.enter(name)
	select {
	case l.held <- struct{}{}:
		return func() { <-l.held; n.leave(name, l) }, nil
	case <-ctx.Done():
		n.leave(name, l)
		return nil, fmt.Errorf("wait for another %s %s: %w", what, name, context.Cause(ctx))
	}
}

// TryLock takes the lock with a name if it is free.
func (n *Named) TryLock(name string) (unlock func(), ok bool) {
	l := n.enter(name)
	select {
	case l.held <- struct{}{}:
		return func() { <-l.held; n.leave(name, l) }, true
	default:
		n.leave(name, l)
		return nil, false
	}
}

func (n *Named) enter(name string) *namedLock {
	n.mu.Lock()
	defer n.mu.Unlock()
	l := n.locks[name]
	if l == nil {
		l = &namedLock{held: make(chan struct{}, 1)}
		if n.locks == nil {
			n.locks = make(map[string]*namedLock)
		}
		n.locks[name] = l
	}
	l.waiting++
	return l
}

func (n *Named) leave(name string, l *namedLock) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if l.waiting--; l.waiting == 0 {
		delete(n.locks, name)
	}
}
