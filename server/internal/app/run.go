package app

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"google.golang.org/grpc"

	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/server/internal/host/service"
	"github.com/berthd/berth/server/internal/rpc"
	"github.com/berthd/berth/server/internal/socket"
	"github.com/berthd/berth/server/internal/task"
)

// grace is how long an orderly stop may take.
const grace = 10 * time.Second

// Run starts berthd. It returns when ctx has ended and everything has stopped, or when a part has
// failed. It closes the ledger. ready is called once, when the sockets answer; it may be nil.
//
// The order of a start:
//
//   - No other program may serve the sockets, because the pods may be that program's.
//   - The recovery decides pod by pod.
//   - The cgroup tree is made equal to the ledger.
//   - Plugins may register.
//   - Readers and agents may call.
func (a *App) Run(ctx context.Context, ready func()) (err error) {
	defer func() {
		err = errors.Join(err, a.state.keepFile(ctx), a.opened.close())
	}()
	g, s, c := a.given, a.servers, a.given.Config
	for _, path := range []string{c.Listen, c.PodResourcesSocket(), c.DevicePluginSocket()} {
		if path == "" || g.Service.Has(path) {
			continue // switched off, or kept by systemd for berthd
		}
		if err := socket.Unserved(path); err != nil {
			return err
		}
	}
	a.notify("starts: compares the ledger with the kernel")
	if err := applyLedger(ctx, g, a.state, a.kernel, a.history); err != nil {
		return err
	}
	a.machine.countPages(ctx) // before a pod can get pages
	if err := s.listen(g); err != nil {
		return err
	}

	defer time.AfterFunc(c.Limits.PodResourcesWait.Duration, func() { close(a.timeout) }).Stop()

	tasks := task.New()
	tasks.Go("reconcile", a.kernel.loop.Run)
	tasks.Go("sweep", a.sweeper.Run)
	tasks.Go("mover", a.deciding.mover.Run)
	if r := a.deciding.replacer; r != nil {
		tasks.Go("replacer", r.Run)
	}
	tasks.Go("systemd", func(ctx context.Context) error {
		return followReloads(ctx, a.kernel.tree, a.kernel.loop, a.sweeper, g.Log)
	})
	tasks.Go("machine", a.machine.follow)
	// An unknown state of the disk can only be resolved by another start.
	tasks.Go("ledger", a.state.store.Watch)
	tasks.Go("system cgroups", func(ctx context.Context) error {
		return keepSystemCgroups(ctx, g, &a.kernel.system)
	})
	tasks.Go("deviceplugin", a.devices.plugins.Run)
	tasks.Go("registry", a.devices.registry.Run)
	tasks.Go("hintproxy", a.deciding.external.Run)
	tasks.OnStop("hintproxy", a.deciding.external.Stop)
	if s.readerSocket != nil {
		tasks.Go("podresources", serve(s.readers.Server, func(serve func(net.Listener) error) error {
			return s.readerSocket.Serve(func(l net.Listener) error { return serve(rpc.AtMost(rpc.LeaveDescriptors(l), readerConnections)) })
		}))
		tasks.OnStop("podresources", stop(s.readers.Server, cutOff))
	}
	tasks.Go("reload", a.followReloadSignals)
	return a.serve(ctx, tasks, ready)
}

// serve runs the tasks, with those that answer calls, until ctx has ended or a task has failed. ready is that of Run.
func (a *App) serve(ctx context.Context, tasks *task.Group, ready func()) (err error) {
	g, s := a.given, a.servers
	tasks.Go("watch", a.history.Run)
	tasks.Go("api", serve(s.main.Server, s.agentSocket.Serve))
	tasks.OnStop("api", stop(s.main.Server, cutOff))
	// Sockets close before calls are cut off: later connections wait for the next berthd.
	if s.readerSocket != nil {
		tasks.OnStop("podresources socket", s.readerSocket.Drain)
	}
	tasks.OnStop("api socket", s.agentSocket.Drain)
	tasks.OnStop("watch", func(context.Context) error { a.history.Close(); return nil })
	pages := &web{g.Config, g.Log, g.Metrics, s.health, a.monitor, a.deciding.access, s.page, cmp.Or(g.Again, again)}
	endHTTP, err := pages.serve(ctx, tasks)
	if err != nil {
		return errors.Join(err, s.closeSockets())
	}
	defer func() { err = errors.Join(err, endHTTP()) }()
	serving, endServing := context.WithCancel(context.WithoutCancel(ctx))
	defer endServing()
	tasks.Go("ready", func(ctx context.Context) error {
		if err := a.served(ctx); err != nil {
			return err
		}
		if g.Observed == nil {
			markReady(ctx, g.Config.StateDir, g.Log)
		}
		s.health.Resume()
		g.Log.InfoContext(ctx, "ready", "socket", g.Config.Listen,
			"machine", a.machine.inUse().Fingerprint(), "generation", a.Ledger.View().Generation(), "pods", a.Ledger.View().NumPods())
		a.notify(a.statusLine(), service.Ready)
		if ready != nil {
			ready()
		}
		// Probes end with the service; the task itself ends with the others.
		_ = a.monitor.Run(serving)
		<-ctx.Done()
		return ctx.Err()
	})
	tasks.Go("service manager", a.followService)
	// Health changes first, so that clients stop calling.
	tasks.OnStop("health", func(context.Context) error {
		a.notify("ends: waits for calls under way", service.Stopping)
		endServing()
		s.health.Shutdown()
		return nil
	})
	limit := grace
	if g.Stage != nil && g.Stage.Grace > 0 {
		limit = g.Stage.Grace
	}
	return tasks.Run(ctx, limit)
}

// served waits until device plugins can register, where berthd has them.
func (a *App) served(ctx context.Context) error {
	if a.given.Observed != nil {
		return ctx.Err()
	}
	select {
	case <-a.devices.plugins.Ready():
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// statusEvery is how often systemctl status gets a new line, if that is not the same.
const statusEvery = 10 * time.Second

// notify reports berthd's state to the service manager. A failure is only logged, because the
// service manager acts on its own timeout.
func (a *App) notify(status string, states ...string) {
	if err := a.given.Service.Status(status, states...); err != nil {
		a.given.Log.Warn("the service manager could not be notified", "status", status, "error", err)
	}
}

// statusLine describes the current state in one line.
func (a *App) statusLine() string {
	view := a.Ledger.View()
	line := fmt.Sprintf("serves %d pods at revision %d", view.NumPods(), view.Generation())
	if uncertain := view.Uncertain(); uncertain != "" {
		line += "; waits for the agent's SyncPods"
	}
	whole, some := a.monitor.Lines()
	for _, problem := range append(whole, some...) {
		line += "; does not work: " + problem
	}
	return line
}

// followService reports berthd's state and liveness to the service manager. Berthd is alive while
// commits finish. If one hangs, systemd's watchdog restarts berthd.
func (a *App) followService(ctx context.Context) error {
	if err := a.served(ctx); err != nil {
		return err
	}
	every := statusEvery
	if w := a.given.Service.Watchdog(); w > 0 {
		every = min(every, w/3)
	}
	return alive(ctx, every, a.deciding.engine.AwaitCommits, func() {
		if a.given.Service.Watchdog() > 0 {
			a.notify(a.statusLine(), service.Alive)
		} else {
			a.notify(a.statusLine())
		}
	})
}

// followReloadSignals reads the configuration again whenever a signal requests it.
func (a *App) followReloadSignals(ctx context.Context) error {
	if err := a.served(ctx); err != nil {
		return err
	}
	for {
		select {
		case <-a.given.Reloads:
		case <-ctx.Done():
			return ctx.Err()
		}
		a.notify("reads the configuration again", service.ReloadingNow()...)
		if _, err := a.reloader.Reload(ctx, false); err != nil {
			a.given.Log.ErrorContext(ctx, "the configuration was not changed", "error", err)
		}
		a.notify(a.statusLine(), service.Ready)
	}
}

// alive calls notify periodically, each time after responds has returned.
func alive(ctx context.Context, every time.Duration, responds func(context.Context) error, notify func()) error {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		if err := responds(ctx); err != nil {
			return err
		}
		notify()
		select {
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// serve runs a gRPC server on what keeps its socket, until it is stopped.
func serve(s *grpc.Server, on func(serve func(net.Listener) error) error) func(context.Context) error {
	return func(context.Context) error {
		if err := on(s.Serve); !errors.Is(err, grpc.ErrServerStopped) { // berthd was stopped before it served
			return err
		}
		return nil
	}
}

// cutOff is how long a cut-off call may take to return. A call that writes to a dead disk never
// does.
const cutOff = 2 * time.Second

// stop lets calls finish, and cuts them off when the context ends.
func stop(s *grpc.Server, notice time.Duration) func(context.Context) error {
	return func(ctx context.Context) error {
		done := make(chan struct{})
		go func() { s.GracefulStop(); close(done) }()
		select {
		case <-done:
			return nil
		case <-ctx.Done():
			s.Stop()
		}
		select {
		case <-done:
			return nil
		case <-time.After(notice):
			return errdefs.Deadlinef("calls still run %s after they were cut off", notice)
		}
	}
}
