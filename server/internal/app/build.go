// Package app constructs berthd from its parts.
//
//   - build.go constructs the parts in order. A step returns what it has made, and a later step
//     gets what it needs of that: the ledger (state.go), the cgroups (kernel.go), the devices
//     (devices.go), the managers and the engine (deciding.go), the servers (servers.go).
//   - managers.go constructs the managers of a configuration, and replaces them when the
//     policy changes.
//   - servers.go registers the services and the metrics; http.go serves metrics, health and the page;
//     callers.go limits the use of services by callers.
//   - check.go checks the system for a configuration (berthd config check).
//   - start.go decides at the start which pods exist and what they hold, and reports it.
//   - reload.go applies changed files, and machine.go a changed machine, while berthd runs.
//   - run.go starts the parts and stops them in reverse order; health.go checks their health.
//   - host.go compares the running system with the configuration. systemcgroups.go moves the
//     processes of the system.
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
	"log/slog"
	"os"
	"time"

	"github.com/berthd/berth/api/config"
	"github.com/berthd/berth/api/trust"
	"github.com/berthd/berth/managers/admission"
	"github.com/berthd/berth/managers/cgroup"
	"github.com/berthd/berth/managers/ledger/history"
	"github.com/berthd/berth/managers/timestamp"
	"github.com/berthd/berth/server/internal/failpoint"
	"github.com/berthd/berth/server/internal/host/service"
	"github.com/berthd/berth/server/internal/readiness"
	"github.com/berthd/berth/server/internal/reconcile"
	"github.com/berthd/berth/server/internal/rpc"
	"github.com/berthd/berth/server/internal/rpc/allocation"
	"github.com/berthd/berth/server/internal/system"
)

// LedgerFile is the name of the ledger in the state directory.
const LedgerFile = "ledger.db"

// Environment is main's input in addition to the configuration.
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
	Tracer system.Tracer
	// System opens what berthd uses of the machine; it is not needed with Observed. Metrics are nil if nothing is counted.
	System  system.System
	Metrics system.Metrics
	// Reader is the connection to the reader of huge pages; nil without one.
	Reader *os.File
	// Observed is the node whose decisions another program makes; nil if berthd makes them.
	Observed *Observed
	// Again is the pause between two probes of berthd's readiness, and between two tries of an address; 0 means 5 s. Tests
	// that wait for these have less.
	Again time.Duration
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

// given is what the parts of berthd are built from.
type given struct {
	Config config.Config
	Environment
	boot string // the id of this boot
}

// closers close at the end what was opened, in the order of its opening.
type closers []func() error

func (c *closers) add(what string, end func() error) {
	*c = append(*c, func() error {
		if err := end(); err != nil {
			return fmt.Errorf("close %s: %w", what, err)
		}
		return nil
	})
}

func (c *closers) close() error {
	var errs []error
	for _, end := range *c {
		errs = append(errs, end())
	}
	return errors.Join(errs...)
}

// App is berthd with all of its parts, built but not running.
type App struct {
	Ledger history.Ledger

	given    *given
	opened   closers
	state    *state
	kernel   *kernel
	devices  devices
	deciding *deciding
	policies *policies
	machine  *machineChanges
	sweeper  *reconcile.Sweeper
	history  *allocation.History
	servers  *servers
	reloader *reloader
	monitor  *readiness.Monitor
	// timeout is closed when plugins have had time to come back after the start.
	timeout chan struct{}
}

// Build constructs berthd. It locks the state directory and opens the ledger. Run does everything
// else. If a part fails, the earlier parts are closed.
func Build(ctx context.Context, cfg config.Config, env Environment) (_ *App, err error) {
	env.Now = timestamp.Clock(env.Now) // every time in records and messages has this resolution
	if err := trust.CheckFields(cfg); err != nil {
		return nil, err
	}
	found, facts, err := env.measure(cfg)
	if err != nil {
		return nil, err
	}
	if env.Stage != nil {
		facts.MaxPIDs = env.Stage.MaxPIDs
	}
	boot, err := env.bootID(os.DirFS("/proc"))
	if err != nil {
		return nil, err
	}
	if env.Tracer == nil {
		env.Tracer = system.Untraced{}
	}
	if env.Metrics == nil {
		env.Metrics = system.Uncounted{}
	}
	g := &given{Config: cfg, Environment: env, boot: boot}
	var opened closers
	defer func() {
		if err != nil {
			err = errors.Join(err, opened.close())
		}
	}()
	s, err := openState(ctx, g, found, facts, &opened)
	if err != nil {
		return nil, err
	}
	client, driver, err := connectRuntime(ctx, g, &opened)
	if err != nil {
		return nil, err
	}
	lock := admission.NewLock(s.ledger, rpc.UserOf)
	k, err := newKernel(ctx, g, s, lock, client, driver, &opened)
	if err != nil {
		return nil, err
	}
	devs := newDevices(g, s.ledger)
	env.Observed.list(devs.inventory, g.Now())
	d, err := newDeciding(g, s, lock, k, devs)
	if err != nil {
		return nil, err
	}
	p := &policies{given: g, state: s, kernel: k, deciding: d}
	srv := newServers(g, d.access)
	a := &App{
		Ledger: history.Ledger{Ledger: s.ledger, History: s.past},
		given:  g, state: s, kernel: k, devices: devs, deciding: d, policies: p, servers: srv,
		machine: newMachineChanges(p),
		sweeper: &reconcile.Sweeper{
			Orphans: k.loop.Orphans, Remove: k.loop.RemoveOrphan, Layout: k.layout,
			Alone: d.engine.Alone, Keep: keepLiving(d.engine, k.tree), Every: cfg.Cgroups.ReconcilePeriod.Duration,
			Now: g.Now, Log: g.Log.With("part", "sweep"),
		},
		history:  allocation.NewHistory(cfg.Limits.WatchEvents, devs.manager),
		reloader: &reloader{given: g, policies: p, deciding: d, servers: srv},
		monitor:  newMonitor(g, s, k.records, devs.plugins, srv),
		timeout:  make(chan struct{}),
	}
	a.history.Start(s.ledger.View())
	s.ledger.Follow(a.history.Committed)
	startMetrics(ctx, g, k, devs, d, a.history)
	if err := a.registerServers(); err != nil {
		return nil, err
	}
	a.opened = opened
	return a, nil
}
