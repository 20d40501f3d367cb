package hintproxy

import (
	"context"

	"github.com/berthd/berth/managers/hint"
	"github.com/berthd/berth/managers/ledger"
)

// State says whether a provider can be asked.
type State string

const (
	// Connected: it can.
	Connected State = "connected"
	// Away: nobody answers, or the provider does not confirm its holdings.
	Away State = "away"
	// Suspended: it has failed too often.
	Suspended State = "suspended"
)

// Status is what is to be told of a provider of the bus.
type Status struct {
	// BuiltIn providers have a name and a mode and nothing else.
	BuiltIn bool
	ledger.ExternalProvider
	State State
	// Message is what stands in the way, or the last failure.
	Message string
	// Leases that the provider has not confirmed.
	Leases []ledger.Lease
}

// List tells of every provider in the order of the bus.
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

// ready reports whether the provider can be asked.
func (p *proxy) ready() bool { return p.status().State == Connected }

// hasSettled reports whether the provider was told that no admission of an earlier
// berthd is under way.
func (p *proxy) hasSettled() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.settled
}

// notRegistered is what stands in the way of a provider that only the
// configuration knows.
const notRegistered = "the configuration requires it, and it has not registered"

// absent stands on the bus for a provider that the configuration requires and that
// has not registered: everything fails in its name.
type absent string

func (a absent) fail() error { return away(string(a), "yet: %s", notRegistered) }

// Name returns the name that the configuration has.
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
