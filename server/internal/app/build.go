// Package app constructs berthd from its parts.
//
//   - build.go constructs the parts in order, from the machine up to the servers.
//   - managers.go constructs the managers of a configuration, and replaces them when the
//     policy changes.
//   - servers.go registers the services, the metrics and the page; callers.go limits their
//     use by callers.
//   - start.go checks the system for a configuration (berthd config check), and decides at the
//     start which pods exist and what they hold.
//   - changes.go applies changed files (Reload) and a changed machine while berthd runs.
//   - run.go starts the parts, stops them in reverse order, and reports their health.
//   - host.go compares the running system with the configuration, and drops the
//     privileges that are not needed. systemcgroups.go moves the system's processes.
//
// Constructors start nothing. An App that was built and never run has only created its state
// directory and the directory of claim records.
//
// Only berthd's main, tests and server/servertest import this package.
package app

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"

	"github.com/berthd/berth/api/access"
	nodev1 "github.com/berthd/berth/api/berth/node/v1"
	"github.com/berthd/berth/api/config"
	"github.com/berthd/berth/managers/admission"
	"github.com/berthd/berth/managers/cgroup"
	"github.com/berthd/berth/managers/cgroup/memtree"
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
	"github.com/berthd/berth/server/internal/deviceplugin"
	"github.com/berthd/berth/server/internal/deviceplugin/registry"
	"github.com/berthd/berth/server/internal/failpoint"
	"github.com/berthd/berth/server/internal/hintproxy"
	"github.com/berthd/berth/server/internal/host/cgroupfs"
	"github.com/berthd/berth/server/internal/host/claimfiles"
	"github.com/berthd/berth/server/internal/host/service"
	"github.com/berthd/berth/server/internal/host/systemd"
	"github.com/berthd/berth/server/internal/logs"
	"github.com/berthd/berth/server/internal/metrics"
	"github.com/berthd/berth/server/internal/mover"
	"github.com/berthd/berth/server/internal/moves"
	"github.com/berthd/berth/server/internal/readiness"
	"github.com/berthd/berth/server/internal/reconcile"
	"github.com/berthd/berth/server/internal/rpc"
	"github.com/berthd/berth/server/internal/rpc/allocation"
	"github.com/berthd/berth/server/internal/runtime"
	"github.com/berthd/berth/server/internal/socket"
	"github.com/berthd/berth/server/internal/store"
	"github.com/berthd/berth/server/internal/task"
	"github.com/berthd/berth/server/internal/tracing"
)

// LedgerFile is the name of the ledger in the state directory.
const LedgerFile = "ledger.db"

// Environment is main's input beside the configuration.
type Environment struct {
	Log *slog.Logger
	Now func() time.Time
	// Notes name settings in the configuration's sources that have no effect. The caller of Build
	// has logged them.
	Notes []string
	// Load reads the configuration again. LogLevel is the level of Log. An element of Reloads
	// requests a reload. All may be nil.
	Load     func() (c config.Config, notes []string, err error)
	LogLevel *slog.LevelVar
	Reloads  <-chan os.Signal
	// Service is the service manager that has started berthd; nil for none.
	Service *service.Manager
	// Tracer makes spans of calls and steps; nil for none.
	Tracer *tracing.Tracer
	// Reader is the connection to the reader of huge pages; nil without one.
	Reader *os.File
	// Failpoint and Stage are for tests; nil otherwise.
	Failpoint failpoint.Hook
	Stage     *Stage
}

// Stage replaces parts of the running system in tests.
type Stage struct {
	// Tree holds the cgroups, in place of the one that the configuration requests;
	// nil for none.
	Tree interface {
		cgroup.Tree
		Facts() cgroup.Facts
	}
	// MaxPIDs is how many processes the kernel may have.
	MaxPIDs int64
	// Grace is how long an orderly stop may take; 0 means as long as berthd's.
	Grace time.Duration
	// BootID replaces the kernel's id of this boot; empty for the real one.
	BootID string
}

// App is berthd with all of its parts, built but not running.
type App struct {
	Config config.Config
	Environment

	Device *device.Manager
	Ledger *ledger.Ledger
	// Managers holds the managers that decide.
	Managers *managerset.Managers
	Engine   *admission.Engine

	// found is the machine of the start; machine returns the one in use.
	found     *machine.Topology
	first     *managerset.Set
	store     *store.Store
	lock      *admission.Lock
	start     StartReport
	inventory *device.Inventory
	plugins   *deviceplugin.Server
	registry  *registry.Registry
	external  *hintproxy.Registry
	facts     node.Facts
	qos       qos.Config // independent of the policy, without the allocatable amounts
	layout    cgroup.Layout
	limits    atomic.Pointer[reconcile.Limits]
	tree      cgroup.Tree
	// driver is the container runtime's, or else the configured one.
	driver  cgroup.Driver
	records cgroup.Records // files; nil where the tree keeps them
	// lastCommit marks the last commit; nil if that is not possible.
	lastCommit *claimfiles.Mark
	// recordsRenewed is how often the directory of claim records was made again, as logged.
	recordsRenewed int
	reconcile      *reconcile.Loop
	moves          *moves.Moves
	sweeper        *reconcile.Sweeper
	// systemProcesses are what the last round of the system cgroups found.
	systemProcesses atomic.Pointer[[]*nodev1.SystemContainer]
	runtime         *runtime.Client // nil without one
	metrics         *metrics.Set
	access          *rpc.Access
	page            *rpc.Page
	policies        *policies
	schedulers      *schedulers
	// readersLimit is the rate limit of podresources.
	readersLimit *rate.Limiter
	// reloaded is the configuration that a reload has put into force; nil before.
	reloaded atomic.Pointer[config.Config]
	history  *allocation.History
	mover    *mover.Mover
	pages    pageChanges
	places   atomic.Pointer[machine.Topology] // see notePlaces
	replacer *mover.Replacer                  // nil if lost CPUs and memory are only reported
	health   *healthServer
	// main serves agents; readers serves podresources.
	main, readers *rpc.Server
	// readerSocket is nil if podresources is switched off.
	agentSocket, readerSocket *socket.Keeper
	// monitor checks whether berthd can serve.
	monitor *readiness.Monitor
	// timeout is closed when plugins have had time to come back after the start.
	timeout chan struct{}
}

// StartReport has the findings and actions of the start, for Inspect.
type StartReport struct {
	Ledger ledger.Report
	// Damage is set if a damaged ledger was set aside at this start.
	Damage *store.Damage
	// Drift are the differences of the nodes' memory since the last commit.
	Drift []ledger.Finding
	// Recovery has the case of each pod, by uid; OlderCopy means that the ledger was an
	// older copy.
	Recovery  []recovery.Decision
	OlderCopy bool
	// NoDevices means that no device resource was known after the recovery: the kubelet's
	// ShouldResetExtendedResourceCapacity.
	NoDevices bool
}

// Build constructs berthd. It locks the state directory and opens the ledger. Run does everything
// else. If a part fails, the earlier parts are closed.
func Build(ctx context.Context, cfg config.Config, env Environment) (_ *App, err error) {
	env.Now = timestamp.Clock(env.Now) // every time in records and messages has this resolution
	a := &App{Config: cfg, Environment: env, metrics: metrics.New(), timeout: make(chan struct{}), pages: newPageChanges()}
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
	if a.driver = cgroup.Driver(cfg.Cgroups.Driver); cfg.RuntimeEndpoint != "" {
		a.driver = cgroup.Cgroupfs // the runtime's driver is unknown; the controllers are the same with both
	}
	return a.checkTree()
}

// buildMachine discovers the machine and constructs its managers.
func (a *App) buildMachine(context.Context) (err error) {
	if a.found, err = findMachine(a.Config.Machine); err != nil {
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

// buildLedger opens the ledger. The intact part of a damaged ledger is kept. If pods are lost,
// admissions wait for the agent's Sync, unless the configuration refuses damaged ledgers.
func (a *App) buildLedger(ctx context.Context) error {
	path := filepath.Join(a.Config.StateDir, LedgerFile)
	err := a.openStateDir()
	if err != nil {
		return fmt.Errorf("stateDir: %w", err)
	}
	if a.store, err = store.Open(path, store.Options{Failpoint: a.Failpoint,
		Notice: func(text string) { a.Log.Error(text, logs.Repaired(logs.Ledger)...) }}); err != nil {
		return err
	}
	a.openLastCommit(ctx)
	boot, err := a.bootID(os.DirFS("/proc"))
	if err != nil {
		return err
	}
	options := ledger.Options{
		Journal: a.store,
		EpochID: store.NewEpochID(), NewEpochID: store.NewEpochID,
		BootID:  boot,
		Rules:   a.first.Rules,
		Restore: a.restore, Keep: a.keepReserved,
		History: ledger.HistoryLimits{Entries: a.Config.History.Entries, Bytes: a.Config.History.Bytes}, Now: a.Now,
	}
	if a.Config.StrictState {
		if a.Ledger, a.start.Ledger, err = a.store.OpenStrict(ctx, options, a.Now()); errdefs.ClassOf(err) == errdefs.Corrupt {
			return fmt.Errorf("%w; without strictState (--strict-state) the file would be set aside, and its intact records kept", err)
		}
	} else {
		a.Ledger, a.start.Ledger, a.start.Damage, err = a.store.OpenLedger(ctx, options, a.Now())
	}
	if err != nil {
		return fmt.Errorf("open the ledger %s: %w", path, err)
	}
	a.Ledger.Follow(a.markCommits()) // first follower: the mark precedes all notifications
	rules := a.Ledger.View().Rules()
	if o := a.Ledger.View().Override(); o != nil {
		if a.first, err = a.managerSetOfOverride(*o); err != nil {
			return fmt.Errorf("restore the policy that was set before: %w", err)
		}
	}
	if rules.ReservedCPUs != a.first.Rules.ReservedCPUs {
		if a.first, err = a.managerSetKeeping(rules.ReservedCPUs, a.Ledger.View().Override()); err != nil {
			return fmt.Errorf("keep the reserved CPUs: %w", err)
		}
	}
	a.start.Drift = a.first.Memory.Drift(a.Ledger.View(), a.start.Ledger.Memory)
	return nil
}

// buildCgroups opens the cgroup tree and constructs the reconciler.
func (a *App) buildCgroups(ctx context.Context) error {
	tree, facts, err := a.openTree()
	if err != nil {
		return err
	}
	a.tree = tree
	a.metrics.CgroupVersion(facts.Version)
	if a.qos, err = a.Config.QoSConfig(facts, int64(a.found.MemoryBytes())); err != nil {
		return err
	}
	if a.qos.Cgroup.SwapBytes, err = a.swapBytes(); err != nil {
		return err
	}
	if a.layout, err = cgroup.NewLayout(a.Config.Cgroups.Root, facts.Driver); err != nil {
		return err
	}
	a.lock = admission.NewLock(a.Ledger, rpc.UserOf)
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
	parts := reconcile.Config{
		Records: records, Unseen: !a.keepsPods(), NoPodCgroups: !a.Config.Cgroups.PerQOS,
		Failpoint: a.Failpoint,
		Tree:      tree, Layout: a.layout, Limits: limits,
		DriftPolicy: reconcile.DriftPolicy(a.Config.Cgroups.DriftPolicy),
		View:        a.Ledger.View, InFlight: a.lock.InFlight, Bindings: a.lock,
		Every: a.Config.Cgroups.ReconcilePeriod.Duration,
		Now:   a.Now, SetScore: score,
		Log:     a.Log.With("part", "reconcile"),
		Observe: a.metrics.Pass, Timed: a.metrics.Cgroup,
	}
	if a.Config.Cgroups.Tree != config.TreeMemory {
		parts.StillThere = stillThere(os.DirFS("/proc"))
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
	a.moves = moves.New(moves.Config{Loop: a.reconcile, Reported: memoryIsReported(a.Config), HugePages: a.hugePages()})
	a.Ledger.Follow(a.moves.Committed)
	return nil
}

// buildDevices constructs the inventory with the resources that had plugins before. It also
// constructs the registration server, and the watcher for plugins that register through sockets
// in a directory.
func (a *App) buildDevices(context.Context) error {
	a.inventory = device.NewInventory(slices.Collect(a.Ledger.View().SeenResources()), a.Now())
	a.Ledger.Follow(func(_, new *ledger.View) { a.expectPlugins(new) })
	p, external := a.Config.Providers, a.externalConfig()
	a.plugins = deviceplugin.New(deviceplugin.Config{
		Dir: config.Path(a.Config.DevicePluginDir),
		Deadlines: deviceplugin.Deadlines{
			Dial: p.CallTimeout.Duration, Options: p.CallTimeout.Duration, Preferred: p.CallTimeout.Duration,
			Allocate: p.AllocateTimeout.Duration, PreStart: p.PreStartTimeout.Duration,
		},
		MaxDevices: a.Config.Limits.PluginDevices, MaxResources: a.Config.Limits.PluginResources,
		ForgetAfter: a.Config.Devices.ForgetAfter.Duration, KeepName: a.Config.Devices.Unknown == config.UnknownIgnore,
	}, deviceplugin.Parts{
		Inventory: a.inventory, Memory: seenResources{a.Ledger},
		ExternalProvider: func(resource string) (string, bool) { return external.ServedBy(a.Ledger.View(), resource) },
		Log:              a.Log.With("part", "deviceplugin"), Now: a.Now, Observer: a.metrics,
	})
	a.registry = registry.New(registry.Config{
		Dir: config.Path(a.Config.PluginRegistryDir),
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
		Resources:  a.Config.Resources(a.Now()), BytesPerSecond: a.Config.Moves.BytesPerSecond,
	}, admission.Parts{
		Ledger: a.Ledger, Lock: a.lock, Managers: a.managers, ClaimManagers: a.claimManagers,
		CgroupManager: a.reconcile, Starter: a.plugins, Lives: a.lives, Mover: a.moves,
		Environment: admission.Environment{
			Now: a.Now, NewID: rpc.NewID, Waits: rpc.EndTurn, Away: rpc.Away, Slot: rpc.Slot,
			WithTimeout: context.WithTimeout, Each: task.Each, Observe: recordSteps(a.Tracer.Steps(a.metrics.Step)),
		},
	})
	a.buildMover()
	a.buildReplacer()
	a.sweeper = &reconcile.Sweeper{
		Orphans: a.reconcile.Orphans, Remove: a.reconcile.RemoveOrphan, Layout: a.reconcile.Layout,
		Alone: a.Engine.Alone, Keep: a.keepLiving, Every: a.Config.Cgroups.ReconcilePeriod.Duration,
		Now: a.Now, Log: a.Log.With("part", "sweep"),
	}
	return nil
}

// externalConfig is the configuration of external providers.
func (a *App) externalConfig() hintproxy.Config {
	o := a.Config.Providers.External
	var allowed []hintproxy.Allowance
	for _, p := range o.Allow {
		allowed = append(allowed, hintproxy.Allowance{Provider: p.Provider, UID: p.UID, Edits: p.Edits})
	}
	return hintproxy.Config{
		Deadline: o.Deadline.Duration, Connect: o.Connect.Duration, Lease: o.Lease.Duration, Required: o.Required, Allowed: allowed,
	}
}

// noGroup is the id that no group has (setgid(2)).
const noGroup = ^uint32(0)

// buildExternal adds the ledger's external providers to the built-in ones.
func (a *App) buildExternal() (err error) {
	a.access = rpc.NewAccess(selfUID(), a.Config.Access, a.ownerOf)
	a.external, err = hintproxy.New(a.externalConfig(), hintproxy.Parts{
		Ledger: a.Ledger, Publish: a.Managers.SetExternal, Log: a.Log.With("part", "hintproxy"), Now: a.Now,
		Bus: func() []hint.Entry { return a.inForce().Bus.Entries() },
		MayProvide: func(uid uint32, gid *uint32) bool {
			who := rpc.Peer{UID: uid, GID: noGroup}
			if gid != nil {
				who.GID = *gid
			}
			return a.access.Allows(who, access.Provider)
		},
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

// openTree opens the cgroup tree that the configuration requests.
func (a *App) openTree() (cgroup.Tree, cgroup.Facts, error) {
	c := a.Config
	if a.Stage != nil && a.Stage.Tree != nil {
		return a.Stage.Tree, a.Stage.Tree.Facts(), nil
	}
	if c.Cgroups.Tree == config.TreeMemory {
		facts := memtree.V1()
		return memtree.New(facts, a.found.CPUs(), a.found.MemoryNodeMask()).TakeAny(), facts, nil
	}
	options := cgroupfs.Options{Mount: c.Cgroups.Mount}
	if a.driver == cgroup.Systemd {
		d, err := systemd.Open(options)
		if err != nil {
			return nil, cgroup.Facts{}, err
		}
		return d, d.Facts(), nil
	}
	d, err := cgroupfs.Open(options)
	if err != nil {
		return nil, cgroup.Facts{}, err
	}
	return d, d.Facts(), nil
}

// listed returns the configured cgroups that are not pods'.
func (a *App) listed() (out []reconcile.Listed) {
	c := a.Config.Node
	for _, l := range []struct {
		field, literal string
		plain          bool
	}{
		{"node.systemReservedCgroup", c.SystemReservedCgroup, false}, {"node.kubeReservedCgroup", c.KubeReservedCgroup, false},
		{"node.systemCgroups", c.SystemCgroup, true}, {"node.kubeletCgroups", c.OwnCgroup, true},
		{"node.runtimeCgroups", c.RuntimeCgroup, true}, {"node.agentCgroups", c.AgentCgroup, true},
	} {
		name := a.layout.Driver().Parse(l.literal)
		if l.plain {
			name = cgroup.ParseCgroupfs(l.literal)
		}
		if l.literal != "" && !name.IsRoot() {
			out = append(out, reconcile.Listed{Name: name, Field: l.field, Plain: l.plain})
		}
	}
	return out
}

// plainTree reaches plain directories where the driver makes slices; nil where it makes
// directories itself.
func (a *App) plainTree() (cgroup.Tree, error) {
	if a.layout.Driver() != cgroup.Systemd || a.Config.Cgroups.Tree == config.TreeMemory || a.Stage != nil && a.Stage.Tree != nil {
		return nil, nil
	}
	return cgroupfs.Open(cgroupfs.Options{Mount: a.Config.Cgroups.Mount})
}

// checkTree checks that this machine has the configured cgroup tree and controllers. With a
// simulated machine there is nothing to check.
func (a *App) checkTree() error {
	if a.Config.Machine != "" || a.Config.Cgroups.Tree == config.TreeMemory {
		return nil
	}
	tree, _, err := a.openTree()
	if err != nil {
		return err
	}
	if c, ok := tree.(io.Closer); ok {
		return c.Close()
	}
	return nil
}

// reloadsAgain is the delay before systemd is watched again after the bus was lost.
const reloadsAgain = 10 * time.Second

// followReloads runs a pass after each reload of systemd. A reload can reset values, and can
// create slices of removed pods again. Without systemd's tree there is nothing to watch. While
// the bus is unavailable, the periodic passes find the changes.
func (a *App) followReloads(ctx context.Context) error {
	tree, ok := a.tree.(interface {
		Reloads(ctx context.Context, done func()) error
	})
	for ok && ctx.Err() == nil {
		err := tree.Reloads(ctx, func() {
			if err := a.reconcile.Pass(ctx); err != nil && ctx.Err() == nil {
				a.Log.WarnContext(ctx, "reconcile cgroups after a reload of systemd", "error", err)
			}
			a.sweeper.Look(ctx)
		})
		a.Log.DebugContext(ctx, "reloads of systemd are not watched", "again_in", reloadsAgain, "error", err)
		select {
		case <-ctx.Done():
		case <-time.After(reloadsAgain):
		}
	}
	<-ctx.Done()
	return ctx.Err()
}
