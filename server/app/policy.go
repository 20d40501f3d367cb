package app

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/berthd/berth/api/config"
	"github.com/berthd/berth/managers/admission"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/managerset"
)

// policies changes the policy of the managers while berthd runs.
//
// The rule for a start: a policy that was set holds as long as files and flags give
// the policy that they gave when it was set. Once they give another one they win,
// the policy that was set is dropped, and the start's report says so.
type policies struct {
	app *App
	mu  sync.Mutex // held while a policy is changed
}

// Policy implements topology.Policies.
func (p *policies) Policy() (config.Policy, *ledger.Override) {
	o := p.app.Ledger.View().Override()
	if o == nil {
		return p.app.files().Policy(), nil
	}
	policy, err := config.ReadPolicy(o.Settings)
	if err != nil {
		// What is in force was read before, or written by this process.
		return p.app.files().Policy(), nil
	}
	return policy, o
}

// SetPolicy implements topology.Policies.
func (p *policies) SetPolicy(ctx context.Context, change func(now, configured config.Policy) config.Policy, dryRun bool) (
	next config.Policy, changed bool, outlook admission.Outlook, err error,
) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now, _ := p.Policy()
	files := p.app.files()
	next = change(now, files.Policy())
	cfg := files.With(next)
	if err := cfg.Validate(); err != nil {
		return next, false, outlook, err
	}
	changed, outlook, err = p.change(ctx, cfg, func(digest string) (*ledger.Override, error) { return p.app.overrideOf(next, digest) }, dryRun)
	return next, changed, outlook, err
}

// change puts the policy of a configuration into force, or only tells what would become of it.
// override returns what the ledger keeps of it. The caller holds mu.
func (p *policies) change(ctx context.Context, cfg config.Config, override func(digest string) (*ledger.Override, error), dryRun bool) (
	changed bool, outlook admission.Outlook, err error,
) {
	a := p.app
	managers, err := a.managerSetOf(cfg)
	if err != nil {
		return false, outlook, err
	}
	limits, err := a.limitsOf(ctx, managers)
	if err != nil {
		return false, outlook, err
	}
	digest := managers.Rules.ConfigDigest
	old := a.Ledger.View().Rules().ConfigDigest
	changed = digest != old
	if dryRun || !changed {
		if managers, err = a.Managers.Join(managers); err == nil {
			outlook, err = a.Engine.Foresee(ctx, admission.Change{
				Rules: managers.Rules, Bus: managers.Bus, Policy: managers.Topology,
			})
		}
		return changed, outlook, err
	}
	if err := a.Managers.Stage(managers); err != nil {
		return false, outlook, err
	}
	// Whatever happens, who stays is who the ledger says.
	defer func() { a.Managers.Activate(a.Ledger.View().Rules().ConfigDigest) }()
	kept, err := override(digest)
	if err != nil {
		return false, outlook, err
	}
	active := a.Managers.Of(digest)
	outlook, err = a.Engine.Reconfigure(ctx, admission.Change{
		Rules: active.Rules, Bus: active.Bus, Policy: active.Topology, Override: kept,
	})
	if err != nil {
		return false, outlook, err
	}
	a.limits.Store(&limits)
	a.reconcile.SetLimits(limits)
	a.Log.InfoContext(ctx, "the policy was changed", "topology", active.Topology.String(),
		"cpu", cfg.CPU.Policy, "memory", cfg.Memory.Policy, "generation", outlook.After.Generation())
	return true, outlook, nil
}

// overrideOf is what the ledger keeps of a policy; nothing if it is that of the
// configuration.
func (a *App) overrideOf(p config.Policy, digest string) (*ledger.Override, error) {
	configured, err := a.files().Digest()
	if err != nil || digest == configured {
		return nil, err
	}
	settings, err := p.Marshal()
	if err != nil {
		return nil, err
	}
	return &ledger.Override{Settings: settings, Over: configured, SetAt: a.Now()}, nil
}

// restore gives the rules of a policy that was set before, when the ledger is opened;
// false if it has had its day.
func (a *App) restore(o ledger.Override) (ledger.Rules, bool) {
	set, err := a.managerSetOfOverride(o)
	if err != nil {
		return ledger.Rules{}, false
	}
	return set.Rules, true
}

// managerSetOfOverride makes the managers that an override asks for. An error says why
// it has had its day.
func (a *App) managerSetOfOverride(o ledger.Override) (*managerset.Set, error) {
	configured, err := a.files().Digest()
	if err != nil {
		return nil, err
	}
	if configured != o.Over {
		return nil, errors.New("files or flags have another policy than when it was set")
	}
	p, err := config.ReadPolicy(o.Settings)
	if err != nil {
		return nil, err
	}
	c := a.files().With(p)
	if err := c.Validate(); err != nil {
		return nil, err
	}
	return a.managerSetOf(c)
}

// policyLine tells what became of a policy that was set before; empty if there was
// none.
func (a *App) policyLine() string {
	if d := a.start.Ledger.Dropped; d != nil {
		_, why := a.managerSetOfOverride(*d)
		return fmt.Sprintf("the policy that was set at %s is dropped: %v", d.SetAt.UTC().Format(time.RFC3339), why)
	}
	if o := a.Ledger.View().Override(); o != nil {
		return fmt.Sprintf("the policy that was set at %s stands in place of the configuration's", o.SetAt.UTC().Format(time.RFC3339))
	}
	return ""
}
