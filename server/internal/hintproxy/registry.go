package hintproxy

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/berthd/berth/managers/hint"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/server/internal/host/endpoint"
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
	// MayProvide returns whether a user may register providers, by itself or by the group that it
	// registered with; nil means that all may.
	MayProvide func(uid uint32, gid *uint32) bool
}

// Registry manages all external providers. Its methods are safe for concurrent use.
type Registry struct {
	config Config
	parts  Parts

	connections  connections
	explanations explanations

	// changing is held while the ledger and the bus get another provider, and never over a connection.
	changing chan struct{}

	mu      sync.Mutex
	proxies map[string]*proxy // guarded by mu
	// earlier are proxies that were replaced or removed, oldest first, until the end of the admissions that
	// can use them. There is at most one of a name, and maxOfUser of a user. Guarded by mu.
	earlier []*proxy
	// unusable is why a registration of the ledger could not be put on the bus at the start, by name. It
	// stays in the ledger until somebody removes it. Guarded by mu.
	unusable map[string]error
	// registering is a lock for each user who is registering a provider. Guarded by mu.
	registering map[Caller]*registering
	keepers     sync.WaitGroup // Add is called with mu held, while running has not ended
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

// New returns a registry of the ledger's providers and publishes them. It does not connect. A provider that
// cannot be published is set aside and reported, because it must not prevent the start.
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
	if parts.MayProvide == nil {
		parts.MayProvide = func(uint32, *uint32) bool { return true }
	}
	r := &Registry{
		config: cfg.withDefaults(), parts: parts,
		changing: make(chan struct{}, 1), proxies: map[string]*proxy{}, registering: map[Caller]*registering{},
		unusable: map[string]error{},
		lines:    rate.NewLimiter(rate.Every(time.Second), 20),
	}
	r.connections = connections{dial: parts.Dial, maxBytes: r.config.MaxAnswerBytes}
	r.running, r.stop = context.WithCancel(context.Background())
	if err := r.publish(nil); err != nil {
		return nil, err
	}
	for o := range parts.Ledger.View().ExternalProviders() {
		if r.over(o) != "" {
			continue // Run ends it
		}
		if err := r.restore(o); err != nil {
			r.unusable[o.Name] = err
			parts.Log.Warn("a registered hint provider is not used", "provider", o.Name, "uid", o.UID, "error", err,
				"remedy", "berthctl providers remove "+o.Name)
		}
	}
	return r, nil
}

// restore publishes a provider of the ledger.
func (r *Registry) restore(o ledger.ExternalProvider) error {
	p, err := r.newProxy(o, false)
	if err != nil {
		return err
	}
	next := maps.Clone(r.proxies)
	next[o.Name] = p
	if err := r.publish(next); err != nil {
		p.release()
		return err
	}
	r.proxies = next
	return nil
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
		if p.stop == nil {
			r.begin(p)
		}
	}
	r.mu.Unlock()
	r.endRegistrations()
	r.keepers.Wait()
	return nil
}

// begin starts the keeper of a proxy. ended is closed when it has ended. mu must be held.
func (r *Registry) begin(p *proxy) (ended <-chan struct{}) {
	keeping, cancel := context.WithCancel(r.running)
	p.stop = cancel
	done := make(chan struct{})
	r.keepers.Go(func() { defer close(done); defer cancel(); p.keep(keeping); r.forget(p) })
	return done
}

// forget removes an earlier proxy that has ended.
func (r *Registry) forget(p *proxy) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.earlier = slices.DeleteFunc(r.earlier, func(e *proxy) bool { return e == p })
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
