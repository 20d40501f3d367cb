package app

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	admissionv1 "github.com/berthd/berth/api/berth/admission/v1"
	devicev1 "github.com/berthd/berth/api/berth/device/v1"
	lifecyclev1 "github.com/berthd/berth/api/berth/lifecycle/v1"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/server/readiness"
	"github.com/berthd/berth/server/rpc/podresources"
	"github.com/berthd/berth/server/socket"
	"github.com/berthd/berth/server/store"
)

// How often berthd finds out whether it can serve, and how long each probe may take.
const (
	probeEvery   = 5 * time.Second
	probeTimeout = 10 * time.Second
)

// listen opens the sockets of agents and of readers.
func (a *App) listen() (err error) {
	a.mainSocket, err = socket.Keep(a.Config.Listen, socket.Options{
		DirMode: listenDirMode, Mode: a.Config.SocketMode(), Group: a.Config.ListenGroup,
		Activated: a.Service.Socket(a.Config.Listen),
	}, a.Log)
	if err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	a.checkReach()
	a.readersSocket, err = socket.Keep(a.Config.PodResourcesSocket(), socket.Options{
		DirMode: 0o750, Mode: 0o755, Activated: a.Service.Socket(a.Config.PodResourcesSocket()),
	}, a.Log)
	if err != nil {
		_ = a.mainSocket.Close()
		return err
	}
	if left := a.Service.Left(); len(left) > 0 {
		return errors.Join(
			errdefs.Invalidf("systemd passes socket %s, which is neither listen (%s) nor in podResourcesDir (%s): change ListenStream= of the socket unit, or the configuration",
				left[0], a.Config.Listen, a.Config.PodResourcesSocket()),
			a.mainSocket.Close(), a.readersSocket.Close())
	}
	return nil
}

// newMonitor makes what finds out whether berthd can serve. Without a commit it reads on, without its socket nobody
// reaches it; the sockets of readers and plugins concern nobody else.
func (a *App) newMonitor() *readiness.Monitor {
	only := func(services ...grpc.ServiceDesc) (names []string) {
		for i := range services {
			names = append(names, services[i].ServiceName)
		}
		return names
	}
	return readiness.New(readiness.Config{
		Every: probeEvery, Timeout: probeTimeout, Log: a.Log.With("part", "readiness"), Changed: a.publishHealth,
	},
		readiness.Check{
			Name: "ledger", Probe: a.probeLedger,
			Only: append(only(admissionv1.AdmissionService_ServiceDesc, lifecyclev1.LifecycleService_ServiceDesc), ""),
		},
		readiness.Check{Name: "socket", Probe: a.callItself},
		readiness.Check{
			Name: "podresources socket", Probe: func(context.Context) error { return a.readersSocket.Problem() },
			Only: []string{podresources.ServiceV1},
		},
		readiness.Check{
			Name: "device plugin socket", Probe: func(context.Context) error { return a.plugins.Problem() },
			Only: only(devicev1.DeviceService_ServiceDesc),
		},
	)
}

// probeLedger tells whether a commit can succeed. Where the file is not in its place any
// more, a commit puts it back.
func (a *App) probeLedger(ctx context.Context) error {
	err := a.store.Probe()
	if errors.Is(err, ledger.ErrDetached) {
		_, err = a.Ledger.RenewEpoch(ctx, store.NewEpochID())
	}
	return err
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

// publishHealth tells the health service what works. It says nothing after Shutdown.
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
	if err := a.mainSocket.Problem(); err != nil {
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
