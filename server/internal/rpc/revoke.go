package rpc

import (
	"context"
	"errors"
	"sync"

	"github.com/berthd/berth/api/access"
	"github.com/berthd/berth/managers/errdefs"
)

// running are the calls that depend on a role, while they run. They end when the role ends: a stream may
// otherwise run for ever.
type running struct {
	mu    sync.Mutex
	calls map[*runningCall]struct{}
}

// runningCall is a call that may be made as long as still returns nil.
type runningCall struct {
	still func() error
	end   context.CancelCauseFunc
}

// check ends the calls that may not be made any more, with the reason.
func (r *running) check() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for c := range r.calls {
		if err := c.still(); err != nil {
			c.end(err)
			delete(r.calls, c)
		}
	}
}

// while returns a context that ends when still returns an error after a change of the grants. end has to be
// called when the call has ended.
func (a Access) while(ctx context.Context, still func() error) (_ context.Context, end func()) {
	if a.running == nil {
		return ctx, func() {}
	}
	ctx, cancel := context.WithCancelCause(ctx)
	c := &runningCall{still, cancel}
	a.running.mu.Lock()
	a.running.calls[c] = struct{}{}
	a.running.mu.Unlock()
	if err := still(); err != nil { // the grants changed before the call was in the list
		cancel(err)
	}
	return ctx, func() {
		a.running.mu.Lock()
		delete(a.running.calls, c)
		a.running.mu.Unlock()
		cancel(nil)
	}
}

// While returns a context that ends when a peer does not have a role any more. end has to be called when
// what depends on the role has ended.
func (a Access) While(ctx context.Context, p Peer, r access.Role) (_ context.Context, end func()) {
	if a.trusts(p) {
		return ctx, func() {}
	}
	return a.while(ctx, func() error {
		if a.Allows(p, r) {
			return nil
		}
		return errRevoked
	})
}

var errRevoked error = errdefs.PermissionDeniedf("the caller's role has ended").Coded(errdefs.RoleMissing)

// following returns the context of a call that ends with the caller's role. Calls of root, and of berthd's own
// user, depend on no role, and the server of the page ends the streams of its users.
func (cfg Config) following(ctx context.Context, method string, req any) (_ context.Context, end func()) {
	if cfg.Access == nil || cfg.trusts(ctx) || req == nil && triesOnPage(ctx, method) {
		return ctx, func() {}
	}
	return cfg.Access.whilePermitted(ctx, method, req)
}

// whilePermitted is a function of its own: what the closure has is allocated where a function begins.
func (a Access) whilePermitted(ctx context.Context, method string, req any) (_ context.Context, end func()) {
	return a.while(ctx, func() error { return a.authorize(ctx, method, req) })
}

// revoked returns why a call was ended, if it was because of the caller's role; err otherwise.
func revoked(ctx context.Context, err error) error {
	if err == nil || ctx.Err() == nil {
		return err
	}
	why := new(errdefs.Error)
	if errors.As(context.Cause(ctx), &why) && why.Class == errdefs.PermissionDenied {
		return Status(ctx, why)
	}
	return err
}
