package hintproxy

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/berthd/berth/managers/ledger"
)

const (
	// registrationLease is how long a provider may be away before its registration ends, unless pods hold
	// its claims or the configuration requires it.
	registrationLease = 5 * time.Minute
	// endingPeriod is how often registrations are checked for their lease.
	endingPeriod = 10 * time.Second
)

// over returns why a registration must end, whatever its provider does; empty if it need not.
func (r *Registry) over(o ledger.ExternalProvider) string {
	if err := r.config.permitted(o); err != nil {
		return err.Error()
	}
	if !r.parts.MayProvide(o.UID, o.GID) {
		return fmt.Sprintf("user %d does not have the role provider any more", o.UID)
	}
	return ""
}

// expired returns why the lease of a registration has ended; empty if it has not.
func (r *Registry) expired(p *proxy, view *ledger.View) string {
	r.mu.Lock()
	required := slices.Contains(r.config.Required, p.Name())
	r.mu.Unlock()
	if required {
		return ""
	}
	p.mu.Lock()
	away, since := !p.introduced, p.since
	p.mu.Unlock()
	if !away || r.parts.Now().Sub(since) < registrationLease || view.HasClaimsOf(p.Name()) {
		return ""
	}
	return fmt.Sprintf("it has been away for %s, and no pod has its claims", registrationLease)
}

// EndRegistrations ends the registrations of users without the role, and those whose lease has ended. One that
// cannot be ended is tried again, and does not keep the others.
func (r *Registry) EndRegistrations(ctx context.Context) error {
	leave, err := r.enterChange(ctx)
	if err != nil {
		return err
	}
	defer leave()
	view := r.parts.Ledger.View()
	var failed []error
	for o := range view.ExternalProviders() {
		r.mu.Lock()
		p := r.proxies[o.Name]
		r.mu.Unlock()
		why := r.over(o)
		if why == "" && p != nil {
			why = r.expired(p, view)
		}
		if why == "" {
			continue
		}
		if err := r.drop(ctx, o.Name, "the registration of a hint provider has ended", "reason", why); err != nil {
			failed = append(failed, fmt.Errorf("end the registration of provider %s: %w", o.Name, err))
		}
	}
	return errors.Join(failed...)
}

// endRegistrations calls EndRegistrations at the start and periodically, until Stop.
func (r *Registry) endRegistrations() {
	tick := time.NewTicker(endingPeriod)
	defer tick.Stop()
	for {
		if err := r.EndRegistrations(r.running); err != nil && r.running.Err() == nil {
			r.parts.Log.Warn("ending registrations of hint providers failed", "error", err)
		}
		select {
		case <-tick.C:
		case <-r.running.Done():
			return
		}
	}
}
