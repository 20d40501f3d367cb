package app

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	admissionv1 "github.com/berthd/berth/api/berth/admission/v1"
	allocationv1 "github.com/berthd/berth/api/berth/allocation/v1"
	devicev1 "github.com/berthd/berth/api/berth/device/v1"
	lifecyclev1 "github.com/berthd/berth/api/berth/lifecycle/v1"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/server/internal/deviceplugin"
	"github.com/berthd/berth/server/internal/readiness"
	"github.com/berthd/berth/server/internal/rpc/podresources"
	"github.com/berthd/berth/server/internal/socket"
)

// healthServer is gRPC's health service with streams that end when berthd does. A graceful stop
// waits for streams, and clients never end their health streams.
type healthServer struct {
	*health.Server
	ending context.Context
	end    context.CancelFunc
}

// newHealth constructs the health service. Every service is NOT_SERVING until Resume.
func newHealth() *healthServer {
	h := &healthServer{Server: health.NewServer()}
	h.ending, h.end = context.WithCancel(context.Background())
	h.SetServingStatus("", healthpb.HealthCheckResponse_NOT_SERVING)
	return h
}

// Watch implements grpc.health.v1.Health.
func (h *healthServer) Watch(req *healthpb.HealthCheckRequest, stream grpc.ServerStreamingServer[healthpb.HealthCheckResponse]) error {
	ctx, cancel := context.WithCancel(stream.Context())
	defer cancel()
	defer context.AfterFunc(h.ending, cancel)()
	err := h.Server.Watch(req, healthStream{stream, ctx})
	if h.ending.Err() != nil {
		return errdefs.Unavailablef("berthd ends")
	}
	return err
}

// Shutdown sets every service to NOT_SERVING, and ends the streams.
func (h *healthServer) Shutdown() {
	h.Server.Shutdown()
	h.end()
}

// healthStream is a stream with another end.
type healthStream struct {
	grpc.ServerStreamingServer[healthpb.HealthCheckResponse]
	ctx context.Context
}

func (s healthStream) Context() context.Context { return s.ctx }

// again is the pause between two probes, and between two tries of an address.
const again = 5 * time.Second

// probeTimeout is how long a probe may take.
const probeTimeout = 10 * time.Second

// newMonitor constructs the health checks. Without commits berthd still serves reads. Without its
// own socket it serves nothing. The sockets of readers and plugins affect only their own
// services.
func newMonitor(g *given, s *state, records *recordFiles, plugins *deviceplugin.Server, srv *servers) *readiness.Monitor {
	only := func(services ...grpc.ServiceDesc) (names []string) {
		for i := range services {
			names = append(names, services[i].ServiceName)
		}
		return names
	}
	own := readiness.Check{
		Name: "socket", Probe: func(ctx context.Context) error { return callItself(ctx, srv.agentSocket, g.Config.Listen) },
	}
	monitor := func(checks ...readiness.Check) *readiness.Monitor {
		return readiness.New(readiness.Config{
			Every: cmp.Or(g.Again, again), Timeout: probeTimeout, Log: g.Log.With("part", "readiness"), Changed: srv.publishHealth,
		}, checks...)
	}
	if g.Observed != nil {
		return monitor(own, readiness.Check{
			Name: "kubelet's node", Probe: func(context.Context) error { return g.Observed.Problem() },
			Only: only(allocationv1.AllocationService_ServiceDesc),
		})
	}
	checks := []readiness.Check{
		{
			Name: "ledger", Probe: func(ctx context.Context) error {
				if err := s.probe(ctx); err != nil {
					return err
				}
				return records.probe(ctx, g)
			},
			Only: append(only(admissionv1.AdmissionService_ServiceDesc, lifecyclev1.LifecycleService_ServiceDesc), ""),
		},
		own,
		{
			Name: "device plugin socket", Probe: func(context.Context) error { return plugins.Problem() },
			Only: only(devicev1.DeviceService_ServiceDesc),
		},
	}
	if srv.readerSocket != nil {
		checks = append(checks, readiness.Check{
			Name: "podresources socket", Probe: func(context.Context) error { return srv.readerSocket.Problem() },
			Only: []string{podresources.ServiceV1},
		})
	}
	return monitor(checks...)
}

// publishHealth sets the health service's statuses. After Shutdown it has no effect.
func (s *servers) publishHealth(m *readiness.Monitor) {
	set := func(service string) {
		status := healthpb.HealthCheckResponse_NOT_SERVING
		if m.Serves(service) {
			status = healthpb.HealthCheckResponse_SERVING
		}
		s.health.SetServingStatus(service, status)
	}
	for service := range s.main.GetServiceInfo() {
		set(service)
	}
	set("")
}

// callItself makes a call as an agent does, by the path of the socket.
func callItself(ctx context.Context, own *socket.Keeper, path string) error {
	if err := own.Problem(); err != nil {
		return err
	}
	conn, err := grpc.NewClient("passthrough:///localhost", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", path)
		}))
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	if _, err := healthpb.NewHealthClient(conn).Check(ctx, &healthpb.HealthCheckRequest{}); err != nil {
		return fmt.Errorf("call the health service over %s: %w", path, err)
	}
	return nil
}
