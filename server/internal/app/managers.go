package app

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/berthd/berth/api/config"
	"github.com/berthd/berth/managers/admission"
	"github.com/berthd/berth/managers/cgroup"
	"github.com/berthd/berth/managers/cpu"
	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/device"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/hint"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/machine"
	"github.com/berthd/berth/managers/managerset"
	"github.com/berthd/berth/managers/memory"
	"github.com/berthd/berth/managers/node"
	"github.com/berthd/berth/managers/topology"
	"github.com/berthd/berth/managers/workload"
	"github.com/berthd/berth/server/internal/host/sysfs"
	"github.com/berthd/berth/server/internal/metrics"
	"github.com/berthd/berth/server/internal/reconcile"
)

// managerSetOf makes the managers that a configuration requests on the machine in use.
func (a *App) managerSetOf(c config.Config) (*managerset.Set, error) {
	return a.managerSetOn(c, a.machine(), cpuset.Set{})
}

// limitsOf returns what the cgroups get that follow from the managers and not from
// pods.
func (a *App) limitsOf(ctx context.Context, p *managerset.Set) (reconcile.Limits, error) {
	top := p.Node.PodsNode(a.layout)
	limits := reconcile.Limits{QoS: a.qos, Pods: top.Values}
	limits.QoS.Cgroup.MemoryBytes = int64(p.Rules.Machine.MemoryBytes())
	limits.QoS.Cgroup.AllocatableMemoryBytes = p.Node.Absolute()[workload.Memory]
	var err error
	if limits.Reserved, err = p.Node.ReservedNodes(a.qos.Cgroup.Facts.Driver); err != nil {
		return limits, err
	}
	if !a.Config.Cgroups.PerQOS && !top.Name.IsRoot() {
		limits.Reserved = append(limits.Reserved, top)
	}
	// In a container the tree may have fewer CPUs than the machine.
	root, err := a.tree.Observe(ctx, nil, 0)
	if err != nil {
		return limits, err
	}
	if has := root.Find(nil).Effective.CPUs; !has.IsEmpty() {
		limits.Pods.CPUs = limits.Pods.CPUs.Intersect(has)
		for i := range limits.Reserved {
			v := &limits.Reserved[i].Values
			v.CPUs = v.CPUs.Intersect(has)
		}
	}
	return limits, nil
}

// containerConfig is what the values of containers depend on now.
func (a *App) containerConfig() cgroup.Config { return a.limits.Load().QoS.Cgroup }

// inForce returns the managers that decide now.
func (a *App) inForce() *managerset.Set {
	_, set := a.Managers.InForce(a.Ledger.View)
	return set
}

// inFlight returns the view with the pods that are being admitted or resized, and the managers that decide on it.
func (a *App) inFlight() (*ledger.View, *managerset.Set) { return a.Managers.InForce(a.lock.InFlight) }

// wholeNode returns the manager of the node as a whole that is in force.
func (a *App) wholeNode() *node.Manager { return a.inForce().Node }

// managers returns the hint bus and the topology manager for a view; nil if none decide on it any more.
func (a *App) managers(view *ledger.View) (*hint.Bus, *topology.Manager) {
	if p := a.Managers.On(view); p != nil {
		return p.Bus, p.Topology
	}
	return nil, nil
}

// managersAt returns the managers that decide on a view, which may be one of the past: with the policy
// in force, on the machine of that time.
func (a *App) managersAt(view *ledger.View) (*managerset.Set, error) {
	return a.Managers.At(view, func() (*managerset.Set, error) {
		policy, _ := a.policies.Policy()
		var kept cpuset.Set
		if rules := view.Rules(); rules.ConfigDigest == a.Ledger.View().Rules().ConfigDigest {
			kept = a.Config.KeptReserved(rules.ReservedCPUs)
		}
		return a.managerSetOn(a.files().With(policy), view.Machine(), kept)
	})
}

// claimManagers returns the hint bus and the topology manager for a resource claim; nil if none decide on the view any more.
func (a *App) claimManagers(view *ledger.View, claim *workload.Pod) (*hint.Bus, *topology.Manager, error) {
	if p := a.Managers.On(view); p != nil {
		return p.For(claim)
	}
	return nil, nil, nil
}

// cpus is the CPU manager in force, for services that outlive it.
type cpus struct{ app *App }

// Describe implements hint.Describer.
func (c cpus) Describe() hint.Description { return c.app.inForce().CPU.Describe() }

// Allocatable returns the CPUs that may ever be given exclusively.
func (c cpus) Allocatable() cpuset.Set { return c.app.inForce().CPU.Allocatable() }

// policies changes the policy while berthd runs.
//
// The rule for a start: a policy that was set holds while files and flags give the same policy as
// when it was set. If they give another one, theirs holds, the policy that was set is dropped,
// and the start report has a line for it.
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
		// The override in force was parsed before, or written by this process.
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
	changed, outlook, err = p.change(ctx, cfg, func(digest string) (*ledger.Override, error) { return p.app.overrideOf(next, digest) },
		dryRun)
	return next, changed, outlook, err
}

// change puts the policy of a configuration into force, or only reports what would become of it.
// override returns what the ledger keeps of it. The caller holds mu.
func (p *policies) change(ctx context.Context, cfg config.Config, override func(digest string) (*ledger.Override, error), dryRun bool) (
	changed bool, outlook admission.Outlook, err error,
) {
	a := p.app
	managers, err := a.managerSetOn(cfg, a.machine(), a.keptUnder(cfg))
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
	// The ledger decides which managers stay active, whether or not the change succeeds.
	defer func() { a.Managers.Activate(a.Ledger.View().Rules()) }()
	kept, err := override(digest)
	if err != nil {
		return false, outlook, err
	}
	if c := ledger.CallOf(ctx); c != nil {
		settings, err := cfg.Policy().Marshal()
		if err != nil {
			return false, outlook, err
		}
		c.Request = &ledger.HistoryRequest{Policy: settings}
	}
	active := a.Managers.Of(managers.Rules)
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

// managerSetOfOverride constructs the managers of an override. An error is the reason why the
// override no longer holds.
func (a *App) managerSetOfOverride(o ledger.Override) (*managerset.Set, error) {
	c, err := a.overridden(o)
	if err != nil {
		return nil, err
	}
	return a.managerSetOf(c)
}

// overridden returns the configuration with the policy of an override.
func (a *App) overridden(o ledger.Override) (c config.Config, err error) {
	configured, err := a.files().Digest()
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
	c = a.files().With(p)
	return c, c.Validate()
}

// policyLine reports what became of a policy that was set before; empty if there was
// none.
func (a *App) policyLine() string {
	if d := a.start.Ledger.Dropped; d != nil {
		_, why := a.managerSetOfOverride(*d)
		return fmt.Sprintf("the policy that was set at %s is dropped: %v", d.SetAt.UTC().Format(time.RFC3339), why)
	}
	if o := a.Ledger.View().Override(); o != nil {
		return fmt.Sprintf("the policy that was set at %s replaces the configured one", o.SetAt.UTC().Format(time.RFC3339))
	}
	return ""
}

// freePages implements memory.Pages.
func (a *App) freePages() ([]memory.FreePages, *ledger.View, error) {
	nodes, err := freeHugePages()
	var out []memory.FreePages
	for _, n := range nodes {
		for _, p := range n.HugePages {
			out = append(out, memory.FreePages{Node: n.ID, SizeKiB: p.SizeKiB, Pages: p.Count})
		}
	}
	return out, a.Ledger.View(), err
}

// freeHugePages reads the kernel's free huge pages by NUMA node.
func freeHugePages() ([]machine.Node, error) {
	sys, err := os.OpenRoot("/sys")
	if err != nil {
		return nil, errdefs.Unavailablef("read free huge pages: %w", err)
	}
	defer sys.Close()
	return sysfs.FreeHugePages(sys.FS())
}

// kernelFree reads what the kernel has free of memory and huge pages; nil if the machine is
// not this one.
func (a *App) kernelFree() func() ([]machine.Node, error) {
	if a.Config.Machine != "" {
		return nil
	}
	return func() ([]machine.Node, error) {
		sys, err := os.OpenRoot("/sys")
		if err != nil {
			return nil, errdefs.Unavailablef("read free memory: %w", err)
		}
		defer sys.Close()
		return sysfs.Free(sys.FS())
	}
}

// seenResources keeps in the ledger what device resources there are.
type seenResources struct{ ledger *ledger.Ledger }

// Remember implements deviceplugin.Memory.
func (m seenResources) Remember(ctx context.Context, r ledger.SeenResource) error {
	_, err := m.ledger.Update(ctx, func(d *ledger.Draft) error { d.PutResource(r); return nil })
	return err
}

// Forget implements deviceplugin.Memory.
func (m seenResources) Forget(ctx context.Context, resource string, may func() error) error {
	_, err := m.ledger.Update(ctx, func(d *ledger.Draft) error {
		if holders := holdersOf(d.View(), resource); len(holders) > 0 {
			return errdefs.Preconditionf("%s cannot be forgotten while it is held by %s", resource, strings.Join(holders, ", ")).
				Coded(errdefs.ResourceInUse, "resource", resource)
		}
		if err := may(); err != nil {
			return err
		}
		d.ForgetResource(resource)
		return nil
	})
	return err
}

// namedHolders bounds how many holders of a resource an error names.
const namedHolders = 8

// holdersOf names the containers that hold devices of a resource which came from a
// device plugin.
func holdersOf(view *ledger.View, resource string) (names []string) {
	more := 0
	for p := range view.DeviceHolders() {
		for i := range p.Claims {
			c := &p.Claims[i]
			switch {
			case c.Resource != resource || c.Provider != device.Name || c.Devices == nil:
			case len(names) == namedHolders:
				more++
			default:
				names = append(names, fmt.Sprintf("container %s of pod %s", c.Owner.Container, &p.Pod))
			}
		}
	}
	if more > 0 {
		names = append(names, fmt.Sprintf("%d more", more))
	}
	return names
}

// expectPlugins adds resources to the inventory that an import has added to the ledger.
func (a *App) expectPlugins(view *ledger.View) {
	for r := range view.SeenResources() {
		a.inventory.Expect(r.Name, a.Now())
	}
}

// settings are the current settings that the metrics depend on.
func (a *App) settings() metrics.Settings {
	p := a.inForce()
	d := p.CPU.Describe()
	fullCores, _ := strconv.ParseBool(d.Options[cpu.FullPCPUsOnly])
	q := a.qos.Cgroup
	return metrics.Settings{
		StaticCPUs: d.Policy == cpu.PolicyStatic, FullCores: fullCores,
		Topology: p.Topology.Policy(), Scope: p.Topology.Scope(),
		PodLevelResourceManagers: a.Config.WorkloadFeatures().PodLevelResourceManagers,
		MemoryQoS:                q.MemoryQoS,
		TieredReservation:        q.MemoryQoS && q.Facts.Version == cgroup.V2 && q.ReservationPolicy == cgroup.ReserveTiered,
	}
}
