package app

import (
	"context"

	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/reflection"

	"github.com/berthd/berth/server/rpc"
)

// buildServers makes the two gRPC servers and registers every service.
func (a *App) buildServers(context.Context) error {
	a.health = newHealth()
	frame := rpc.Config{
		Access:          &rpc.Access{Self: selfUID(), Grants: a.Config.Access},
		MaxReceiveBytes: a.Config.Limits.MessageBytes,
		Ceiling:         a.Config.Limits.Call.Duration,
		Log:             a.Log.With("part", "rpc"),
		Observe:         a.metrics.observeCall,
	}
	a.main = rpc.NewServer(frame)
	healthpb.RegisterHealthServer(a.main, a.health)
	reflection.Register(a.main)

	// The directory's mode protects the readers' socket, as a kubelet's does.
	frame.Access = nil
	a.readers = rpc.NewServer(frame)
	reflection.Register(a.readers)
	return nil
}
