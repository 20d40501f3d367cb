package admission

import (
	"context"

	"github.com/berthd/berth/managers/admission/reservations"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/hint"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/ledger/history"
	"github.com/berthd/berth/managers/topology"
)

// managers are the managers of one machine and configuration. The zero value is none.
type managers struct {
	Bus    *hint.Bus
	Policy *topology.Manager
	// rules are those that the managers decide under.
	rules ledger.Rules
}

// DecideOn returns whether these are the managers for a view.
func (m managers) DecideOn(view *ledger.View) bool {
	return m.Bus != nil && m.rules.SameManagers(view.Rules())
}

// Basis is a view with the managers that decide on it. A plan has one basis from its begin to
// its end: other managers would plan claims that the rules of the view do not allow.
type Basis struct {
	View *ledger.View
	managers
}

// On returns the basis for a view that drafts have made of this one, so its rules are the same.
func (b Basis) On(view *ledger.View) Basis {
	b.View = view
	return b
}

// errOutdated means that there are no managers for a view any more, because the machine or the
// configuration has changed since it was taken.
var errOutdated = errdefs.Unavailablef("the policy or the machine has changed meanwhile")

// BasisOn returns the basis on a view. The error is errOutdated.
func (e *Engine) BasisOn(view *ledger.View) (Basis, error) {
	bus, policy := e.Managers(view)
	if bus == nil {
		return Basis{}, errOutdated
	}
	return Basis{view, managers{bus, policy, view.Rules()}}, nil
}

// Basis returns the basis on the view that take returns. If that is outdated, it takes another
// one. Under the admission lock no view is outdated.
func (e *Engine) Basis(take func() *ledger.View) (b Basis, err error) {
	for range e.Attempts {
		if b, err = e.BasisOn(take()); err == nil {
			return b, nil
		}
	}
	return Basis{}, errdefs.Unavailablef("the policy or the machine was changed during each of %d attempts", e.Attempts)
}

// BasisInFlight is the basis on the current view with all reservations.
func (e *Engine) BasisInFlight() (Basis, error) { return e.Basis(e.InFlight) }

// Decides is BasisInFlight for a decision of the call, whose entry of the history gets it.
func (e *Engine) Decides(ctx context.Context) (Basis, error) {
	var now reservations.Counted
	b, err := e.Basis(func() *ledger.View {
		now = e.reserved.Count(e.Ledger.View)
		return now.View
	})
	if err == nil {
		decidedOn(ctx, now)
	}
	return b, err
}

// decidedOn notes that the call of the context is decided on the view.
func decidedOn(ctx context.Context, c reservations.Counted) {
	history.CallOf(ctx).DecidedOn(c.View, c.Reserved)
}
