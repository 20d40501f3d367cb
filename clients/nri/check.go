package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/containerd/nri/pkg/api"
	"github.com/containerd/nri/pkg/stub"
	"github.com/spf13/cobra"

	"github.com/berthd/berth/api/report"
	"github.com/berthd/berth/api/trust"
	"github.com/berthd/berth/clients/nri/cdi"
	"github.com/berthd/berth/managers/errdefs"
)

// checkTimeout bounds the connection to the runtime.
const checkTimeout = 10 * time.Second

// checkCommand checks the node before a start.
func (o *options) checkCommand() *cobra.Command {
	var reports []string
	cmd := &cobra.Command{
		Use: "check", Short: "Check whether berth-nri can work on this node", Args: cobra.NoArgs,
		Long: `Connect to the runtime as a plugin that changes nothing, and read the kubelet's PodResources API: the runtime must serve NRI, and
the kubelet's own CPU and memory managers must be off. The exit code is 1 if berth-nri cannot work, unless --report is given.`,
		Example: "  berth-nri check\n  berth-nri check --nri-socket /run/k3s/nri/nri.sock --report /dev/termination-log",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := trust.CheckFlags(cmd.Flags()); err != nil {
				return err
			}
			result := o.checkNode(cmd.Context())
			return result.Finish(cmd.OutOrStdout(), reports)
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.socket, "nri-socket", api.DefaultSocketPath, "the runtime's socket for plugins")
	f.StringVar(&o.podResources, "pod-resources", defaultPodResources,
		"the kubelet's PodResources API; an empty path skips the check of the kubelet")
	report.AddFlag(f, &reports)
	trust.Mark(f, trust.Socket, "nri-socket", "pod-resources")
	return cmd
}

// checkNode checks the runtime and the kubelet.
func (o *options) checkNode(ctx context.Context) (result report.Result) {
	if runtime, err := runtimeOf(ctx, o.socket); err != nil {
		result.Fail("%v", err)
	} else {
		result.Note("the runtime is %s", runtime)
	}
	devices, err := o.devices(&cdi.Reader{}, slog.New(slog.DiscardHandler))
	if err != nil {
		result.Fail("%v", err)
		return result
	}
	defer devices.close()
	switch reason, known := devices.managers(ctx); {
	case reason != nil:
		result.Fail("%v", reason)
	case known:
		result.Note("the kubelet's CPU and memory managers are off")
	case o.podResources != "":
		result.Note("the kubelet does not say at %s whether its CPU and memory managers are off", o.podResources)
	}
	return result
}

// visitor is a plugin that learns which runtime it is connected to, and goes.
type visitor struct {
	runtime chan string
}

// Configure is the runtime's first call.
func (v *visitor) Configure(_ context.Context, _, runtime, version string) (api.EventMask, error) {
	select {
	case v.runtime <- strings.TrimSpace(plain(runtime + " " + version)):
	default:
	}
	return 0, nil
}

// RemoveContainer is the only event of a visitor: a plugin must have one.
func (*visitor) RemoveContainer(context.Context, *api.PodSandbox, *api.Container) error { return nil }

// runtimeOf returns name and version of the runtime that serves a socket for plugins.
func runtimeOf(ctx context.Context, socket string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	v := &visitor{make(chan string, 1)}
	plugin, err := stub.New(v, stub.WithSocketPath(socket), stub.WithPluginName("berth-check"), stub.WithPluginIdx("90"),
		stub.WithLogger(logger{slog.New(slog.DiscardHandler), &outage{}}))
	if err != nil {
		return "", err
	}
	var failed error // set before ended is closed
	ended := make(chan struct{})
	go func() { failed = plugin.Run(ctx); close(ended) }()
	defer func() { plugin.Stop(); cancel(); <-ended }()
	select {
	case runtime := <-v.runtime:
		return runtime, nil
	case <-ended:
		err = failed
	case <-ctx.Done():
		err = ctx.Err()
	}
	if errors.Is(err, context.DeadlineExceeded) {
		err = fmt.Errorf("it did not answer within %s", checkTimeout)
	}
	return "", errdefs.Unavailablef("no runtime serves NRI at %s (--nri-socket): %w; containerd 2.0 or later and CRI-O do unless that is switched off, containerd 1.7 does if it is switched on", socket, err)
}
