package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"

	"github.com/berthd/berth/api/config"
	"github.com/berthd/berth/managers/admission"
	"github.com/berthd/berth/managers/cgroup"
	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/device"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/hint"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/machine"
	"github.com/berthd/berth/managers/managerset"
	"github.com/berthd/berth/managers/node"
	"github.com/berthd/berth/managers/qos"
	"github.com/berthd/berth/managers/recovery"
	"github.com/berthd/berth/managers/timestamp"
	"github.com/berthd/berth/managers/workload"
	"github.com/berthd/berth/server/deviceplugin"
	"github.com/berthd/berth/server/deviceplugin/registry"
	"github.com/berthd/berth/server/failpoint"
	"github.com/berthd/berth/server/hintproxy"
	"github.com/berthd/berth/server/host/claimfiles"
	"github.com/berthd/berth/server/host/service"
	"github.com/berthd/berth/server/metrics"
	"github.com/berthd/berth/server/readiness"
	"github.com/berthd/berth/server/reconcile"
	"github.com/berthd/berth/server/rpc"
	"github.com/berthd/berth/server/rpc/allocation"
	"github.com/berthd/berth/server/runtime"
	"github.com/berthd/berth/server/socket"
	"github.com/berthd/berth/server/store"
	"github.com/berthd/berth/server/task"
)

// LedgerFile is the name of the ledger in the state directory.
const LedgerFile = "ledger.db"

// Environment is what main hands in beside the configuration.
type Environment struct {
	Log *slog.Logger
	Now func() time.Time
	// Notes tell what in the configuration's sources changes nothing. Whoever hands them in
	// has logged them.
	Notes []string
	// Load reads the configuration again, and LogLevel is that of Log. Reloads has an element
	// when somebody wants it read. All may be nil.
	Load     func() (c config.Config, notes []string, err error)
	LogLevel *slog.LevelVar
	Reloads  <-chan os.Signal
	// Service is the service manager that has started berthd; nil for none.
	Service *service.Manager
	// Failpoint and Stage are for tests; nil otherwise.
	Failpoint failpoint.Hook
	Stage     *Stage
}

// Stage stands in for parts of the running system.
type Stage struct {
	// Tree holds the cgroups, in place of the one that the configuration asks for;
	// nil for none.
	Tree interface {
		cgroup.Tree
		Facts() cgroup.Facts
	}
	// MaxPIDs is how many processes the kernel may have.
	MaxPIDs int64
	// Grace is how long an orderly stop may take; 0 means as long as berthd's.
	Grace time.Duration
	// BootID stands in for the kernel's id of this boot; empty for the real one.
	BootID string
}

// App is berthd with all of its parts, built but not running.
type App struct {
	Config config.Config
	Environment

	Machine *machine.Topology
	Device  *device.Manager
	Ledger  *ledger.Ledger
	// Managers holds the managers that decide.
	Managers *managerset.Managers
	Engine   *admission.Engine

	first     *managerset.Set
	store     *store.Store
	start     StartReport
	inventory *device.Inventory
	plugins   *deviceplugin.Server
	registry  *registry.Registry
	external  *hintproxy.Registry
	facts     node.Facts
	qos       qos.Config // of any policy, without what is allocatable
	layout    cgroup.Layout
	limits    atomic.Pointer[reconcile.Limits]
	tree      cgroup.Tree
	records   cgroup.Records // files; nil where the tree keeps them
	// lastCommit marks the last commit; nil where that is not possible. markFails says that
	// the last write of it failed.
	lastCommit *claimfiles.Mark
	markFails  bool
	reconcile  *reconcile.Loop
	sweeper    *reconcile.Sweeper
	care       systemCgroups
	runtime    *runtime.Client // nil without one
	metrics    *metrics.Set
	access     *rpc.Access
	policies   *policies
	// readersLimit is the rate limit of podresources.
	readersLimit *rate.Limiter
	// reloaded is the configuration that a reload has put into force; nil before.
	reloaded atomic.Pointer[config.Config]
	history  *allocation.History
	health   *healthServer
	monitor  *readiness.Monitor
	// mainSocket is that of agents, readersSocket that of podresources.
	mainSocket, readersSocket *socket.Keeper
	main                      *rpc.Server
	readers                   *rpc.Server
	// timeout is closed when plugins have had time to come back after the start.
	timeout chan struct{}
}

// StartReport is what the start found and did, for those who ask later.
type StartReport struct {
	Ledger ledger.Report
	// Damage is set if a damaged ledger was set aside at this start.
	Damage *store.Damage
	// Drift are the differences of the nodes' memory since the last commit.
	Drift []ledger.Finding
	// Recovery has the case of each pod, by uid; OlderCopy tells that the ledger was an
	// older copy.
	Recovery  []recovery.Decision
	OlderCopy bool
	// NoDevices says that no device resource was known, also after the recovery: the
	// kubelet's ShouldResetExtendedResourceCapacity.
	NoDevices bool
}

// Build constructs berthd. It takes the lock of the state directory and opens
// the ledger; everything else waits for Run. The parts are closed again if one
// of them fails.
func Build(ctx context.Context, cfg config.Config, env Environment) (_ *App, err error) {
	env.Now = timestamp.Clock(env.Now) // what is kept in records or sent in messages comes from here
	a := &App{Config: cfg, Environment: env, metrics: metrics.New(), timeout: make(chan struct{})}
	defer func() {
		if err != nil && a.store != nil {
			err = errors.Join(err, a.store.Close())
		}
		if err != nil {
			err = errors.Join(err, a.closeRuntime(), a.closeRecords())
		}
	}()
	for _, step := range []func(context.Context) error{
		a.checkDirectories,
		a.buildMachine,
		a.buildLedger,
		a.buildRuntime,
		a.buildCgroups,
		a.buildDevices,
		a.buildEngine,
		a.buildMetrics,
		a.buildServers,
	} {
		if err := step(ctx); err != nil {
			return nil, err
		}
	}
	return a, nil
}

// Validate checks a configuration against the machine without touching anything.
func Validate(cfg config.Config) error {
	a := &App{Config: cfg}
	if err := a.buildMachine(context.Background()); err != nil {
		return err
	}
	return a.checkTree()
}

// buildMachine finds the machine and makes the managers that decide on it.
func (a *App) buildMachine(context.Context) (err error) {
	if a.Machine, err = findMachine(a.Config.Machine); err != nil {
		return err
	}
	if a.Config.Machine == "" {
		if err := a.measureHost(&a.facts); err != nil {
			return err
		}
	}
	if a.Stage != nil {
		a.facts.MaxPIDs = a.Stage.MaxPIDs
	}
	a.first, err = a.managerSetOf(a.Config)
	return err
}

// buildLedger opens the ledger; of a damaged one it keeps what is whole, and awaits
// the agent's Sync where pods are lost, unless the configuration wants a refusal.
func (a *App) buildLedger(ctx context.Context) error {
	path := filepath.Join(a.Config.StateDir, LedgerFile)
	err := a.openStateDir()
	if err != nil {
		return fmt.Errorf("stateDir: %w", err)
	}
	if a.store, err = store.Open(path, store.Options{Failpoint: a.Failpoint, Notice: func(text string) { a.Log.Error(text) }}); err != nil {
		return err
	}
	boot, err := a.bootID(os.DirFS("/proc"))
	if err != nil {
		return err
	}
	options := ledger.Options{
		Journal: a.store,
		EpochID: store.NewEpochID(), NewEpochID: store.NewEpochID,
		BootID:  boot,
		Rules:   a.first.Rules,
		Restore: a.restore,
	}
	if a.Config.StrictState {
		if a.Ledger, a.start.Ledger, err = a.store.OpenStrict(ctx, options, a.Now()); errdefs.ClassOf(err) == errdefs.Corrupt {
			return fmt.Errorf("%w; without strictState (--strict-state) the file would be set aside, and what is whole be kept", err)
		}
	} else {
		a.Ledger, a.start.Ledger, a.start.Damage, err = a.store.OpenLedger(ctx, options, a.Now())
	}
	if err != nil {
		return fmt.Errorf("open the ledger %s: %w", path, err)
	}
	a.Ledger.Follow(func(_, new *ledger.View) { a.markCommit(new) }) // before all that tell others of it
	if o := a.Ledger.View().Override(); o != nil {
		if a.first, err = a.managerSetOfOverride(*o); err != nil {
			return fmt.Errorf("the policy that was set before: %w", err)
		}
	}
	a.start.Drift = a.first.Memory.Drift(a.Ledger.View(), a.start.Ledger.Memory)
	return nil
}

// buildCgroups finds the cgroup tree and makes the reconciler.
func (a *App) buildCgroups(ctx context.Context) error {
	tree, facts, err := a.openTree()
	if err != nil {
		return err
	}
	a.tree = tree
	a.metrics.CgroupVersion(facts.Version)
	if a.qos, err = a.Config.QoSConfig(facts, int64(a.Machine.MemoryBytes())); err != nil {
		return err
	}
	if a.qos.Cgroup.SwapBytes, err = a.swapBytes(); err != nil {
		return err
	}
	if a.layout, err = cgroup.NewLayout(a.Config.Cgroups.Root, facts.Driver); err != nil {
		return err
	}
	limits, err := a.limitsOf(ctx, a.first)
	if err != nil {
		return err
	}
	a.limits.Store(&limits)
	score, err := a.setScore()
	if err != nil {
		return err
	}
	records, err := a.openRecords(ctx)
	if err != nil {
		return err
	}
	a.openLastCommit(ctx)
	parts := reconcile.Config{
		Records: records, Unseen: !a.keepsPods(), NoPodCgroups: !a.Config.Cgroups.PerQOS, Failpoint: a.Failpoint,
		Tree: tree, Layout: a.layout, Limits: limits,
		DriftPolicy: reconcile.DriftPolicy(a.Config.Cgroups.DriftPolicy),
		View:        a.Ledger.View,
		Every:       a.Config.Cgroups.ReconcilePeriod.Duration,
		Now:         a.Now, SetScore: score,
		Log:     a.Log.With("part", "reconcile"),
		Observe: a.metrics.Pass, Timed: a.metrics.Cgroup,
	}
	if a.Config.Cgroups.Tree != config.TreeMemory {
		parts.StillThere = stillThere(os.DirFS("/proc"))
	}
	if a.Config.Machine == "" {
		parts.Online = a.onlineCPUs
		parts.SetOffline = func(ctx context.Context, cpus cpuset.Set) error {
			_, err := a.Ledger.SetOffline(ctx, cpus)
			return err
		}
	}
	if a.runtime != nil {
		parts.Runtime = a.runtime
	}
	parts.Listed = a.listed()
	if parts.Plain, err = a.plainTree(); err != nil {
		return err
	}
	a.reconcile = reconcile.New(parts)
	a.Ledger.Follow(func(_, _ *ledger.View) { a.reconcile.Wake() })
	return nil
}

// buildDevices makes the inventory, which remembers the resources that had
// plugins before, the server that plugins register with, and the one that finds
// those which do not.
func (a *App) buildDevices(context.Context) error {
	a.inventory = device.NewInventory(slices.Collect(a.Ledger.View().SeenResources()), a.Now())
	a.Ledger.Follow(func(_, new *ledger.View) { a.expectPlugins(new) })
	p := a.Config.Providers
	a.plugins = deviceplugin.New(deviceplugin.Config{
		Dir: a.Config.DevicePluginDir,
		Deadlines: deviceplugin.Deadlines{
			Dial: p.CallTimeout.Duration, Options: p.CallTimeout.Duration, Preferred: p.CallTimeout.Duration,
			Allocate: p.AllocateTimeout.Duration, PreStart: p.PreStartTimeout.Duration,
		},
		MaxDevices: a.Config.Limits.PluginDevices, MaxResources: a.Config.Limits.PluginResources,
		ForgetAfter: a.Config.Devices.ForgetAfter.Duration, KeepName: a.Config.Devices.Unknown == config.UnknownIgnore,
	}, deviceplugin.Parts{
		Inventory: a.inventory, Memory: seenResources{a.Ledger},
		ExternalProvider: func(resource string) (string, bool) { return a.external.ServedBy(resource) },
		Log:              a.Log.With("part", "deviceplugin"), Now: a.Now, Observer: a.metrics,
	})
	a.registry = registry.New(registry.Config{
		Dir: a.Config.PluginRegistryDir,
		Deadlines: registry.Deadlines{
			Dial: p.CallTimeout.Duration, Info: p.PluginInfoTimeout.Duration,
		},
	}, registry.Parts{
		Plugins: a.plugins, Log: a.Log.With("part", "registry"), Now: a.Now, After: time.After,
	})
	a.Device = device.New(a.inventory, a.plugins)
	return nil
}

// buildEngine activates the managers and builds the engine on them.
func (a *App) buildEngine(context.Context) (err error) {
	if a.Managers, err = managerset.NewManagers(a.first, a.Device, context.WithTimeout); err != nil {
		return err
	}
	if err := a.buildExternal(); err != nil {
		return err
	}
	a.Engine = admission.New(admission.Config{
		Features: a.Config.WorkloadFeatures(),
		Bounds:   workload.Bounds{Containers: a.Config.Limits.Containers},

		DeferWaits: a.Config.Verdicts.Deferred,
		Resources:  a.Config.Resources(a.Now()),
	}, admission.Parts{
		Ledger: a.Ledger, Managers: a.managers,
		CgroupManager: a.reconcile, Starter: a.plugins, Lives: a.lives,
		Environment: admission.Environment{
			Now: a.Now, NewID: rpc.NewID, User: rpc.UserOf, Waits: rpc.EndTurn, Away: rpc.Away, Slot: rpc.Slot,
			WithTimeout: context.WithTimeout, Each: task.Each,
		},
	})
	a.reconcile.Bindings, a.reconcile.InFlight = a.Engine, a.Engine.InFlight
	a.sweeper = &reconcile.Sweeper{
		Orphans: a.reconcile.Orphans, Remove: a.reconcile.RemoveOrphan, Layout: a.reconcile.Layout,
		Alone: a.Engine.Alone, Keep: a.keepLiving, Every: a.Config.Cgroups.ReconcilePeriod.Duration,
		Now: a.Now, Log: a.Log.With("part", "sweep"),
	}
	return nil
}

// buildExternal puts the providers that the ledger knows beside those inside.
func (a *App) buildExternal() (err error) {
	o := a.Config.Providers.External
	var allowed []hintproxy.Allowance
	for _, p := range o.Allow {
		allowed = append(allowed, hintproxy.Allowance{Provider: p.Provider, UID: p.UID, Edits: p.Edits})
	}
	a.external, err = hintproxy.New(hintproxy.Config{
		Deadline: o.Deadline.Duration, Connect: o.Connect.Duration, Lease: o.Lease.Duration, Required: o.Required, Allowed: allowed,
	}, hintproxy.Parts{
		Ledger: a.Ledger, Publish: a.Managers.SetExternal, Log: a.Log.With("part", "hintproxy"), Now: a.Now,
		Bus: func() []hint.Entry { return a.inForce().Bus.Entries() },
		Plugin: func(resource string) bool {
			r, ok := a.inventory.Snapshot().Resource(resource)
			return ok && r.State != device.Expired
		},
	})
	if err == nil {
		a.Ledger.Follow(func(_, _ *ledger.View) { a.external.Wake() })
	}
	return err
}

// buildMetrics gives the metrics what they read.
func (a *App) buildMetrics(context.Context) error {
	a.metrics.Start(metrics.Sources{View: a.Ledger.View, Settings: a.settings, Sockets: a.registry.Sockets, Kernel: a.reconcile.Findings, Phases: a.reconcile.Phases})
	return nil
}
