package ledger

import (
	"context"
	"encoding/json"
	"time"

	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/errdefs"
)

// Override is a policy that was set while berthd ran and stands in place of what the
// configuration says.
type Override struct {
	// Settings in the configuration's own spelling; the ledger only keeps them.
	Settings json.RawMessage `json:"settings"`
	// Over is the digest of the configuration that they stand in place of. Once
	// that has another one, they have had their day.
	Over  string    `json:"over"`
	SetAt time.Time `json:"set_at"`
}

// Override returns the policy that stands in place of the configuration's; nil for
// none.
func (v *View) Override() *Override { return v.override }

// Under returns a view of the same facts under other rules, as a change of policy
// would leave it.
func (v *View) Under(rules Rules) *View {
	other := *v
	rules.OfflineCPUs = v.rules.OfflineCPUs
	other.rules = rules
	return &other
}

// SetRules makes other rules the ones that claims are held against, as a
// generation of its own; drafts on older views become stale. What Check says of
// the returned view beyond what it said before is grandfathered. Errors are
// those of a journal that cannot write, and Invalid for rules without a machine.
func (l *Ledger) SetRules(ctx context.Context, rules Rules) (*View, error) {
	return l.reign(ctx, rules, func(old *View) *Override { return old.override })
}

// SetOverride is SetRules for rules that follow from a policy, which is kept with
// them; nil: they follow from the configuration again.
func (l *Ledger) SetOverride(ctx context.Context, rules Rules, o *Override) (*View, error) {
	return l.reign(ctx, rules, func(*View) *Override { return o })
}

// SetOffline notes which CPUs of the machine are off line, as a generation of its own.
// What else the rules say stays, and rules that are set later leave this as it is.
func (l *Ledger) SetOffline(ctx context.Context, cpus cpuset.Set) (*View, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	old := l.View()
	next := old.Under(old.rules)
	next.rules.OfflineCPUs = cpus
	return l.rule(ctx, old, next, old.override)
}

func (l *Ledger) reign(ctx context.Context, rules Rules, override func(old *View) *Override) (*View, error) {
	if rules.Machine == nil {
		return nil, errdefs.Invalidf("set rules: no machine given")
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	old := l.View()
	return l.rule(ctx, old, old.Under(rules), override(old))
}

// rule commits a view under other rules. The caller holds mu.
func (l *Ledger) rule(ctx context.Context, old, next *View, override *Override) (*View, error) {
	next.generation, next.override = old.generation+1, override
	entries, err := encodeMeta(next, old.rules.Memory)
	if err == nil {
		b := batch{entries: entries}
		b.override(old, next)
		entries, err = b.entries, b.err
	}
	if err != nil {
		return nil, errdefs.Internalf("set rules: %w", err)
	}
	if err := l.write(ctx, old, next, entries); err != nil {
		return nil, err
	}
	return next, nil
}
