package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/berthd/berth/api/probe"
	"github.com/berthd/berth/api/trust"
	"github.com/berthd/berth/managers/errdefs"
)

// probeCommand is the command with which a kubelet probes berthd: at berthd's own socket, which other users cannot take or fill.
func probeCommand() *cobra.Command {
	var at string
	cmd := &cobra.Command{
		Use: "probe {live|ready}", Short: "Report whether the running berthd answers, or is ready", Args: cobra.MaximumNArgs(1),
		Long:    "Call the health service of the running berthd at its socket. The exit code is 1 if berthd does not answer (live), or is not ready (ready).",
		Example: "  berthd probe ready\n  berthd probe live --at /run/berth/berth.sock",
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := trust.CheckFlags(cmd.LocalFlags()); err != nil {
				return err
			}
			return callHealth(cmd.Context(), at, strings.Join(args, ""))
		},
	}
	cmd.Flags().StringVar(&at, "at", "/run/berth/berth.sock", "berthd's socket (its --listen)")
	trust.Mark(cmd.Flags(), trust.Socket, "at")
	return cmd
}

// callHealth calls the health service until the probe ends.
func callHealth(ctx context.Context, at, kind string) error {
	if err := probe.CheckKind(kind); err != nil {
		return usage(err)
	}
	conn, err := grpc.NewClient("unix:"+at, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	return probe.Run(ctx, kind, func(ctx context.Context) error { return checkHealth(ctx, conn, at, kind) })
}

// checkHealth calls the health service once.
func checkHealth(ctx context.Context, conn grpc.ClientConnInterface, at, kind string) error {
	answer, err := healthpb.NewHealthClient(conn).Check(ctx, &healthpb.HealthCheckRequest{})
	if err != nil {
		return fmt.Errorf("berthd at %s does not answer: %w", at, err)
	}
	if kind == probe.Ready && answer.GetStatus() != healthpb.HealthCheckResponse_SERVING {
		return errdefs.Unavailablef("berthd at %s is not ready: its log, and /readyz of its --http, say why", at)
	}
	return nil
}
