package hintproxy

import (
	"context"
	"errors"
	"maps"
	"slices"

	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/server/internal/logs"
)

const (
	// maxOfUser limits the registrations of a user, because every admission may call all of them.
	maxOfUser = 8
	// maxRegistrations limits those of all users. Names in the configuration do not count, so that
	// users cannot displace them.
	maxRegistrations = 32
)

// registering is held by the user who is registering a provider.
type registering struct {
	turn  chan struct{} // capacity 1
	users int           // that hold it or wait for it; guarded by Registry.mu
}

// enterUser waits for the end of the user's previous registration. A provider that is silent delays only
// the registrations of its own user.
func (r *Registry) enterUser(ctx context.Context, by Caller) (leave func(), err error) {
	by.GID = nil
	r.mu.Lock()
	turn := r.registering[by]
	if turn == nil {
		turn = &registering{turn: make(chan struct{}, 1)}
		r.registering[by] = turn
	}
	turn.users++
	r.mu.Unlock()
	done := func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		if turn.users--; turn.users == 0 {
			delete(r.registering, by)
		}
	}
	select {
	case turn.turn <- struct{}{}:
		return func() { <-turn.turn; done() }, nil
	case <-ctx.Done():
		done()
		return nil, errdefs.Deadlinef("wait for user %d's registration before this one: %w", by.UID, context.Cause(ctx))
	}
}

// enterChange waits for the end of the previous change.
func (r *Registry) enterChange(ctx context.Context) (leave func(), err error) {
	select {
	case r.changing <- struct{}{}:
		return func() { <-r.changing }, nil
	case <-ctx.Done():
		return nil, errdefs.Deadlinef("wait for the registration before this one: %w", context.Cause(ctx))
	}
}

// Caller is the user who registers or unregisters a provider.
type Caller struct {
	UID uint32
	// GID is the group that the user may register providers by; nil if it may by itself.
	GID *uint32
	// Trusted callers may act for other users: root, and berthd's own user.
	Trusted bool
}

// Register puts a provider on the bus after it has confirmed its allocations, and stores the
// registration in the ledger. It may replace an earlier registration of the same name and
// user. If it returns an error, nothing has changed. The classes are Invalid for an invalid
// registration, PermissionDenied for a registration that belongs to another user or that
// the configuration does not allow, Precondition if another plugin or provider serves one
// of its resources, and Unavailable or Deadline if the provider does not answer.
func (r *Registry) Register(ctx context.Context, o ledger.ExternalProvider, by Caller) error {
	o.UID, o.GID = by.UID, by.GID
	if o.Deadline == 0 {
		o.Deadline = r.config.Deadline
	}
	if err := r.validate(&o); err != nil {
		return err
	}
	if err := r.config.permitted(o); err != nil {
		return err
	}
	if o.Required && !slices.Contains(r.config.Required, o.Name) {
		return errdefs.PermissionDeniedf("register provider %s: mode REQUIRED is for the providers that providers.external.required names; it may register as ADVISORY", o.Name)
	}
	leave, err := r.enterUser(ctx, by)
	if err != nil {
		return err
	}
	defer leave()
	old, err := r.mayRegister(o, by)
	if err != nil {
		return err
	}
	if old != nil && same(old.registration, o) && old.ready() {
		return nil
	}
	// Only a provider without contact since the start of this berthd can hold reservations
	// of an earlier berthd.
	decided := old == nil || old.hasDecided()
	p, err := r.newProxy(o, decided)
	if err != nil {
		return err
	}
	stop, err := r.introduce(ctx, p)
	if err != nil {
		return err
	}
	if err := r.put(ctx, o, p, by); err != nil {
		stop()
		return err
	}
	r.line(ctx, "hint provider registered", logs.Came(logs.Provider, "provider", o.Name, "endpoint", o.Endpoint, "uid", o.UID,
		"required", o.Required, "resources", o.Resources, "again", old != nil)...)
	return nil
}

// put stores a registration and puts its proxy on the bus. Others may have registered or lost a role while the
// provider confirmed its allocations, so all conditions are checked again.
func (r *Registry) put(ctx context.Context, o ledger.ExternalProvider, p *proxy, by Caller) error {
	leave, err := r.enterChange(ctx)
	if err != nil {
		return err
	}
	defer leave()
	if _, err := r.mayRegister(o, by); err != nil {
		return err
	}
	return r.replace(ctx, o.Name, p, func(d *ledger.Draft) error { d.PutExternalProvider(o); return nil })
}

// mayRegister checks what may change at any time, and returns the earlier proxy of the name.
func (r *Registry) mayRegister(o ledger.ExternalProvider, by Caller) (old *proxy, err error) {
	r.mu.Lock()
	old = r.proxies[o.Name]
	ofUser, ofAll := 0, 0
	for name, p := range r.proxies {
		if name != o.Name && p.registration.UID == by.UID {
			ofUser++
		}
		if name != o.Name && !r.config.names(name) {
			ofAll++
		}
	}
	r.mu.Unlock()
	foreign := r.owned(o.Name, by)
	switch {
	case foreign != nil:
		return nil, foreign
	case !r.parts.MayProvide(o.UID, o.GID):
		return nil, errdefs.PermissionDeniedf("register provider %s: user %d does not have the role provider any more", o.Name, o.UID)
	case r.config.names(o.Name):
	case ofUser >= maxOfUser && !by.Trusted:
		return nil, errdefs.Exhaustedf("register provider %s: user %d has registered %d providers, and may have %d; unregister one first",
			o.Name, by.UID, ofUser, maxOfUser)
	case ofAll >= maxRegistrations:
		return nil, errdefs.Exhaustedf("register provider %s: %d providers are registered, and there may be %d; providers that the configuration names do not count", o.Name, ofAll, maxRegistrations)
	}
	return old, r.available(o)
}

// names returns whether the configuration has a name, in required or in allow.
func (c Config) names(name string) bool {
	_, allowed := c.allowance(name)
	return allowed || slices.Contains(c.Required, name)
}

// permitted refuses a registration under a name that the configuration reserves for another
// user.
func (c Config) permitted(o ledger.ExternalProvider) error {
	if a, ok := c.allowance(o.Name); ok && a.UID != o.UID {
		return errdefs.PermissionDeniedf("register provider %s: providers.external.allow has this name for user %d, not for user %d",
			o.Name, a.UID, o.UID)
	}
	return nil
}

// stored returns the registration of a name in the ledger.
func (r *Registry) stored(name string) (ledger.ExternalProvider, bool) {
	for o := range r.parts.Ledger.View().ExternalProviders() {
		if o.Name == name {
			return o, true
		}
	}
	return ledger.ExternalProvider{}, false
}

// owned refuses a caller who does not own the registration of a name. One that is about to end belongs to nobody.
func (r *Registry) owned(name string, by Caller) error {
	o, known := r.stored(name)
	if !known || by.Trusted || o.UID == by.UID || r.over(o) != "" {
		return nil
	}
	return errdefs.PermissionDeniedf("provider %s was registered by user %d: user %d may neither replace nor unregister it", name, o.UID,
		by.UID)
}

// available refuses a registration for a resource with another server, because a container
// that requests one unit would get two.
func (r *Registry) available(o ledger.ExternalProvider) error {
	for _, resource := range o.Resources {
		if r.parts.Plugin(resource) {
			return errdefs.Preconditionf("register provider %s: a device plugin serves %s, or did until a moment ago; a resource has one provider", o.Name, resource).Coded(errdefs.ResourceServed, "resource", resource)
		}
		if by, taken := r.config.ServedBy(r.parts.Ledger.View(), resource); taken && by != o.Name {
			return errdefs.Preconditionf("register provider %s: provider %s serves %s; a resource has one provider", o.Name, by,
				resource).Coded(errdefs.ResourceServed, "resource", resource)
		}
	}
	return nil
}

// ServedBy returns the external provider that has registered a resource.
func (c Config) ServedBy(view *ledger.View, resource string) (provider string, ok bool) {
	for o := range view.ExternalProviders() {
		if c.permitted(o) == nil && slices.Contains(o.Resources, resource) {
			return o.Name, true
		}
	}
	return "", false
}

// introduce starts a proxy's keeper and waits until the provider has confirmed its
// allocations. stop ends the keeper.
func (r *Registry) introduce(ctx context.Context, p *proxy) (stop func(), err error) {
	r.mu.Lock()
	if r.running.Err() != nil {
		r.mu.Unlock()
		p.release()
		return nil, errdefs.Unavailablef("register provider %s: berthd is ending", p.Name()).Coded(errdefs.ShuttingDown)
	}
	ended := r.begin(p)
	r.mu.Unlock()

	stop = func() { p.stop(); <-ended }
	limited, done := context.WithTimeout(ctx, r.config.Connect)
	defer done()
	select {
	case <-p.confirmation:
		return stop, nil
	case err = <-p.refused:
	case <-ended:
	case <-limited.Done():
	}
	stop()
	switch {
	case ctx.Err() != nil:
		return nil, context.Cause(ctx)
	case err != nil:
		return nil, errdefs.Unavailablef("register provider %s: %w", p.Name(), err).Coded(errdefs.ProviderFailed, "provider", p.Name())
	}
	return nil, errdefs.Unavailablef("register provider %s: %s (waited %s)", p.Name(), p.status().Message, r.config.Connect)
}

// replace replaces the proxy with a name (nil: removes it), on the bus and then in the ledger. If the
// ledger cannot be changed, the bus gets the earlier proxy back. Running admissions continue with the
// earlier proxy, until the next one is replaced. It waits for no provider. changing must be held.
func (r *Registry) replace(ctx context.Context, name string, p *proxy, change func(*ledger.Draft) error) error {
	r.mu.Lock()
	before, next := r.proxies, maps.Clone(r.proxies)
	r.mu.Unlock()
	delete(next, name)
	if p != nil {
		next[name] = p
	}
	if err := r.publish(next); err != nil {
		return err
	}
	if _, err := r.parts.Ledger.Update(ctx, change); err != nil {
		return errors.Join(err, r.publish(before))
	}
	r.retire(name, next)
	if p != nil {
		p.poke() // an admission with it may be in the ledger already
	}
	return nil
}

// publish puts the built-in providers and those of the proxies on the bus.
func (r *Registry) publish(proxies map[string]*proxy) error {
	r.mu.Lock()
	entries := r.entries(proxies)
	r.mu.Unlock()
	return r.parts.Publish(entries)
}

// retire makes next the proxies. They differ from the proxies before in one name.
func (r *Registry) retire(name string, next map[string]*proxy) {
	r.mu.Lock()
	defer r.mu.Unlock()
	old, p := r.proxies[name], next[name]
	r.proxies = next
	delete(r.unusable, name)
	r.endEarlier(1, func(e *proxy) bool { return e.Name() == name })
	if old == nil {
		return
	}
	r.endEarlier(maxOfUser, func(e *proxy) bool { return e.registration.UID == old.registration.UID })
	r.earlier = append(r.earlier, old)
	close(old.retired)
	old.silence()
	if p != nil && r.running.Err() == nil {
		// A call of the other proxy may be under way, and would be the last one at the provider.
		r.keepers.Go(func() { old.settled(); p.sendAgain() })
	}
}

// endEarlier ends the oldest of the earlier proxies of a kind, so that with another one there are at most that many. mu must be held.
func (r *Registry) endEarlier(most int, kind func(*proxy) bool) {
	n := 0
	for _, p := range slices.Backward(r.earlier) {
		if !kind(p) {
			continue
		}
		if n++; n >= most {
			if p.stop != nil {
				p.stop()
			}
			r.earlier = slices.DeleteFunc(slices.Clone(r.earlier), func(e *proxy) bool { return e == p })
		}
	}
}

// Unregister removes a provider and its leases from the bus and the ledger. The error is of
// class NotFound for an unknown name, and PermissionDenied for a registration of another
// user.
func (r *Registry) Unregister(ctx context.Context, name string, by Caller) error {
	leave, err := r.enterChange(ctx)
	if err != nil {
		return err
	}
	defer leave()
	if _, known := r.stored(name); !known {
		return errdefs.NotFoundf("no provider outside berthd is registered as %.80q", name).Coded(errdefs.ProviderNotFound, "provider",
			name)
	}
	if err := r.owned(name, by); err != nil {
		return err
	}
	return r.drop(ctx, name, "hint provider unregistered")
}

// drop removes a registration and its leases from the bus and the ledger. changing must be held.
func (r *Registry) drop(ctx context.Context, name, event string, why ...any) error {
	err := r.replace(ctx, name, nil, func(d *ledger.Draft) error {
		for l := range d.View().Leases() {
			if l.Provider == name {
				d.DropLease(l.ID)
			}
		}
		d.DropExternalProvider(name)
		return nil
	})
	if err != nil {
		return err
	}
	r.line(ctx, event, logs.Gone(logs.Provider, append([]any{"provider", name}, why...)...)...)
	return nil
}
