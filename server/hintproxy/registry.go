package hintproxy

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/hint"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/server/host/endpoint"
)

// Ledger is what providers' registrations and leases are kept in.
type Ledger interface {
	View() *ledger.View
	Update(ctx context.Context, change func(*ledger.Draft) error) (*ledger.View, error)
}

// Parts are what the registry works with.
type Parts struct {
	Ledger Ledger
	// Publish puts the providers on the bus in place of those it was given before.
	Publish func(external []hint.Entry) error
	// Bus returns every provider of the bus, in order.
	Bus func() []hint.Entry
	// Plugin reports whether a resource is a device plugin's; nil means that none
	// is.
	Plugin func(resource string) bool
	Log    *slog.Logger
	Now    func() time.Time
	// Dial connects to a provider's endpoint; nil means endpoint.Dial.
	Dial Dialer
	// WithTimeout bounds calls; nil means context.WithTimeout.
	WithTimeout hint.WithTimeout
}

// Registry knows every provider outside berthd. Its methods are safe for
// concurrent use.
type Registry struct {
	config Config
	parts  Parts

	// changing is held while a provider comes or goes, over calls to it.
	changing chan struct{}

	mu      sync.Mutex
	proxies map[string]*proxy // guarded by mu
	keepers sync.WaitGroup    // added to under mu, and only while running has not ended
	// running ends when the registry stops.
	running context.Context
	stop    context.CancelFunc

	lines *rate.Limiter // of the log, since a provider may come and go as it likes
}

// line logs what a caller has done, unless there are too many lines.
func (r *Registry) line(ctx context.Context, text string, args ...any) {
	if r.lines.Allow() {
		r.parts.Log.InfoContext(ctx, text, args...)
	}
}

// New makes a registry of the providers that the ledger knows and publishes them.
// It connects to nobody.
func New(cfg Config, parts Parts) (*Registry, error) {
	if parts.Dial == nil {
		parts.Dial = endpoint.Dial
	}
	if parts.Plugin == nil {
		parts.Plugin = func(string) bool { return false }
	}
	if parts.WithTimeout == nil {
		parts.WithTimeout = context.WithTimeout
	}
	r := &Registry{
		config: cfg.withDefaults(), parts: parts,
		changing: make(chan struct{}, 1), proxies: map[string]*proxy{},
		lines: rate.NewLimiter(rate.Every(time.Second), 20),
	}
	r.running, r.stop = context.WithCancel(context.Background())
	for o := range parts.Ledger.View().ExternalProviders() {
		if err := r.permitted(o); err != nil {
			parts.Log.Warn("a hint provider of before is left out", "provider", o.Name, "error", err)
			continue
		}
		p, err := newProxy(o, r.config, parts, false)
		if err != nil {
			return nil, err
		}
		r.proxies[o.Name] = p
	}
	return r, parts.Publish(r.entries(r.proxies))
}

// entries are the providers as the bus takes them.
func (r *Registry) entries(proxies map[string]*proxy) []hint.Entry {
	var out []hint.Entry
	for _, name := range slices.Sorted(maps.Keys(proxies)) {
		p := proxies[name]
		mode := hint.Advisory
		if slices.Contains(r.config.Required, name) {
			mode = hint.Required
		}
		// The proxy keeps the deadline itself: it has to tell a slow provider from a
		// caller with a short deadline.
		out = append(out, hint.Entry{Provider: p.provider(), Mode: mode, Index: p.registration.Index})
	}
	for _, name := range r.config.Required {
		if proxies[name] == nil {
			out = append(out, hint.Entry{Provider: absent(name), Mode: hint.Required})
		}
	}
	return out
}

// Run connects to the providers and keeps them up to date until Stop, whatever
// becomes of ctx: admissions that finish while berthd ends need their providers.
func (r *Registry) Run(context.Context) error {
	r.mu.Lock()
	for _, p := range r.proxies {
		r.keepers.Go(func() { p.keep(r.running) })
	}
	r.mu.Unlock()
	<-r.running.Done()
	r.keepers.Wait()
	return nil
}

// Stop ends Run, and every connection with it.
func (r *Registry) Stop(context.Context) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.stop()
	return nil
}

// Wake has every provider told what changed for it in the ledger. It is quick and
// waits for nobody.
func (r *Registry) Wake() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, p := range r.proxies {
		p.poke()
	}
}

// enterChange waits for the registration before this one.
func (r *Registry) enterChange(ctx context.Context) (leave func(), err error) {
	select {
	case r.changing <- struct{}{}:
		return func() { <-r.changing }, nil
	case <-ctx.Done():
		return nil, errdefs.Deadlinef("wait for the registration before this one: %w", context.Cause(ctx))
	}
}

// Caller is who registers providers and unregisters them.
type Caller struct {
	UID uint32
	// Trusted callers may do so in place of others: root, and berthd's own user.
	Trusted bool
}

// Register puts a provider of the caller's on the bus once it has been reached and
// has confirmed its holdings, and keeps the registration in the ledger. It may
// replace an earlier one of the same name and user. Errors are of class Invalid for
// a registration that cannot be right, PermissionDenied for one that is another
// user's to make or asks for what the configuration does not allow, Precondition if
// somebody else serves one of its resources, Unavailable or Deadline for a provider
// that cannot be reached; then nothing has changed.
func (r *Registry) Register(ctx context.Context, o ledger.ExternalProvider, by Caller) error {
	o.UID = by.UID
	if o.Deadline == 0 {
		o.Deadline = r.config.Deadline
	}
	if err := r.validate(&o); err != nil {
		return err
	}
	if err := r.permitted(o); err != nil {
		return err
	}
	if o.Required && !slices.Contains(r.config.Required, o.Name) {
		return errdefs.PermissionDeniedf("register provider %s: mode REQUIRED is for the providers that providers.outside.required names; it may register as ADVISORY", o.Name)
	}
	leave, err := r.enterChange(ctx)
	if err != nil {
		return err
	}
	defer leave()
	r.mu.Lock()
	old := r.proxies[o.Name]
	r.mu.Unlock()
	if err := owned(old, o.Name, by); err != nil {
		return err
	}
	if err := r.available(o); err != nil {
		return err
	}
	if old != nil && same(old.registration, o) && old.ready() {
		return nil
	}
	// Only a provider that has not been heard of since the start can hold
	// reservations of the berthd before this one.
	settled := old == nil || old.hasSettled()
	p, err := newProxy(o, r.config, r.parts, settled)
	if err != nil {
		return err
	}
	stop, err := r.introduce(ctx, p)
	if err != nil {
		return err
	}
	err = r.available(o) // a plugin may have come meanwhile
	if err == nil {
		_, err = r.parts.Ledger.Update(ctx, func(d *ledger.Draft) error { d.PutExternalProvider(o); return nil })
	}
	if err != nil {
		stop()
		return err
	}
	if err := r.replace(o.Name, p); err != nil {
		stop()
		return err
	}
	r.line(ctx, "hint provider registered", "provider", o.Name, "endpoint", o.Endpoint, "uid", o.UID,
		"required", o.Required, "resources", o.Resources, "again", old != nil)
	return nil
}

// permitted refuses a registration under a name that the configuration has for
// another user.
func (r *Registry) permitted(o ledger.ExternalProvider) error {
	if a, ok := r.config.allowance(o.Name); ok && a.UID != o.UID {
		return errdefs.PermissionDeniedf("register provider %s: providers.outside.allow has this name for user %d, not for user %d", o.Name, a.UID, o.UID)
	}
	return nil
}

// owned refuses a caller to whom a registration (nil: none) does not belong.
func owned(p *proxy, name string, by Caller) error {
	if p == nil || by.Trusted || p.registration.UID == by.UID {
		return nil
	}
	return errdefs.PermissionDeniedf("provider %s was registered by user %d: user %d may neither replace nor unregister it", name, p.registration.UID, by.UID)
}

// available refuses a registration for a resource that somebody else serves: a
// container that wants one would get two.
func (r *Registry) available(o ledger.ExternalProvider) error {
	for _, resource := range o.Resources {
		if r.parts.Plugin(resource) {
			return errdefs.Preconditionf("register provider %s: a device plugin serves %s, or did until a moment ago; a resource has one provider", o.Name, resource).Coded(errdefs.ResourceServed, "resource", resource)
		}
		if by, taken := r.ServedBy(resource); taken && by != o.Name {
			return errdefs.Preconditionf("register provider %s: provider %s serves %s; a resource has one provider", o.Name, by, resource).Coded(errdefs.ResourceServed, "resource", resource)
		}
	}
	return nil
}

// ServedBy returns the provider outside berthd that has registered for a resource.
func (r *Registry) ServedBy(resource string) (provider string, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, name := range slices.Sorted(maps.Keys(r.proxies)) {
		if slices.Contains(r.proxies[name].registration.Resources, resource) {
			return name, true
		}
	}
	return "", false
}

// introduce starts a proxy's keeper and waits until the provider has confirmed its
// holdings. stop ends the keeper again.
func (r *Registry) introduce(ctx context.Context, p *proxy) (stop func(), err error) {
	r.mu.Lock()
	if r.running.Err() != nil {
		r.mu.Unlock()
		_ = p.conn.Close()
		return nil, errdefs.Unavailablef("register provider %s: berthd is ending", p.Name()).Coded(errdefs.ShuttingDown)
	}
	keeping, cancel := context.WithCancel(r.running)
	ended := make(chan struct{})
	r.keepers.Go(func() { defer close(ended); p.keep(keeping); cancel() })
	r.mu.Unlock()

	stop = func() { cancel(); <-ended }
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

// replace puts a proxy (nil: none) in the place of the one with its name. The
// earlier one goes on for the admissions that began with it.
func (r *Registry) replace(name string, p *proxy) error {
	r.mu.Lock()
	next := maps.Clone(r.proxies)
	old := next[name]
	delete(next, name)
	if p != nil {
		next[name] = p
	}
	if err := r.parts.Publish(r.entries(next)); err != nil {
		r.mu.Unlock()
		return err
	}
	r.proxies = next
	r.mu.Unlock()
	if old == nil {
		return nil
	}
	close(old.retired)
	old.silence()
	if p != nil {
		// The other one may have had the last word until now.
		p.tellAgain()
	}
	return nil
}

// Unregister takes a provider off the bus and out of the ledger, with its leases.
// An unknown name is an error of class NotFound, a registration of another user's
// one of class PermissionDenied.
func (r *Registry) Unregister(ctx context.Context, name string, by Caller) error {
	leave, err := r.enterChange(ctx)
	if err != nil {
		return err
	}
	defer leave()
	r.mu.Lock()
	p := r.proxies[name]
	r.mu.Unlock()
	if p == nil {
		return errdefs.NotFoundf("no provider outside berthd is registered as %.80q", name).Coded(errdefs.ProviderNotFound, "provider", name)
	}
	if err := owned(p, name, by); err != nil {
		return err
	}
	_, err = r.parts.Ledger.Update(ctx, func(d *ledger.Draft) error {
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
	r.line(ctx, "hint provider unregistered", "provider", name)
	return r.replace(name, nil)
}
