package admission

import (
	"context"
	"fmt"

	"github.com/berthd/berth/managers/admission/locks"
	"github.com/berthd/berth/managers/admission/reservations"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/ledger"
)

// maxWaiting limits the calls of one user that wait for the admission lock and have not
// changed anything.
const maxWaiting = 64

// Lock is the admission lock of a ledger, with the reservations. It is held while a plan is
// confirmed and reserved, and during commits. It is never held during a remote call or the
// creation of a cgroup.
type Lock struct {
	ledger   *ledger.Ledger
	user     func(ctx context.Context) string
	lock     locks.Fair
	reserved reservations.Set
}

// NewLock returns the lock of a ledger. user is Environment.User.
func NewLock(l *ledger.Ledger, user func(ctx context.Context) string) *Lock {
	if user == nil {
		user = func(context.Context) string { return "" }
	}
	return &Lock{ledger: l, user: user}
}

// Acquire waits for the admission lock. release must be called if err is nil. The error is
// of class Exhausted if too many calls of the user are waiting.
func (l *Lock) Acquire(ctx context.Context) (release func(), err error) {
	return l.take(ctx, maxWaiting)
}

// reacquire waits for the admission lock to complete an operation. Unlike Acquire, it has
// no limit of waiting calls, because the operation has already had effects.
func (l *Lock) reacquire(ctx context.Context) (release func(), err error) {
	return l.take(ctx, 0)
}

func (l *Lock) take(ctx context.Context, most int) (release func(), err error) {
	release, err = l.lock.Lock(ctx, l.user(ctx), most)
	if err != nil && errdefs.ClassOf(err) != errdefs.Exhausted {
		err = fmt.Errorf("wait for the admission lock: %w", err) // of the class of ctx's error
	}
	return release, err
}

// Update changes the ledger in the turn of the call's user, so commits of one user do not
// delay those of others. The caller must not hold the admission lock.
func (l *Lock) Update(ctx context.Context, change func(*ledger.Draft) error) (*ledger.View, error) {
	release, err := l.reacquire(ctx)
	if err != nil {
		return nil, err
	}
	defer release()
	return l.ledger.Update(ctx, change)
}

// snapshot returns the current view with all reservations added, and a channel that is
// closed when a reservation or a removal has ended; nil if there are none.
func (l *Lock) snapshot() (*ledger.View, <-chan struct{}) { return l.reserved.On(l.ledger.View) }

// Reserve counts a pod as having its claims and amounts, until Unreserve. The caller has the admission lock.
func (l *Lock) Reserve(p *ledger.Pod) { l.reserved.Put(p) }

// Unreserve ends the reservation of a pod, after its commit or without one.
func (l *Lock) Unreserve(uid string) { l.reserved.Drop(uid) }

// InFlight returns the current view with the pods that are being admitted or resized. Of a
// resized pod it has the larger of the old and new amounts.
func (l *Lock) InFlight() *ledger.View {
	view, _ := l.snapshot()
	return view
}

// freed returns the current view without reservations and without ending pods.
func (l *Lock) freed() *ledger.View {
	reserved, ending := l.reserved.Others("")
	view, _ := l.reserved.On(l.ledger.View, append(reserved, ending...)...)
	return view
}
