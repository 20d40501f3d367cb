package ledger

import (
	"context"
	"encoding/json"
	"time"

	"github.com/berthd/berth/managers/errdefs"
)

// Override is a policy that was set while berthd was running. It replaces the policy of the
// configuration.
type Override struct {
	// Settings as in the configuration; the ledger only stores them.
	Settings json.RawMessage `json:"settings"`
	// Over is the digest of the replaced configuration. If the configuration gets another
	// digest, the override is dropped.
	Over  string    `json:"over"`
	SetAt time.Time `json:"set_at"`
}

// Override returns the policy that replaces the configuration's; nil if there is none.
func (v *View) Override() *Override { return v.override }

// Under returns a view of the same pods under other rules, as after a change of policy.
func (v *View) Under(rules Rules) *View {
	other := *v
	other.rules = rules
	other.rules.TakenPages = v.rules.TakenPages
	return &other
}

// SetTakenPages changes the huge pages that pods cannot have, as a separate generation. Errors are those of a failed write.
func (l *Ledger) SetTakenPages(ctx context.Context, pages []TakenPages) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	next := *l.View()
	next.rules.TakenPages = pages
	_, err := l.commit(ctx, &next, nil)
	return err
}

// SetRules changes the rules that claims are checked against, as a separate generation;
// drafts on older views become stale. New findings about the returned view are
// grandfathered. Errors are those of a failed write, and Invalid for rules without a
// machine.
func (l *Ledger) SetRules(ctx context.Context, rules Rules) (*View, error) {
	return l.reign(ctx, rules, func(old *View) *Override { return old.override })
}

// SetOverride is SetRules for the rules of a policy, which is stored with them. Nil returns
// to the configuration's policy.
func (l *Ledger) SetOverride(ctx context.Context, rules Rules, o *Override) (*View, error) {
	return l.reign(ctx, rules, func(*View) *Override { return o })
}

func (l *Ledger) reign(ctx context.Context, rules Rules, override func(old *View) *Override) (*View, error) {
	if rules.Machine == nil {
		return nil, errdefs.Invalidf("set rules: no machine given")
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	old := l.View()
	next := old.Under(rules)
	next.override = override(old)
	return l.commit(ctx, next, nil)
}
