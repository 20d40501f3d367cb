package app

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"reflect"
	"sync"
	"sync/atomic"

	"github.com/berthd/berth/api/config"
	"github.com/berthd/berth/managers/admission"
	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/ledger/history"
	"github.com/berthd/berth/managers/machine"
	"github.com/berthd/berth/managers/managerset"
	"github.com/berthd/berth/managers/memory"
	"github.com/berthd/berth/managers/node"
	"github.com/berthd/berth/server/internal/host/sysfs"
)

// setMaker makes the managers of a configuration.
type setMaker struct {
	facts node.Facts
	// view is the present view of the ledger. Without one, the set decides nothing: it only has the rules of its configuration.
	view func() *ledger.View
}

// on makes the managers that a configuration requests on a machine. kept are the CPUs
// that stay reserved; empty for those that follow from the configuration.
func (s setMaker) on(c config.Config, m *machine.Topology, kept cpuset.Set) (*managerset.Set, error) {
	cfg, err := c.ManagerSet(m)
	if err != nil {
		return nil, err
	}
	cfg.CPU.KeptReserved = kept
	cfg.Facts = s.facts
	if check := c.Memory.CheckFreeHugePages; check != config.PagesIgnore && c.Machine == "" && s.view != nil {
		cfg.Pages = &memory.Pages{Free: s.freePages, Wait: check == config.PagesDefer}
	}
	return managerset.New(cfg, m)
}

// checked is on for a configuration that is to come into force. Errors are also those of CheckReservedPages.
func (s setMaker) checked(c config.Config, m *machine.Topology, kept cpuset.Set) (*managerset.Set, error) {
	if err := c.CheckReservedPages(m); err != nil {
		return nil, err
	}
	return s.on(c, m, kept)
}

// keeping makes the managers of a configuration, or of the policy that replaces its own, with CPUs that stay reserved.
func (s setMaker) keeping(c config.Config, m *machine.Topology, reserved cpuset.Set, o *ledger.Override) (*managerset.Set, error) {
	if o != nil {
		var err error
		if c, err = overridden(c, *o); err != nil {
			return nil, err
		}
	}
	return s.checked(c, m, reserved)
}

// overridden returns a configuration with the policy of an override. An error is the reason why the override no longer holds.
func overridden(files config.Config, o ledger.Override) (c config.Config, err error) {
	configured, err := files.Digest()
	if err != nil {
		return c, err
	}
	if configured != o.Over {
		return c, errors.New("files or flags have another policy than when it was set")
	}
	p, err := config.ReadPolicy(o.Settings)
	if err != nil {
		return c, err
	}
	c = files.With(p)
	return c, c.Validate()
}

// freePages implements memory.Pages.
func (s setMaker) freePages() ([]memory.FreePages, *ledger.View, error) {
	nodes, err := freeHugePages()
	var out []memory.FreePages
	for _, n := range nodes {
		for _, p := range n.HugePages {
			out = append(out, memory.FreePages{Node: n.ID, SizeKiB: p.SizeKiB, Pages: p.Count})
		}
	}
	return out, s.view(), err
}

// freeHugePages reads the kernel's free huge pages by NUMA node.
func freeHugePages() ([]machine.Node, error) { return readFree("free huge pages", sysfs.FreeHugePages) }

func readFree(what string, read func(fs.FS) ([]machine.Node, error)) ([]machine.Node, error) {
	sys, err := os.OpenRoot("/sys")
	if err != nil {
		return nil, errdefs.Unavailablef("read %s: %w", what, err)
	}
	defer sys.Close()
	return read(sys.FS())
}

// kernelFree reads what the kernel has free of memory and huge pages; nil if the machine is
// not this one.
func kernelFree(c config.Config) func() ([]machine.Node, error) {
	if c.Machine != "" {
		return nil
	}
	return func() ([]machine.Node, error) { return readFree("free memory", sysfs.Free) }
}

// policies changes the policy while berthd runs.
//
// The rule for a start: a policy that was set holds while files and flags give the same policy as
// when it was set. If they give another one, theirs holds, the policy that was set is dropped,
// and the start report has a line for it.
type policies struct {
	given    *given
	state    *state
	kernel   *kernel
	deciding *deciding
	mu       sync.Mutex // held while the configuration, the policy or the machine is changed
	// reloaded is the configuration that a reload has put into force; nil before.
	reloaded atomic.Pointer[config.Config]
}

// files returns the configuration of files and flags as far as it is in force: the start's,
// with what later reloads have changed.
func (p *policies) files() config.Config {
	if c := p.reloaded.Load(); c != nil {
		return *c
	}
	return p.given.Config
}

// Policy implements topology.Policies.
func (p *policies) Policy() (config.Policy, *ledger.Override) {
	o := p.state.ledger.View().Override()
	if o == nil {
		return p.files().Policy(), nil
	}
	policy, err := config.ReadPolicy(o.Settings)
	if err != nil {
		// The override in force was parsed before, or written by this process.
		return p.files().Policy(), nil
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
	files := p.files()
	next = change(now, files.Policy())
	cfg := files.With(next)
	if err := cfg.Validate(); err != nil {
		return next, false, outlook, err
	}
	changed, outlook, err = p.change(ctx, cfg, func(digest string) (*ledger.Override, error) { return p.overrideOf(next, digest) },
		dryRun)
	return next, changed, outlook, err
}

// change puts the policy of a configuration into force, or only reports what would become of it.
// override returns what the ledger keeps of it. The caller holds mu.
func (p *policies) change(ctx context.Context, cfg config.Config, override func(digest string) (*ledger.Override, error), dryRun bool) (
	changed bool, outlook admission.Outlook, err error,
) {
	active, view := p.deciding.managers, p.state.ledger.View
	managers, err := p.state.sets.checked(cfg, view().Machine(), p.keptUnder(cfg))
	if err != nil {
		return false, outlook, err
	}
	limits, err := p.kernel.limitsOf(ctx, managers)
	if err != nil {
		return false, outlook, err
	}
	digest := managers.Rules.ConfigDigest
	old := view().Rules().ConfigDigest
	changed = digest != old
	if dryRun || !changed {
		if managers, err = active.Join(managers); err == nil {
			outlook, err = p.deciding.engine.Foresee(ctx, admission.Change{
				Rules: managers.Rules, Bus: managers.Bus, Policy: managers.Topology,
			})
		}
		return changed, outlook, err
	}
	if err := active.Stage(managers); err != nil {
		return false, outlook, err
	}
	// The ledger decides which managers stay active, whether or not the change succeeds.
	defer func() { active.Activate(view().Rules()) }()
	kept, err := override(digest)
	if err != nil {
		return false, outlook, err
	}
	if c := history.CallOf(ctx); c != nil {
		settings, err := cfg.Policy().Marshal()
		if err != nil {
			return false, outlook, err
		}
		c.Request = &history.Request{Policy: settings}
	}
	set := active.Of(managers.Rules)
	outlook, err = p.deciding.engine.Reconfigure(ctx, admission.Change{
		Rules: set.Rules, Bus: set.Bus, Policy: set.Topology, Override: kept,
	})
	if err != nil {
		return false, outlook, err
	}
	p.kernel.setLimits(limits)
	p.given.Log.InfoContext(ctx, "the policy was changed", "topology", set.Topology.String(),
		"cpu", cfg.CPU.Policy, "memory", cfg.Memory.Policy, "generation", outlook.After.Generation())
	return true, outlook, nil
}

// keptUnder returns the reserved CPUs that another policy keeps: the present ones, if it reserves
// the same.
func (p *policies) keptUnder(next config.Config) cpuset.Set {
	policy, _ := p.Policy()
	if !reflect.DeepEqual(policy.Reserved, next.Reserved) || !reflect.DeepEqual(policy.CPU, next.CPU) {
		return cpuset.Set{}
	}
	return p.given.Config.KeptReserved(p.state.ledger.View().Rules().ReservedCPUs)
}

// overrideOf is what the ledger keeps of a policy; nothing if it is that of the
// configuration.
func (p *policies) overrideOf(next config.Policy, digest string) (*ledger.Override, error) {
	configured, err := p.files().Digest()
	if err != nil || digest == configured {
		return nil, err
	}
	settings, err := next.Marshal()
	if err != nil {
		return nil, err
	}
	return &ledger.Override{Settings: settings, Over: configured, SetAt: p.given.Now()}, nil
}

// at returns the managers that decide on a view, which may be one of the past: with the policy
// in force, on the machine of that time.
func (p *policies) at(view *ledger.View) (*managerset.Set, error) {
	return p.deciding.managers.At(view, func() (*managerset.Set, error) {
		policy, _ := p.Policy()
		var kept cpuset.Set
		if rules := view.Rules(); rules.ConfigDigest == p.state.ledger.View().Rules().ConfigDigest {
			kept = p.given.Config.KeptReserved(rules.ReservedCPUs)
		}
		return p.state.sets.on(p.files().With(policy), view.Machine(), kept)
	})
}
