package app

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"time"

	"google.golang.org/grpc"

	"github.com/berthd/berth/api/config"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/server/host/service"
	"github.com/berthd/berth/server/socket"
	"github.com/berthd/berth/server/task"
)

// grace is how long an orderly stop may take.
const grace = 10 * time.Second

// httpConnections is how many connections to metrics and health there are at once.
const httpConnections = 64

// Run starts berthd and returns when ctx has ended and everything has stopped,
// or when a part has failed. It closes the ledger. ready is called once, when
// the sockets answer; it may be nil.
//
// The order of a start: nobody else may serve the sockets, because then the pods
// here may be somebody else's; it is decided pod by pod what is true; the cgroup tree is
// brought to what the ledger says; then plugins may register; then
// readers and agents may call.
func (a *App) Run(ctx context.Context, ready func()) (err error) {
	defer func() {
		err = errors.Join(err, a.keepLedger(ctx), a.store.Close(), a.closeRuntime(), a.closeRecords())
	}()
	for _, path := range []string{a.Config.Listen, a.Config.PodResourcesSocket(), a.Config.DevicePluginSocket()} {
		if a.Service.Has(path) {
			continue // systemd keeps it, and nobody else takes it
		}
		if err := socket.Unserved(path); err != nil {
			return err
		}
	}
	a.notify("starts: compares the ledger with the kernel")
	if err := a.applyLedger(ctx); err != nil {
		return err
	}
	if err := a.listen(); err != nil {
		return err
	}

	defer time.AfterFunc(a.Config.Limits.PodResourcesWait.Duration, func() { close(a.timeout) }).Stop()

	g := task.New()
	g.Go("reconcile", a.reconcile.Run)
	g.Go("sweep", a.sweeper.Run)
	g.Go("systemd", a.followReloads)
	// Where nobody knows what the disk has, only another start can tell.
	g.Go("ledger", a.store.Watch)
	g.Go("watch", a.history.Run)
	g.Go("system cgroups", a.takeCare)
	g.Go("deviceplugin", a.plugins.Run)
	g.Go("registry", a.registry.Run)
	g.Go("hintproxy", a.external.Run)
	g.OnStop("hintproxy", a.external.Stop)
	g.Go("podresources", serve(a.readers.Server, a.readersSocket.Serve))
	g.Go("api", serve(a.main.Server, a.mainSocket.Serve))
	g.OnStop("podresources", stop(a.readers.Server, cutOff))
	g.OnStop("api", stop(a.main.Server, cutOff))
	// Before calls are cut off: who connects from now on waits for the next berthd.
	g.OnStop("podresources socket", a.readersSocket.Drain)
	g.OnStop("api socket", a.mainSocket.Drain)
	g.OnStop("watch", func(context.Context) error { a.history.Close(); return nil })
	if a.Config.HTTP != "" {
		l, err := a.listenHTTP()
		if err != nil {
			return errors.Join(fmt.Errorf("listen on %s: %w", a.Config.HTTP, err), a.mainSocket.Close(), a.readersSocket.Close())
		}
		a.Log.InfoContext(ctx, "metrics and health over HTTP", "address", l.Addr().String())
		l = socket.Bounded(l, httpConnections)
		s := &http.Server{
			Handler: a.httpHandler(), MaxHeaderBytes: 64 << 10,
			ReadTimeout: 10 * time.Second, WriteTimeout: 30 * time.Second, IdleTimeout: time.Minute,
		}
		g.Go("http", func(context.Context) error {
			if err := s.Serve(l); !errors.Is(err, http.ErrServerClosed) {
				return err
			}
			return nil
		})
		g.OnStop("http", s.Shutdown)
	}
	serving, endServing := context.WithCancel(context.WithoutCancel(ctx))
	defer endServing()
	g.Go("ready", func(ctx context.Context) error {
		select {
		case <-a.plugins.Ready():
		case <-ctx.Done():
			return ctx.Err()
		}
		a.health.Resume()
		a.Log.InfoContext(ctx, "ready", "socket", a.Config.Listen,
			"machine", a.Machine.Fingerprint(), "generation", a.Ledger.View().Generation(), "pods", a.Ledger.View().NumPods())
		a.notify(a.statusLine(), service.Ready)
		if ready != nil {
			ready()
		}
		// Nobody probes what is being stopped, and the task ends with the others.
		_ = a.monitor.Run(serving)
		<-ctx.Done()
		return ctx.Err()
	})
	g.Go("service manager", a.followService)
	g.Go("reload", a.followReloadSignals)
	// The first thing to stop is telling clients that all is well.
	g.OnStop("health", func(context.Context) error {
		a.notify("ends: waits for calls under way", service.Stopping)
		endServing()
		a.health.Shutdown()
		return nil
	})
	limit := grace
	if a.Stage != nil && a.Stage.Grace > 0 {
		limit = a.Stage.Grace
	}
	return g.Run(ctx, limit)
}

// applyLedger brings the cgroup tree to what the ledger says, before anybody can ask.
func (a *App) applyLedger(ctx context.Context) error {
	if err := a.checkHost(ctx); err != nil {
		return err
	}
	if err := a.recover(ctx); err != nil {
		return err
	}
	a.start.NoDevices = !knowsDevices(a.Ledger.View())
	if err := a.applyPolicy(ctx); err != nil {
		return err
	}
	a.reportStart(ctx)
	if suspect := a.Ledger.View().Uncertain(); suspect != "" {
		a.Log.WarnContext(ctx, "nothing exclusive is given out until the agent has sent Sync", "reason", suspect)
	}
	if err := a.reconcile.Begin(ctx); err != nil {
		return fmt.Errorf("make the cgroups of all pods: %w", err)
	}
	if err := a.reconcile.Pass(ctx); err != nil {
		// What the kernel refuses one pod now, it may grant later.
		a.Log.ErrorContext(ctx, "bring the cgroup tree to what the ledger says", "error", err)
	}
	return nil
}

// knowsDevices tells whether a view has a device resource, or devices that a pod holds.
func knowsDevices(view *ledger.View) bool {
	for range view.SeenResources() {
		return true
	}
	for u := range view.UnknownLivePods() {
		if slices.ContainsFunc(u.Claims, func(c ledger.Claim) bool { return c.Devices != nil }) {
			return true
		}
	}
	for range view.DeviceHolders() {
		return true
	}
	return false
}

// applyPolicy makes it last that a policy which was set before is dropped.
func (a *App) applyPolicy(ctx context.Context) error {
	if a.start.Ledger.Dropped == nil {
		return nil
	}
	_, err := a.Ledger.SetRules(ctx, a.Ledger.View().Rules())
	return err
}

// reportStart logs what the start found.
func (a *App) reportStart(ctx context.Context) {
	for _, line := range a.startLines() {
		a.Log.WarnContext(ctx, line)
	}
}

// StartLines tells, in sentences, what the start found and did, and what of the
// configuration changes nothing; none if there was nothing to report.
func (a *App) StartLines() []string { return append(slices.Clone(a.Notes), a.startLines()...) }

// startLines are StartLines without those that have been logged.
func (a *App) startLines() (lines []string) {
	r := a.start.Ledger
	lines = append(lines, damageLines(a.start.Damage, r)...)
	if uncertain := a.Ledger.View().Uncertain(); uncertain != "" {
		lines = append(lines, uncertain+"; waiting for the agent's Sync")
	}
	lines = append(lines, a.recoveryLines()...)
	if r.MigratedFrom != nil {
		lines = append(lines, fmt.Sprintf("the ledger was migrated from schema version %d", *r.MigratedFrom))
	}
	if line := a.policyLine(); line != "" {
		lines = append(lines, line)
	}
	if r.MachineChanged {
		lines = append(lines, "the machine has changed since the last commit")
	}
	if r.ConfigChanged {
		lines = append(lines, "the configuration has changed since the last commit")
	}
	for _, f := range a.start.Drift {
		lines = append(lines, f.Text)
	}
	for _, f := range r.Grandfathered {
		if f.Rule == ledger.RuleMemory && slices.ContainsFunc(a.start.Drift, func(d ledger.Finding) bool {
			return d.Rule == f.Rule && d.Resource == f.Resource
		}) {
			continue // has been told, with the owners
		}
		lines = append(lines, "kept although today's rules would not allow it: "+f.Text)
	}
	for _, f := range r.Broken {
		lines = append(lines, "broken: "+f.Text)
	}
	if c := a.Config; c.Memory.CheckFreeHugePages != config.PagesIgnore && c.Machine != "" {
		lines = append(lines, "free huge pages are not looked at: the machine is made up")
	}
	return append(lines, a.first.Memory.Warnings()...)
}

// serve runs a gRPC server on what keeps its socket, until it is stopped.
func serve(s *grpc.Server, on func(serve func(net.Listener) error) error) func(context.Context) error {
	return func(context.Context) error { return on(s.Serve) }
}

// cutOff is how long calls that were cut off have to notice. Nobody waits longer for
// one that does not, as one that writes to a dead disk.
const cutOff = 2 * time.Second

// stop lets calls finish and cuts off those that take too long.
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

// httpHandler serves metrics and health for those who do not speak gRPC.
func (a *App) httpHandler() http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", a.metrics.Handler())
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { _, _ = fmt.Fprintln(w, "ok") })
	mux.HandleFunc("GET /readyz", a.ready)
	return mux
}

// listenHTTP listens on an address or on a socket.
func (a *App) listenHTTP() (net.Listener, error) {
	path, ok := a.Config.HTTPSocket()
	if !ok {
		return net.Listen("tcp", a.Config.HTTP)
	}
	mode, err := config.Mode(a.Config.HTTPMode, 0o660)
	if err != nil {
		return nil, err
	}
	return socket.Listen(path, socket.Options{DirMode: 0o755, Mode: mode, Group: a.Config.ListenGroup})
}
