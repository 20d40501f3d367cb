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
	"github.com/berthd/berth/server/internal/host/endpoint"
	"github.com/berthd/berth/server/internal/logs"
)

// Ledger stores registrations and leases of providers.
type Ledger interface {
	View() *ledger.View
	Update(ctx context.Context, change func(*ledger.Draft) error) (*ledger.View, error)
}

// Parts are the dependencies of the registry.
type Parts struct {
	Ledger Ledger
	// Publish replaces the providers on the bus.
	Publish func(external []hint.Entry) error
	// Bus returns every provider of the bus, in order.
	Bus func() []hint.Entry
	// Plugin returns whether a device plugin serves a resource; nil means that none does.
	Plugin func(resource string) bool
	Log    *slog.Logger
	Now    func() time.Time
	// Dial connects to a provider's endpoint; nil means endpoint.Dial.
	Dial Dialer
	// WithTimeout limits calls; nil means context.WithTimeout.
	WithTimeout hint.WithTimeout
}

// Registry manages all external providers. Its methods are safe for concurrent use.
type Registry struct {
	config Config
	parts  Parts

	// changing is held while a provider is added or removed, including calls to it.
	changing chan struct{}

	mu      sync.Mutex
	proxies map[string]*proxy // guarded by mu
	keepers sync.WaitGroup    // Add is called with mu held, while running has not ended
	// running ends when the registry stops.
	running context.Context
	stop    context.CancelFunc

	lines *rate.Limiter // limits log lines, because a provider can register and unregister often
}

// line logs an action of a caller, within the rate limit.
func (r *Registry) line(ctx context.Context, text string, args ...any) {
	if r.lines.Allow() {
		r.parts.Log.InfoContext(ctx, text, args...)
	}
}

// New returns a registry of the ledger's providers and publishes them. It does not connect.
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
		if err := r.config.permitted(o); err != nil {
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

// entries returns the providers in the form of the bus.
func (r *Registry) entries(proxies map[string]*proxy) []hint.Entry {
	var out []hint.Entry
	for _, name := range slices.Sorted(maps.Keys(proxies)) {
		p := proxies[name]
		mode := hint.Advisory
		if slices.Contains(r.config.Required, name) {
			mode = hint.Required
		}
		// The proxy applies the deadline itself, to distinguish a slow provider from a
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

// Run connects to the providers and keeps their allocations up to date until Stop. It
// continues after the end of ctx, because admissions that finish during berthd's shutdown
// need their providers.
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

// Stop ends Run and all connections.
func (r *Registry) Stop(context.Context) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.stop()
	return nil
}

// Wake starts sending the ledger's changes to all providers. It does not wait.
func (r *Registry) Wake() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, p := range r.proxies {
		p.poke()
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
	o.UID = by.UID
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
	// Only a provider without contact since the start of this berthd can hold reservations
	// of an earlier berthd.
	decided := old == nil || old.hasDecided()
	p, err := newProxy(o, r.config, r.parts, decided)
	if err != nil {
		return err
	}
	stop, err := r.introduce(ctx, p)
	if err != nil {
		return err
	}
	err = r.available(o) // a device plugin may have registered meanwhile
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
	r.line(ctx, "hint provider registered", logs.Came(logs.Provider, "provider", o.Name, "endpoint", o.Endpoint, "uid", o.UID,
		"required", o.Required, "resources", o.Resources, "again", old != nil)...)
	return nil
}

// permitted refuses a registration under a name that the configuration reserves for another
// user.
func (c Config) permitted(o ledger.ExternalProvider) error {
	if a, ok := c.allowance(o.Name); ok && a.UID != o.UID {
		return errdefs.PermissionDeniedf("register provider %s: providers.external.allow has this name for user %d, not for user %d", o.Name, a.UID, o.UID)
	}
	return nil
}

// owned refuses a caller who does not own a registration (nil: there is none).
func owned(p *proxy, name string, by Caller) error {
	if p == nil || by.Trusted || p.registration.UID == by.UID {
		return nil
	}
	return errdefs.PermissionDeniedf("provider %s was registered by user %d: user %d may neither replace nor unregister it", name, p.registration.UID, by.UID)
}

// available refuses a registration for a resource with another server, because a container
// that requests one unit would get two.
func (r *Registry) available(o ledger.ExternalProvider) error {
	for _, resource := range o.Resources {
		if r.parts.Plugin(resource) {
			return errdefs.Preconditionf("register provider %s: a device plugin serves %s, or did until a moment ago; a resource has one provider", o.Name, resource).Coded(errdefs.ResourceServed, "resource", resource)
		}
		if by, taken := r.config.ServedBy(r.parts.Ledger.View(), resource); taken && by != o.Name {
			return errdefs.Preconditionf("register provider %s: provider %s serves %s; a resource has one provider", o.Name, by, resource).Coded(errdefs.ResourceServed, "resource", resource)
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

// replace replaces the proxy with a name (nil: removes it). Running admissions continue
// with the earlier proxy.
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
		// Until now the other proxy may have sent the last Commit.
		p.sendAgain()
	}
	return nil
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
	r.line(ctx, "hint provider unregistered", logs.Gone(logs.Provider, "provider", name)...)
	return r.replace(name, nil)
}
