package hintproxy

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/hint"
)

// budget is the time of one admission that calls to advisory providers have taken, all of them
// together. So many slow providers delay an admission no longer than one.
type budget struct {
	mu    sync.Mutex
	spent time.Duration
}

func (b *budget) spend(d time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.spent += d
}

// allowance is how long one call may take.
type allowance struct {
	budget *budget // nil: the budget does not limit the provider
	limit  time.Duration
	// cut is whether the budget allows less than the registration.
	cut bool
}

// allowance returns how long a call of an admission may take. It is an error if the advisory providers
// have used up their time.
func (p *proxy) allowance(ctx context.Context, method string) (allowance, error) {
	a := allowance{limit: p.registration.Deadline}
	if slices.Contains(p.config.Required, p.Name()) {
		return a, nil
	}
	a.budget = hint.Scratch[budget](ctx)
	a.budget.mu.Lock()
	left := p.config.Deadline - a.budget.spent
	a.budget.mu.Unlock()
	if left <= 0 {
		return a, p.failed(errdefs.Deadline,
			"was not called (%s): advisory providers have %s together in an admission, and have used it up", method, p.config.Deadline)
	}
	if left < a.limit {
		a.limit, a.cut = left, true
	}
	return a, nil
}

// ends spends the time of a call. It returns whether a failure of the call counts: not if the others had left too
// little time for it.
func (p *proxy) ends(a allowance, began time.Time) (counts bool) {
	took := p.parts.Now().Sub(began)
	if a.budget != nil {
		a.budget.spend(took)
	}
	return !a.cut || took > p.config.Deadline/2
}

// explanations limits the time that the explanations of all providers take.
type explanations struct {
	mu     sync.Mutex
	second int64
	spent  time.Duration
}

// explainPerSecond is the time that all explanations together may take in a second.
const explainPerSecond = 2 * explainTime

// begin returns false if there was enough explanation in this second. end has to be called otherwise.
func (e *explanations) begin(now func() time.Time) (end func(), ok bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	began := now()
	if second := began.Unix(); second != e.second {
		e.second, e.spent = second, 0
	}
	if e.spent >= explainPerSecond {
		return nil, false
	}
	return func() {
		took := now().Sub(began)
		e.mu.Lock()
		defer e.mu.Unlock()
		e.spent += took
	}, true
}
