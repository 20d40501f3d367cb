package app

import (
	"context"

	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/berthd/berth/managers/errdefs"
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
