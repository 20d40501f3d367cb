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
	bus    *hint.Bus
	policy *topology.Manager
	// rules are those that the managers decide under.
	rules ledger.Rules
}

// decideOn returns whether these are the managers for a view.
func (m managers) decideOn(view *ledger.View) bool {
	return m.bus != nil && m.rules.SameManagers(view.Rules())
}

// basis is a view with the managers that decide on it. A plan has one basis from its begin to
// its end: other managers would plan claims that the rules of the view do not allow.
type basis struct {
	view *ledger.View
	managers
}

// on returns the basis for a view that drafts have made of this one, so its rules are the same.
func (b basis) on(view *ledger.View) basis {
	b.view = view
	return b
}

// errOutdated means that there are no managers for a view any more, because the machine or the
// configuration has changed since it was taken.
var errOutdated = errdefs.Unavailablef("the policy or the machine has changed meanwhile")

// basisOn returns the basis on a view. The error is errOutdated.
func (e *Engine) basisOn(view *ledger.View) (basis, error) {
	bus, policy := e.Managers(view)
	if bus == nil {
		return basis{}, errOutdated
	}
	return basis{view, managers{bus, policy, view.Rules()}}, nil
}

// basis returns the basis on the view that take returns. If that is outdated, it takes another
// one. Under the admission lock no view is outdated.
func (e *Engine) basis(take func() *ledger.View) (b basis, err error) {
	for range e.Attempts {
		if b, err = e.basisOn(take()); err == nil {
			return b, nil
		}
	}
	return basis{}, errdefs.Unavailablef("the policy or the machine was changed during each of %d attempts", e.Attempts)
}

// inFlight is the basis on the current view with all reservations.
func (e *Engine) inFlight() (basis, error) { return e.basis(e.InFlight) }

// decides is inFlight for a decision of the call, whose entry of the history gets it.
func (e *Engine) decides(ctx context.Context) (basis, error) {
	var now reservations.Counted
	b, err := e.basis(func() *ledger.View {
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
