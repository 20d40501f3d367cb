package locks

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/berthd/berth/managers/errdefs"
)

// retryCrowded is the retry time for a user with too many calls.
const retryCrowded = time.Second

// Fair is a lock with one queue for each user. The calls of root, whose name is empty,
// have every second turn; other users share the rest. So root waits for at most one holder,
// however many other calls wait, and every call gets its turn. It is safe for concurrent
// use; the zero value is an unlocked lock.
type Fair struct {
	mu     sync.Mutex
	held   bool
	holder string                     // the user of the last holder
	queues map[string][]chan struct{} // guarded by mu; waiting calls, by user
	order  []string                   // guarded by mu; users other than root with waiting calls, the next one first
}

// Lock waits for a user's turn. most limits the user's waiting calls; 0 means no limit.
// Beyond the limit the error is of class Exhausted; otherwise it is the error of ctx.
func (l *Fair) Lock(ctx context.Context, user string, most int) (unlock func(), err error) {
	l.mu.Lock()
	if !l.held {
		l.held, l.holder = true, user
		l.mu.Unlock()
		return l.unlock, nil
	}
	if n := len(l.queues[user]); user != "" && most > 0 && n >= most {
		l.mu.Unlock()
		err := errdefs.Exhaustedf("%d calls of %s wait for the admission lock already, and no more may", n, user)
		err.RetryAfter = retryCrowded
		return nil, err
	}
	ready := make(chan struct{})
	if l.queues == nil {
		l.queues = map[string][]chan struct{}{}
	}
	if l.queues[user] = append(l.queues[user], ready); len(l.queues[user]) == 1 && user != "" {
		l.order = append(l.order, user)
	}
	l.mu.Unlock()
	select {
	case <-ready:
		return l.unlock, nil
	case <-ctx.Done():
	}
	l.mu.Lock()
	i := slices.Index(l.queues[user], ready)
	if i >= 0 {
		l.remove(user, i)
	}
	l.mu.Unlock()
	if i < 0 {
		l.unlock() // the lock was passed to this call just now
	}
	return nil, context.Cause(ctx)
}

// unlock passes the lock to the next call.
func (l *Fair) unlock() {
	l.mu.Lock()
	defer l.mu.Unlock()
	var next string // root
	switch rootWaits := len(l.queues[""]) > 0; {
	case len(l.order) == 0 && !rootWaits:
		l.held = false
		return
	case len(l.order) > 0 && (l.holder == "" || !rootWaits):
		next = l.order[0]
	}
	ready := l.queues[next][0]
	l.remove(next, 0)
	if i := slices.Index(l.order, next); i >= 0 {
		l.order = append(slices.Delete(l.order, i, i+1), next)
	}
	l.holder = next
	close(ready)
}

// remove removes a call from a user's queue. The caller holds mu.
func (l *Fair) remove(user string, i int) {
	if l.queues[user] = slices.Delete(l.queues[user], i, i+1); len(l.queues[user]) > 0 {
		return
	}
	delete(l.queues, user)
	if i := slices.Index(l.order, user); i >= 0 {
		l.order = slices.Delete(l.order, i, i+1)
	}
}
