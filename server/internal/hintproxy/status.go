package hintproxy

import (
	"context"

	"github.com/berthd/berth/managers/hint"
	"github.com/berthd/berth/managers/ledger"
)

// State is whether a provider can be called.
type State string

const (
	// Connected: it can be called.
	Connected State = "connected"
	// Away: no process answers, or the provider has not confirmed its allocations.
	Away State = "away"
	// Suspended: too many calls have failed.
	Suspended State = "suspended"
)

// Status describes a provider of the bus.
type Status struct {
	// BuiltIn providers have only a name and a mode.
	BuiltIn bool
	ledger.ExternalProvider
	State State
	// Message is the reason of the state, or the last failure.
	Message string
	// Leases without a confirmation of the provider.
	Leases []ledger.Lease
}

// List returns the status of every provider, in the order of the bus. Those that are not on it come last.
func (r *Registry) List() []Status {
	leases := map[string][]ledger.Lease{}
	for l := range r.parts.Ledger.View().Leases() {
		leases[l.Provider] = append(leases[l.Provider], l)
	}
	var out []Status
	for _, e := range r.parts.Bus() {
		s := Status{ExternalProvider: ledger.ExternalProvider{Name: e.Provider.Name()}}
		if p := external(e.Provider); p != nil {
			s = p.status()
		} else if _, required := e.Provider.(absent); required {
			s.State, s.Message = Away, notRegistered
		} else {
			s.BuiltIn = true
		}
		s.Required = e.Mode == hint.Required
		s.Leases = leases[s.Name]
		out = append(out, s)
	}
	return append(out, r.setAside()...)
}

// setAside returns the status of the registrations that could not be put on the bus at the start.
func (r *Registry) setAside() (out []Status) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for o := range r.parts.Ledger.View().ExternalProviders() {
		if err := r.unusable[o.Name]; err != nil {
			out = append(out, Status{ExternalProvider: o, State: Away, Message: "it is not used since the start of berthd: " + err.Error()})
		}
	}
	return out
}

func (p *proxy) status() Status {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := Status{ExternalProvider: p.registration, State: Connected, Message: p.breaker.Last()}
	switch {
	case !p.introduced:
		s.State, s.Message = Away, p.away
	case p.breaker.Open():
		s.State = Suspended
	}
	return s
}

// ready returns whether the provider can be called.
func (p *proxy) ready() bool { return p.status().State == Connected }

// hasDecided returns whether the provider knows that no admission of an earlier berthd is
// running.
func (p *proxy) hasDecided() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.decided
}

// notRegistered is the reason for a required provider that has not registered.
const notRegistered = "the configuration requires it, and it has not registered"

// absent stands on the bus for a required provider that has not registered. All its calls
// fail with an error in the provider's name.
type absent string

func (a absent) fail() error { return away(string(a), "yet: %s", notRegistered) }

// Name returns the name in the configuration.
func (a absent) Name() string { return string(a) }

// Hints fails.
func (a absent) Hints(context.Context, *ledger.View, hint.Request) ([]hint.ResourceAnswer, error) {
	return nil, a.fail()
}

// Plan fails.
func (a absent) Plan(context.Context, *ledger.View, hint.Request, hint.Hint) ([]ledger.Claim, error) {
	return nil, a.fail()
}

// Prepare fails.
func (a absent) Prepare(context.Context, string, hint.Request, []ledger.Claim) ([]ledger.Claim, error) {
	return nil, a.fail()
}
