package app

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	admissionv1 "github.com/berthd/berth/api/berth/admission/v1"
	devicev1 "github.com/berthd/berth/api/berth/device/v1"
	lifecyclev1 "github.com/berthd/berth/api/berth/lifecycle/v1"
	"github.com/berthd/berth/api/bounded"
	"github.com/berthd/berth/api/config"
	"github.com/berthd/berth/api/hosts"
	"github.com/berthd/berth/api/page"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/server/internal/host/service"
	"github.com/berthd/berth/server/internal/logs"
	"github.com/berthd/berth/server/internal/readiness"
	"github.com/berthd/berth/server/internal/rpc"
	"github.com/berthd/berth/server/internal/rpc/podresources"
	"github.com/berthd/berth/server/internal/socket"
	"github.com/berthd/berth/server/internal/store"
	"github.com/berthd/berth/server/internal/task"
)

// grace is how long an orderly stop may take.
const grace = 10 * time.Second

// addressAgain is the pause between two tries of an address that another program has taken.
const addressAgain = 5 * time.Second

// httpConnections is how many connections to metrics and health there are at once.
const httpConnections = 64

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
		err = errors.Join(err, a.keepLedger(ctx), a.store.Close(), a.closeRuntime(), a.closeRecords())
	}()
	for _, path := range []string{a.Config.Listen, a.Config.PodResourcesSocket(), a.Config.DevicePluginSocket()} {
		if path == "" || a.Service.Has(path) {
			continue // switched off, or kept by systemd for berthd
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
	g.Go("mover", a.mover.Run)
	if a.replacer != nil {
		g.Go("replacer", a.replacer.Run)
	}
	g.Go("systemd", a.followReloads)
	g.Go("machine", a.followMachine)
	// An unknown state of the disk can only be resolved by another start.
	g.Go("ledger", a.store.Watch)
	g.Go("watch", a.history.Run)
	g.Go("system cgroups", a.keepSystemCgroups)
	g.Go("deviceplugin", a.plugins.Run)
	g.Go("registry", a.registry.Run)
	g.Go("hintproxy", a.external.Run)
	g.OnStop("hintproxy", a.external.Stop)
	if a.readerSocket != nil {
		g.Go("podresources", serve(a.readers.Server, func(serve func(net.Listener) error) error {
			return a.readerSocket.Serve(func(l net.Listener) error { return serve(rpc.AtMost(rpc.LeaveDescriptors(l), readerConnections)) })
		}))
		g.OnStop("podresources", stop(a.readers.Server, cutOff))
	}
	g.Go("api", serve(a.main.Server, a.agentSocket.Serve))
	g.OnStop("api", stop(a.main.Server, cutOff))
	// Sockets close before calls are cut off: later connections wait for the next berthd.
	if a.readerSocket != nil {
		g.OnStop("podresources socket", a.readerSocket.Drain)
	}
	g.OnStop("api socket", a.agentSocket.Drain)
	g.OnStop("watch", func(context.Context) error { a.history.Close(); return nil })
	endHTTP, err := a.serveHTTP(ctx, g)
	if err != nil {
		return errors.Join(err, a.closeSockets())
	}
	defer func() { err = errors.Join(err, endHTTP()) }()
	serving, endServing := context.WithCancel(context.WithoutCancel(ctx))
	defer endServing()
	g.Go("ready", func(ctx context.Context) error {
		select {
		case <-a.plugins.Ready():
		case <-ctx.Done():
			return ctx.Err()
		}
		a.markReady(ctx)
		a.health.Resume()
		a.Log.InfoContext(ctx, "ready", "socket", a.Config.Listen,
			"machine", a.machine().Fingerprint(), "generation", a.Ledger.View().Generation(), "pods", a.Ledger.View().NumPods())
		a.notify(a.statusLine(), service.Ready)
		if ready != nil {
			ready()
		}
		// Probes end with the service; the task itself ends with the others.
		_ = a.monitor.Run(serving)
		<-ctx.Done()
		return ctx.Err()
	})
	g.Go("service manager", a.followService)
	g.Go("reload", a.followReloadSignals)
	// Health changes first, so that clients stop calling.
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

// applyLedger makes the cgroup tree equal to the ledger, before any client can call.
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
		return fmt.Errorf("create the cgroups of all pods: %w", err)
	}
	if err := a.reconcile.Pass(ctx); err != nil {
		// What the kernel refuses one pod now, it may grant later.
		a.Log.ErrorContext(ctx, "make the cgroup tree equal to the ledger", "error", err)
	}
	return nil
}

// knowsDevices reports whether a view has a device resource, or devices that a pod holds.
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
	repairs := slices.Concat(damageLines(a.start.Damage, a.start.Ledger), renewedLines(a.start.Ledger), a.recoveryLines())
	for _, line := range a.startLines() {
		var keys []any
		if slices.Contains(repairs, line) {
			keys = logs.Repaired(logs.Ledger)
		}
		a.Log.WarnContext(ctx, line, keys...)
	}
}

// StartLines lists, in sentences, what the start found and did, and what of the
// configuration changes nothing; none if there was nothing to report.
func (a *App) StartLines() []string { return append(slices.Clone(a.Notes), a.startLines()...) }

// startLines are StartLines without the notes, which have been logged.
func (a *App) startLines() (lines []string) {
	r := a.start.Ledger
	lines = append(lines, damageLines(a.start.Damage, r)...)
	if uncertain := a.Ledger.View().Uncertain(); uncertain != "" {
		lines = append(lines, uncertain+"; waiting for the agent's Sync")
	}
	lines = append(lines, a.recoveryLines()...)
	lines = append(lines, renewedLines(r)...)
	if r.History != "" {
		lines = append(lines, "the history of calls begins again, and nothing else is affected: "+r.History)
	}
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
			continue // has a line already, with the owners
		}
		lines = append(lines, "kept although today's rules would not allow it: "+f.Text)
	}
	for _, f := range r.Broken {
		lines = append(lines, "broken: "+f.Text)
	}
	if c := a.Config; c.Memory.CheckFreeHugePages != config.PagesIgnore && c.Machine != "" {
		lines = append(lines, "free huge pages are not read: the machine is simulated")
	}
	return append(lines, a.first.Memory.Warnings()...)
}

// httpHandler serves metrics, health and the page.
func (a *App) httpHandler(conn grpc.ClientConnInterface, login *page.Login) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", a.metrics.Handler(a.Config.KubeletMetrics))
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { _, _ = fmt.Fprintln(w, "ok") })
	mux.HandleFunc("GET /readyz", a.ready)
	mux.Handle("/", a.pageHandler(conn, login))
	return mux
}

// serveHTTP adds the server for metrics, health and the page, if one is configured. end closes its
// connection to berthd itself.
func (a *App) serveHTTP(ctx context.Context, g *task.Group) (end func() error, err error) {
	if a.Config.HTTP == "" {
		return func() error { return nil }, nil
	}
	l, err := a.listenHTTP()
	if errors.Is(err, syscall.EADDRINUSE) {
		// Every user of the machine can take a port. That must not end berthd.
		a.Log.WarnContext(ctx, "the address of metrics and health is taken by another program; berthd tries it again", "http",
			a.Config.HTTP, "every", addressAgain.String(), "error", err)
	} else if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", a.Config.HTTP, err)
	}
	conn, err := a.pageConn()
	if err != nil {
		if l != nil {
			err = errors.Join(err, l.Close())
		}
		return nil, err
	}
	var login *page.Login
	if _, ok := a.Config.HTTPSocket(); ok {
		login = page.NewSharedLogin()
		if err := a.writeLogin(login); err != nil {
			return nil, errors.Join(fmt.Errorf("write the page's link next to the socket of http: %w", err), l.Close(), conn.Close())
		}
	}
	serving, endStreams := context.WithCancel(context.WithoutCancel(ctx))
	s := &http.Server{
		Handler: hosts.Only(a.Config.HTTP, a.httpHandler(conn, login)), MaxHeaderBytes: 64 << 10,
		ReadTimeout: 10 * time.Second, WriteTimeout: 30 * time.Second, IdleTimeout: time.Minute,
		BaseContext: func(net.Listener) context.Context { return serving }, ConnContext: a.withPeer,
	}
	g.Go("http", func(ctx context.Context) error {
		for ; l == nil; l, _ = a.listenHTTP() {
			select {
			case <-time.After(addressAgain):
			case <-ctx.Done():
				return nil
			}
		}
		a.Log.InfoContext(ctx, "metrics and health over HTTP", "address", l.Addr().String())
		if err := bounded.New(rpc.LeaveDescriptors(l), httpConnections).Serve(s); !errors.Is(err, http.ErrServerClosed) {
			return err
		}
		return nil
	})
	g.OnStop("http", func(ctx context.Context) error { endStreams(); return s.Shutdown(ctx) })
	return func() error { endStreams(); return conn.Close() }, nil
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

// statusEvery is how often systemctl status gets a new line, if that is not the same.
const statusEvery = 10 * time.Second

// notify reports berthd's state to the service manager. A failure is only logged, because the
// service manager acts on its own timeout.
func (a *App) notify(status string, states ...string) {
	if err := a.Service.Status(status, states...); err != nil {
		a.Log.Warn("the service manager could not be notified", "status", status, "error", err)
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
	select {
	case <-a.plugins.Ready():
	case <-ctx.Done():
		return ctx.Err()
	}
	every := statusEvery
	if w := a.Service.Watchdog(); w > 0 {
		every = min(every, w/3)
	}
	return alive(ctx, every, a.Engine.AwaitCommits, func() {
		if a.Service.Watchdog() > 0 {
			a.notify(a.statusLine(), service.Alive)
		} else {
			a.notify(a.statusLine())
		}
	})
}

// followReloadSignals reads the configuration again whenever a signal requests it.
func (a *App) followReloadSignals(ctx context.Context) error {
	select {
	case <-a.plugins.Ready():
	case <-ctx.Done():
		return ctx.Err()
	}
	for {
		select {
		case <-a.Reloads:
		case <-ctx.Done():
			return ctx.Err()
		}
		a.notify("reads the configuration again", service.ReloadingNow()...)
		if _, err := a.Reload(ctx, false); err != nil {
			a.Log.ErrorContext(ctx, "the configuration was not changed", "error", err)
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

// The interval and the timeout of probes.
const (
	probeEvery   = 5 * time.Second
	probeTimeout = 10 * time.Second
)

// listen opens the sockets of agents and of readers.
func (a *App) listen() error {
	if err := a.agentSocket.Listen(a.Service.Socket(a.Config.Listen)); err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	a.checkReach()
	if a.readerSocket != nil {
		if err := a.readerSocket.Listen(a.Service.Socket(a.Config.PodResourcesSocket())); err != nil {
			return errors.Join(err, a.agentSocket.Close())
		}
	}
	if left := a.Service.Left(); len(left) > 0 {
		return errors.Join(
			errdefs.Invalidf("systemd passes socket %s, which is neither listen (%s) nor in podResourcesDir (%s): change ListenStream= of the socket unit, or the configuration",
				left[0], a.Config.Listen, a.Config.PodResourcesSocket()),
			a.closeSockets())
	}
	return nil
}

func (a *App) closeSockets() error {
	err := a.agentSocket.Close()
	if a.readerSocket != nil {
		err = errors.Join(err, a.readerSocket.Close())
	}
	return err
}

// newMonitor constructs the health checks. Without commits berthd still serves reads. Without its
// own socket it serves nothing. The sockets of readers and plugins affect only their own
// services.
func (a *App) newMonitor() *readiness.Monitor {
	only := func(services ...grpc.ServiceDesc) (names []string) {
		for i := range services {
			names = append(names, services[i].ServiceName)
		}
		return names
	}
	checks := []readiness.Check{
		{
			Name: "ledger", Probe: a.probeLedger,
			Only: append(only(admissionv1.AdmissionService_ServiceDesc, lifecyclev1.LifecycleService_ServiceDesc), ""),
		},
		{Name: "socket", Probe: a.callItself},
		{
			Name: "device plugin socket", Probe: func(context.Context) error { return a.plugins.Problem() },
			Only: only(devicev1.DeviceService_ServiceDesc),
		},
	}
	if a.readerSocket != nil {
		checks = append(checks, readiness.Check{
			Name: "podresources socket", Probe: func(context.Context) error { return a.readerSocket.Problem() },
			Only: []string{podresources.ServiceV1},
		})
	}
	return readiness.New(readiness.Config{
		Every: probeEvery, Timeout: probeTimeout, Log: a.Log.With("part", "readiness"), Changed: a.publishHealth,
	}, checks...)
}

// probeLedger reports whether a commit can succeed. Where the file is not in its place any
// more, a commit puts it back.
func (a *App) probeLedger(ctx context.Context) error {
	err := a.store.Probe()
	if errors.Is(err, ledger.ErrDetached) {
		_, err = a.Ledger.RenewEpoch(ctx, store.NewEpochID())
	}
	if err != nil {
		return err
	}
	return a.probeRecords(ctx)
}

// keepLedger puts the ledger's file back before the end if it was removed since the last
// probe.
func (a *App) keepLedger(ctx context.Context) error {
	if !errors.Is(a.store.InPlace(), ledger.ErrDetached) {
		return nil
	}
	_, err := a.Ledger.RenewEpoch(context.WithoutCancel(ctx), store.NewEpochID())
	return err
}

// publishHealth sets the health service's statuses. After Shutdown it has no effect.
func (a *App) publishHealth(m *readiness.Monitor) {
	set := func(service string) {
		status := healthpb.HealthCheckResponse_NOT_SERVING
		if m.Serves(service) {
			status = healthpb.HealthCheckResponse_SERVING
		}
		a.health.SetServingStatus(service, status)
	}
	for service := range a.main.GetServiceInfo() {
		set(service)
	}
	set("")
}

// callItself makes a call as an agent does, by the path of the socket.
func (a *App) callItself(ctx context.Context) error {
	if err := a.agentSocket.Problem(); err != nil {
		return err
	}
	conn, err := grpc.NewClient("passthrough:///localhost", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", a.Config.Listen)
		}))
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	if _, err := healthpb.NewHealthClient(conn).Check(ctx, &healthpb.HealthCheckRequest{}); err != nil {
		return fmt.Errorf("call the health service over %s: %w", a.Config.Listen, err)
	}
	return nil
}

// ready answers whether berthd serves, as the health service does, and why it does not.
func (a *App) ready(w http.ResponseWriter, r *http.Request) {
	resp, err := a.health.Check(r.Context(), &healthpb.HealthCheckRequest{})
	whole, some := a.monitor.Lines()
	if err != nil || resp.GetStatus() != healthpb.HealthCheckResponse_SERVING {
		w.WriteHeader(http.StatusServiceUnavailable)
		_, _ = fmt.Fprintln(w, "not ready")
		if len(whole) == 0 {
			_, _ = fmt.Fprintln(w, "berthd starts or ends")
		}
	} else {
		_, _ = fmt.Fprintln(w, "ok")
	}
	for _, line := range append(whole, some...) {
		_, _ = fmt.Fprintln(w, line)
	}
}
